//! Perturbed runs: numerics with random rounding errors in the results of operations.
//!
//! The noise of several perturbed runs at the logits is the effect of rounding for a model and a prompt. The standard
//! deviations hold for sums in any order. With u = 2⁻²⁴ and k = 0.425, the root mean square of one rounding relative to
//! its result, a sum of n products x of root mean square Q has k·u·√(n/2·Q² + (n/3 + 1)·x²) (first order, zero-mean
//! roundings: Higham & Mary, 2019). Q is estimated by the root mean square of a token's results, which equals it if the
//! rows of a matrix are unrelated; [`PerturbedTerms`](crate::numerics::PerturbedTerms) perturbs the terms themselves.
//! If results are rounded to 16 bits, another engine may have one more rounding inside: a result then moves to a
//! neighbouring number.

mod injected_errors;

use std::iter::repeat_n;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

pub(crate) use self::injected_errors::Roundings;
use self::injected_errors::partial_sums;
use crate::numerics::delegate::delegate;
use crate::numerics::{Numerics, PerturbedTerms};
use crate::ops::activation::{Activation, ClampedGlu};
use crate::ops::attention::{AttentionScale, Mask};
use crate::ops::decay::DecayRates;
use crate::ops::delta_rule::DeltaTokens;
use crate::ops::experts::{ExpertRouting, RouterPrecision, ScoreFunction};
use crate::ops::l2_norm::L2Norm;
use crate::ops::log_probabilities::Picks;
use crate::ops::norm::{LayerNorm, RmsNorm};
use crate::ops::rope::{Rope, RopeTable};
use crate::ops::row_factor::QueryTemperature;
use crate::ops::scaling::Multiplier;
use crate::ops::short_convolution::ShortConvolution;
use crate::ops::sparse_gate::GateSparsity;
use crate::ops::state_space::{StateSpace, StepRule};
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix};

/// Half the spacing of `f32` at 1.
pub(super) const U: f64 = 1.0 / (1u64 << 24) as f64;
/// Standard deviation of one rounding in units of u: √(0.541 / 3), for mantissas that are uniform on a logarithmic
/// scale.
pub(super) const K: f64 = 0.425;
/// Largest error of a library's exponential or hyperbolic tangent, in units in the last place.
const LIBRARY: f64 = 2.0;

/// Number of perturbed runs. An error counts as far from rounding if it is four times the largest deviation of this
/// number of runs.
const RUNS: u64 = 4;

/// Calls `run` several times with numerics that inject random rounding errors. `how` adds roundings that another
/// engine may make. The seeds are counted up from `seed`.
///
/// # Errors
/// The errors of `run`.
pub fn moved<E>(
    numerics: &dyn Numerics,
    seed: u64,
    how: impl for<'n> Fn(PerturbedResults<'n>) -> PerturbedResults<'n>,
    mut run: impl FnMut(&dyn Numerics) -> Result<(), E>,
) -> Result<(), E> {
    (seed + 1..=seed + RUNS).try_for_each(|seed| {
        let resummed = PerturbedTerms::new(numerics, seed);
        // Results rounded to 16 bits hide the errors of their sums.
        let is_wide = numerics.activation_type() == DType::F32;
        run(&how(PerturbedResults::new(if is_wide { &resummed } else { numerics }, seed)))
    })
}

/// Numerics that add random rounding errors to other numerics. The same seed gives the same errors for the same
/// operations in the same order.
pub struct PerturbedResults<'n> {
    numerics: &'n dyn Numerics,
    seed: u64,
    /// True if products may have been computed with 8-bit integers, in an unknown way.
    eight_bits: bool,
    /// True if attention may have been computed in the type of its cache, although the rest is in `f32`.
    short_attention: bool,
    /// Relative rounding error of operands and products; 0 if they have the type of other results.
    short_products: f64,
    /// True if 16-bit results get only the errors of another summation order, without an additional rounding inside the
    /// operation.
    sums_alone: bool,
    /// Further roundings of the other engine's profile.
    roundings: Roundings,
    operations: AtomicU64,
}

impl<'n> PerturbedResults<'n> {
    /// Wraps `numerics`.
    pub fn new(numerics: &'n dyn Numerics, seed: u64) -> Self {
        let operations = AtomicU64::new(0);
        Self {
            numerics,
            seed,
            eight_bits: false,
            short_attention: false,
            short_products: 0.0,
            sums_alone: false,
            roundings: Roundings::default(),
            operations,
        }
    }

    /// Moves 16-bit results as rarely as a different summation order does. The error of a sum of n products in `f32` is
    /// about √(n/2)·2⁻²⁵ of their size, and a step of `bf16` is 2⁻⁸. Up to n = 2¹⁴, fewer than one result in 64 crosses
    /// the midpoint between two numbers.
    pub fn with_sums_alone(self) -> Self {
        Self { sums_alone: true, ..self }
    }

    /// Adds to products the errors of 8-bit integer activations and weights: one rounding of each to 1/127 of its row's
    /// largest value.
    pub fn with_eight_bits(self) -> Self {
        Self { eight_bits: true, ..self }
    }

    /// Adds to queries, attention weights and their products the error of rounding to the cache's type.
    pub fn with_short_attention(self) -> Self {
        Self { short_attention: true, ..self }
    }

    /// Adds to products, and to results that depend on products only, the error of rounding to a smaller type.
    pub fn with_short_products(self, unit: f64) -> Self {
        Self { short_products: unit, ..self }
    }

    /// Adds the errors of these roundings.
    pub fn with_roundings(self, roundings: Roundings) -> Self {
        Self { roundings, ..self }
    }
}

impl Numerics for PerturbedResults<'_> {
    delegate!(
        numerics: cache_transform, name, weight_types, native_types, activation_type, adds_rows_alike, recurs_alike, embed, rope_table,
        cache_type, cache_noise, likelihoods, scores_of_logits, choose
    );

    fn to_cache(&self, x: Tensor) -> Tensor {
        self.rounded_by(self.numerics.to_cache(x), self.cache_noise())
    }

    fn scale(&self, x: &Tensor, by: Multiplier) -> Tensor {
        self.rounded(self.numerics.scale(x, by), K)
    }

    fn rms_norm(&self, x: &Tensor, norm: &RmsNorm) -> Tensor {
        let roundings = K * ((norm.width() as f64 / 3.0).sqrt() / 2.0 + 3.0);
        let normed = self.rounded(self.numerics.rms_norm(x, norm), roundings);
        self.result(self.rounded_by(normed, self.roundings.norms))
    }

    fn layer_norm(&self, x: &Tensor, norm: &LayerNorm) -> Tensor {
        let terms = (norm.weight.len() as f64 / 3.0).sqrt();
        let normed =
            self.moved(self.numerics.layer_norm(x, norm), |x, rms| K * U * (terms * rms + 3.0 * x.abs()));
        self.result(self.rounded_by(normed, self.roundings.norms))
    }

    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.products(self.numerics.linear(x, w), x)
    }

    fn linear_of_pass(&self, x: &Tensor, w: &Matrix, bias: Option<&[f32]>, tokens: usize) -> Tensor {
        self.products(self.numerics.linear_of_pass(x, w, bias, tokens), x)
    }

    fn linear_of_expert(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.products(self.numerics.linear_of_expert(x, w), x)
    }

    fn router_logits(&self, x: &Tensor, w: &Matrix, precision: RouterPrecision) -> Tensor {
        self.products(self.numerics.router_logits(x, w, precision), x)
    }

    fn expert_scores(&self, logits: &Tensor, routing: &ExpertRouting) -> Tensor {
        let short = if routing.rounds_scores { self.activation_type() } else { DType::F32 };
        self.softmaxed(short, self.numerics.expert_scores(logits, routing))
    }

    fn expert_weights(&self, logits: &Tensor, chosen: &Tensor, routing: &ExpertRouting) -> Tensor {
        let short = if routing.is_rounded { self.activation_type() } else { DType::F32 };
        let weights = self.softmaxed(short, self.numerics.expert_weights(logits, chosen, routing));
        self.rounded_by(weights, self.roundings.experts)
    }

    fn mix(&self, outputs: &Tensor, weights: &Tensor, scores: &Tensor, is_whole: bool) -> Tensor {
        let mixed = self.summed(self.numerics.mix(outputs, weights, scores, is_whole), weights.row_len());
        self.result(self.rounded_by(mixed, self.roundings.experts))
    }

    fn shared_weights(&self, logits: &Tensor) -> Tensor {
        self.result(self.rounded(self.numerics.shared_weights(logits), 3.0 + 2.0 * LIBRARY))
    }

    fn add_shared(&self, routed: &Tensor, outputs: &Tensor, weights: Option<&Tensor>) -> Tensor {
        let added = self.summed(self.numerics.add_shared(routed, outputs, weights), 2);
        self.result(self.rounded_by(added, self.roundings.experts))
    }

    fn row_scaled(&self, x: &Tensor, factors: &Tensor) -> Tensor {
        self.result(self.rounded(self.numerics.row_scaled(x, factors), 1.0))
    }

    fn mix_streams(&self, streams: &Tensor, coefs: &Tensor) -> Tensor {
        self.result(self.summed(self.numerics.mix_streams(streams, coefs), coefs.row_len().isqrt()))
    }

    fn match_magnitude(&self, x: &Tensor, like: &Tensor) -> Tensor {
        let roundings = (like.row_len() as f64 / 3.0).sqrt() + 4.0;
        self.result(self.rounded(self.numerics.match_magnitude(x, like), K * roundings))
    }

    fn mean_of_streams(&self, streams: &Tensor, count: usize) -> Tensor {
        self.result(self.summed(self.numerics.mean_of_streams(streams, count), count))
    }

    fn sparse_gate(&self, gate: &Tensor, sparsity: GateSparsity) -> Tensor {
        // The threshold has the error of a sum over the row, and values at the threshold lose their leading digits.
        let moved = self.moved(gate.clone(), |_, rms| 4.0 * K * U * rms);
        self.result(self.numerics.sparse_gate(&moved, sparsity))
    }

    fn tempered(&self, q: &Tensor, temperature: &QueryTemperature, positions: Range<usize>) -> Tensor {
        self.result(self.rounded(self.numerics.tempered(q, temperature, positions), 1.0))
    }

    fn short_convolution(&self, x: &Tensor, conv: &ShortConvolution) -> Tensor {
        let convolved = self.summed(self.numerics.short_convolution(x, conv), conv.kernel);
        self.result(self.in_short(convolved, 2.0, 1.0))
    }

    fn l2_norm(&self, x: &Tensor, norm: L2Norm) -> Tensor {
        let roundings = K * ((norm.width as f64 / 3.0).sqrt() / 2.0 + 2.0);
        let chunks = if x.rows() > 1 { self.roundings.chunks } else { 0.0 };
        self.in_f32(self.numerics.l2_norm(x, norm), |x, _| (U * roundings + K * chunks) * x.abs())
    }

    fn decay(&self, a: &Tensor, rates: &DecayRates) -> Tensor {
        self.in_f32(self.numerics.decay(a, rates), |x, _| U * (2.0 + 3.0 * LIBRARY) * x.abs())
    }

    /// Adds the errors of one step, as if earlier steps had not decayed the state.
    fn delta_rule(&self, tokens: &DeltaTokens, state: &Tensor) -> [Tensor; 2] {
        let [state, out] = self.numerics.delta_rule(tokens, state);
        let terms = tokens.widths()[0] as f64;
        // Five roundings: of both operands of each product, and of the product as an operand of up to three others.
        let chunks = if tokens.len() > 1 { self.roundings.chunks * 5f64.sqrt() } else { 0.0 };
        let sigma = |x: f64, rms: f64| {
            K * (U * (terms * rms * rms + (terms / 3.0 + 1.0) * x * x).sqrt() + chunks * rms)
        };
        [self.in_f32(state, sigma), self.result(self.moved(out, sigma))]
    }

    fn silu_gated(&self, normed: &Tensor, gate: &Tensor) -> Tensor {
        self.result(self.rounded(self.numerics.silu_gated(normed, gate), 3.0 + 2.0 * LIBRARY))
    }

    fn gated_by_part(&self, projected: &Tensor, part: usize, x: &Tensor) -> Tensor {
        self.result(self.rounded(self.numerics.gated_by_part(projected, part, x), K))
    }

    fn step_sizes(&self, dt: &Tensor, rule: &StepRule, is_single: bool) -> Tensor {
        self.result(self.rounded(self.numerics.step_sizes(dt, rule, is_single), 3.0 + 2.0 * LIBRARY))
    }

    fn recurrence(
        &self,
        x: &Tensor,
        steps: &Tensor,
        before: &Tensor,
        space: &StateSpace,
        is_single: bool,
    ) -> [Tensor; 2] {
        let [out, after] = self.numerics.recurrence(x, steps, before, space, is_single);
        let (columns, size, terms) = (space.columns as f64, space.head_dim, space.remembered(steps));
        let most = terms.iter().copied().fold(1.0, f64::max) + columns;
        let error =
            |n: f64, unit: f64, x: f64, rms: f64| K * unit * (n * rms * rms + (n + 3.0) * x * x).sqrt();
        let out = self.moved_in(self.activation_type(), out, |_, x, rms| error(most, U, x, rms));
        // The state stays `f32`, but some engines round the products that are added to it to a short type.
        let of_state = |row: usize, x: f64, rms: f64| match self.activation_type() {
            DType::BF16 => error(1.0, 1.0 / 256.0, x, rms),
            DType::F16 => error(1.0, 1.0 / 2048.0, x, rms),
            _ => error(terms[row / size], U, x, rms),
        };
        [self.result(out), self.moved_in(DType::F32, after, of_state)]
    }

    fn gated_norm(&self, gate: &Tensor, x: &Tensor, norm: &RmsNorm, is_single: bool) -> Tensor {
        let roundings = K * ((norm.width() as f64 / 3.0).sqrt() / 2.0 + 3.0) + 3.0 + 2.0 * LIBRARY;
        let normed = self.rounded(self.numerics.gated_norm(gate, x, norm, is_single), roundings);
        self.result(self.rounded_by(normed, self.roundings.norms))
    }

    fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor {
        self.products(self.numerics.affine(x, w, bias), x)
    }

    fn bit_linear(&self, x: &Tensor, w: &Matrix, factor: Option<Factor>) -> Tensor {
        // Products of integers are exact.
        self.rounded(self.numerics.bit_linear(x, w, factor), 2.0)
    }

    fn rotate(&self, x: &Tensor, table: &RopeTable) -> Tensor {
        // An angle of x radians has an error of about x roundings.
        let angle = table.largest_angle() + 5.0;
        let short = K * self.roundings.rotations;
        let rotated = self.numerics.rotate(x, table);
        self.result(self.moved(rotated, |x, rms| (U * angle + short) * (x * x + rms * rms).sqrt()))
    }

    fn scores(&self, q: &Tensor, k: &Tensor, scale: AttentionScale) -> Tensor {
        let head_dim = q.shape().last().copied().unwrap_or(1);
        let queries = self.rounded_by(self.as_the_cache(q.clone()), self.roundings.queries);
        let scores = self.summed(self.numerics.scores(&queries, k, scale), head_dim);
        self.result(self.rounded_by(self.in_short(scores, 2.0, 2.0), self.roundings.scores))
    }

    fn softmax(&self, scores: &Tensor, mask: Mask) -> Tensor {
        let weights = self.numerics.softmax(&self.unrounded(scores), mask);
        self.softmaxed(self.activation_type(), weights)
    }

    fn softmax_with_sinks(&self, scores: &Tensor, mask: Mask, sinks: &[f32]) -> Tensor {
        let weights = self.numerics.softmax_with_sinks(&self.unrounded(scores), mask, sinks);
        self.softmaxed(self.activation_type(), weights)
    }

    fn add_alibi(&self, scores: &Tensor, slopes: &[f32], mask: Mask) -> Tensor {
        self.result(self.rounded(self.numerics.add_alibi(&self.unrounded(scores), slopes, mask), 2.0))
    }

    fn clamped_glu(&self, gate: &Tensor, up: &Tensor, glu: ClampedGlu) -> Tensor {
        self.result(self.rounded(self.numerics.clamped_glu(gate, up, glu), 6.0 + 2.0 * LIBRARY))
    }

    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor {
        let keys = weights.shape().last().copied().unwrap_or(1);
        let seen = self.rounded_by(self.as_the_cache(weights.clone()), self.roundings.attention);
        let context = self.numerics.context(&seen, v);
        let context = self.in_short(self.as_the_cache(self.summed(context, keys)), 2.0, 1.0);
        let sums = match self.numerics.sums_of_values(weights.shape()[1]) {
            DType::F16 => 1.0 / 2048.0,
            _ => self.roundings.sums,
        };
        let context = match sums > 0.0 {
            true => self.moved_by(context, &partial_sums(weights, v), K * sums),
            false => context,
        };
        self.result(context)
    }

    fn activation(&self, x: &Tensor, activation: Activation) -> Tensor {
        let activated = self.rounded(self.numerics.activation(x, activation), 3.0 + 2.0 * LIBRARY);
        self.result(self.rounded_by(self.in_short(activated, 0.0, 1.0), self.roundings.activated))
    }

    fn gated(&self, gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor {
        let activated = self.rounded(self.numerics.gated(gate, up, activation), 3.0 + 2.0 * LIBRARY);
        self.result(self.rounded_by(self.in_short(activated, 0.0, 2.0), self.roundings.activated))
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Tensor {
        self.result(self.rounded(self.numerics.add(a, b), K))
    }

    fn probabilities(&self, logits: &Tensor, temperature: f32) -> Tensor {
        self.softmaxed(DType::F32, self.numerics.probabilities(logits, temperature))
    }

    fn log_probabilities(&self, logits: &Tensor, picks: &Picks, temperature: f32) -> Tensor {
        let found = self.numerics.log_probabilities(logits, picks, temperature);
        // In `f32`: the roundings of a difference's two operands, an exponential, a logarithm, and a sum over the
        // vocabulary.
        let adding = LIBRARY + 1.0 + K * (logits.row_len() as f64 / 3.0).sqrt();
        let sizes = picks.rows.iter().flat_map(|&row| {
            let largest = largest(logits.row(row)) / f64::from(temperature);
            repeat_n((largest + adding) as f32, picks.width())
        });
        self.moved_by(found, &Tensor::new(&picks.shape, sizes.collect()), U)
    }
}

/// Returns the largest absolute value among the finite values.
fn largest(row: &[f32]) -> f64 {
    row.iter().filter(|x| x.is_finite()).fold(0.0, |most, x| most.max(f64::from(x.abs())))
}
