//! Numerics that record the operation of each result, for its exact evaluation. There is one method for each
//! operation of [`Numerics`].

use std::iter::successors;
use std::ops::Range;
use std::sync::Arc;

use crate::exact::gather::{ElementwiseMap, Gather};
use crate::exact::{self, Float, Node, Operands, Operation, Profile, is_given, node_of, unrounded_origin};
use crate::numerics::{F32, Numerics, delegate};
use crate::ops::activation::exact::{ClampedGating, Nonlinearity};
use crate::ops::activation::{Activation, ClampedGlu};
use crate::ops::addition::exact::Addition;
use crate::ops::alibi::exact::BiasedScores;
use crate::ops::altup::exact::{MagnitudeMatch, StreamMean, StreamMix};
use crate::ops::attention::exact::{AttentionContext, Scores, Softmax};
use crate::ops::attention::{AttentionScale, Mask};
use crate::ops::cache::exact::{CachedCodes, CachedRows, ScaledRows};
use crate::ops::decay::DecayRates;
use crate::ops::decay::exact::Decay;
use crate::ops::delta_rule::DeltaTokens;
use crate::ops::delta_rule::exact::{DeltaHistory, DeltaOutput, DeltaState};
use crate::ops::embedding::exact::EmbeddingLookup;
use crate::ops::experts::exact::{ExpertChoice, ExpertMixture, ExpertProducts, ExpertScores, ExpertWeights};
use crate::ops::experts::{ExpertRouting, RouterPrecision, ScoreFunction};
use crate::ops::gating::exact::GatedProduct;
use crate::ops::hadamard::exact::HadamardTransform;
use crate::ops::l2_norm::L2Norm;
use crate::ops::l2_norm::exact::L2Normalisation;
use crate::ops::linear::exact::{Integers, Linear};
use crate::ops::log_probabilities::Picks;
use crate::ops::log_probabilities::exact::LogProbabilities;
use crate::ops::logits::exact::{LastRow, Probabilities};
use crate::ops::norm::exact::{LayerNormalisation, RmsNormalisation};
use crate::ops::norm::{Gain, LayerNorm, RmsNorm};
use crate::ops::rope::exact::Rotary;
use crate::ops::rope::{Rope, RopeRounding, RopeTable};
use crate::ops::row_factor::QueryTemperature;
use crate::ops::row_factor::exact::RowProduct;
use crate::ops::scaling::Multiplier;
use crate::ops::scaling::exact::Scaling;
use crate::ops::shared_expert::exact::SharedSum;
use crate::ops::short_convolution::ShortConvolution;
use crate::ops::short_convolution::exact::Convolution;
use crate::ops::sparse_gate::GateSparsity;
use crate::ops::sparse_gate::exact::SparseGating;
use crate::ops::state_space::exact::{Scan, ScanOutput, ScanState, StepSizes};
use crate::ops::state_space::{StateSpace, StepRule};
use crate::quant::ternary::is_ternary;
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix};

/// Numerics that record the operation of each result, for exact evaluation under a rounding profile.
pub struct TracedNumerics<'n> {
    numerics: &'n dyn Numerics,
    /// Rounding profiles of the dump's engine and of these numerics.
    profiles: [Profile; 2],
}

impl<'n> TracedNumerics<'n> {
    /// Wraps numerics whose results are compared with the results of an engine with this profile.
    pub fn new(numerics: &'n dyn Numerics, profile: Profile) -> Self {
        Self { numerics, profiles: [profile, Profile::of(numerics)] }
    }

    /// Sets the rounding profile of the numerics themselves.
    pub fn rounding_by(self, own: Profile) -> Self {
        Self { profiles: [self.profiles[0], own], ..self }
    }

    /// Returns the rounding profile of the dump's engine.
    pub(crate) fn profile(&self) -> Profile {
        self.profiles[0]
    }

    /// Returns the numerics that this type wraps.
    pub(crate) fn numerics(&self) -> &'n dyn Numerics {
        self.numerics
    }

    /// Gathers values of several tensors: `from` gives the tensor and the index for each result.
    ///
    /// # Panics
    /// If a tensor or an index does not exist.
    pub fn gathered(
        &self,
        tensors: &[&Tensor],
        shape: &[usize],
        from: impl Fn(usize) -> (usize, usize),
    ) -> Tensor {
        let index: Arc<[(usize, usize)]> = (0..shape.iter().product()).map(from).collect();
        let data = index.iter().map(|&(tensor, flat)| tensors[tensor].data()[flat]).collect();
        let result = Tensor::new(shape, data);
        if tensors.iter().all(|&tensor| is_given(tensor)) {
            return result;
        }
        let tensors = tensors.iter().map(|&tensor| tensor.clone()).collect();
        self.by(result, Gather { tensors, index })
    }

    /// Applies a function to each value, with one rounding. The function must be monotonic within each value's
    /// uncertainty.
    pub(crate) fn mapped(&self, x: &Tensor, f: fn(f64, f64) -> f64, parameter: f64) -> Tensor {
        let short = Float::of(self.numerics.activation_type()).unwrap_or(Float::F32);
        let result = x.clone().map(|x| short.round(f(x.into(), parameter)) as f32);
        self.by(result, ElementwiseMap { x: x.clone(), f, parameter })
    }

    /// Records an operation for a result. Used for changed operations that no model has.
    pub(crate) fn by(&self, result: Tensor, stage: impl Operation + 'static) -> Tensor {
        self.rounding(result, stage, |profile| profile)
    }

    /// Returns the rounding profiles for an operation that the architecture's authors round in a special way.
    fn rounding(
        &self,
        result: Tensor,
        stage: impl Operation + 'static,
        by: impl Fn(Profile) -> Profile,
    ) -> Tensor {
        let results = result.data().len();
        result.computed_by(Arc::new(Node::new(stage, self.profiles.map(by), results)))
    }

    fn product(&self, result: Tensor, x: &Tensor, w: &Matrix, bias: Option<&[f32]>, tokens: usize) -> Tensor {
        // Only bitnet.cpp's kernels multiply ternary weights with integer codes.
        let of_ternary = if self.profiles[0].operands == Operands::Whole { w.cols } else { 1 };
        let terms =
            if is_ternary(w.dtype) { Some(of_ternary) } else { w.group_len().map(|group| w.cols / group) };
        let is_of_integers = match terms {
            Some(_) if is_ternary(w.dtype) => self.numerics.native_types().contains(&w.dtype),
            Some(_) => self.numerics.native_types().contains(&DType::INT8_GROUPS),
            None => false,
        };
        if let Some(terms) = terms.filter(|_| is_of_integers) {
            return self.by(
                result.clone(),
                Integers { x: x.clone(), w: w.clone(), factor: None, products: result, terms },
            );
        }
        let (x, w, bias) = (x.clone(), w.clone(), bias.map(<[f32]>::to_vec));
        let results = result.data().len();
        let stage = Linear { x, w, bias };
        result.computed_by(Arc::new(Node::new(stage, self.of_pass(tokens), results)))
    }

    /// Returns the rounding profiles for a pass. bitnet.cpp rounds passes of one token differently.
    fn of_pass(&self, tokens: usize) -> [Profile; 2] {
        self.profiles.map(|profile| match profile.operands {
            Operands::GgmlButF16 if tokens == 1 => Profile { operands: Operands::Ggml, ..profile },
            _ => profile,
        })
    }
}

/// Largest number of passes through which a recurrent state is traced back to the last recorded one. Without this
/// limit, the time of a run would grow with the square of the number of passes.
const MOST_PASSES: usize = 64;

/// Returns a recurrent state that is `passes` passes after the last recorded one. From [`MOST_PASSES`] passes on,
/// the state is evaluated, and later passes start from its values and error bounds.
fn settled(state: &Tensor, passes: usize) -> Tensor {
    if passes < MOST_PASSES {
        return state.clone();
    }
    let known = exact::known(state);
    exact::within(state.clone(), |flat| (known[flat].value, known[flat].radius))
}

/// Returns the number of passes of Mamba-2 after the last recorded state.
fn scanned_passes(state: &Tensor) -> usize {
    let node = |state: &Tensor| match state.origins() {
        [whole] => node_of(whole).filter(|node| node.operation::<ScanState>().is_some()),
        _ => None,
    };
    let before = |at: &Arc<Node>| node(&at.operation::<ScanState>()?.0.before);
    successors(node(state), before).count()
}

impl Numerics for TracedNumerics<'_> {
    delegate!(
        numerics: cache_transform, name, weight_types, native_types, activation_type, adds_rows_alike, recurs_alike, rope_table, cache_type, likelihoods, scores_of_logits
    );

    fn embed(&self, table: &Matrix, tokens: &[u32]) -> Tensor {
        let stage = EmbeddingLookup { table: table.clone(), tokens: tokens.to_vec() };
        self.by(self.numerics.embed(table, tokens), stage)
    }

    fn scale(&self, x: &Tensor, by: Multiplier) -> Tensor {
        self.by(self.numerics.scale(x, by), Scaling { x: x.clone(), by })
    }

    fn rms_norm(&self, x: &Tensor, norm: &RmsNorm) -> Tensor {
        let stage = RmsNormalisation { x: x.clone(), norm: norm.clone() };
        self.rounding(self.numerics.rms_norm(x, norm), stage, |profile| match norm.gain {
            Gain::WeightFirst => Profile { normed: Float::F32, ..profile },
            _ => profile,
        })
    }

    fn layer_norm(&self, x: &Tensor, norm: &LayerNorm) -> Tensor {
        self.by(self.numerics.layer_norm(x, norm), LayerNormalisation { x: x.clone(), norm: norm.clone() })
    }

    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.product(self.numerics.linear(x, w), x, w, None, x.rows())
    }

    fn linear_of_pass(&self, x: &Tensor, w: &Matrix, bias: Option<&[f32]>, tokens: usize) -> Tensor {
        self.product(self.numerics.linear_of_pass(x, w, bias, tokens), x, w, bias, tokens)
    }

    fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor {
        self.product(self.numerics.affine(x, w, bias), x, w, Some(bias), x.rows())
    }

    fn bit_linear(&self, x: &Tensor, w: &Matrix, factor: Option<Factor>) -> Tensor {
        let products = self.numerics.bit_linear(x, w, factor);
        match factor {
            None => self.product(products, x, w, None, x.rows()),
            Some(_) => {
                // Codes that are divided by their scale before the sum are not integers in the sum.
                let terms = if matches!(factor, Some(Factor::Divides(_))) { 1 } else { w.cols };
                let (x, w) = (x.clone(), w.clone());
                self.by(products.clone(), Integers { x, w, factor, products, terms })
            }
        }
    }

    fn rotate(&self, x: &Tensor, table: &RopeTable) -> Tensor {
        let stage = Rotary { x: x.clone(), rope: table.rope().clone(), positions: table.positions() };
        self.rounding(self.numerics.rotate(x, table), stage, |profile| match table.rope().rounding {
            RopeRounding::Each => profile,
            RopeRounding::Tables => Profile { rotated: Float::F32, ..profile },
            RopeRounding::Results => Profile { cos_sin: Float::F32, rotated: Float::F32, ..profile },
        })
    }

    fn rearranged(
        &self,
        tensors: &[&Tensor],
        shape: &[usize],
        from: &dyn Fn(usize) -> (usize, usize),
    ) -> Tensor {
        self.gathered(tensors, shape, from)
    }

    fn hadamard(&self, x: &Tensor, len: usize) -> Tensor {
        self.by(self.numerics.hadamard(x, len), HadamardTransform { x: x.clone(), len })
    }

    fn to_cache(&self, x: Tensor) -> Tensor {
        let kept = self.numerics.to_cache(x.clone());
        match Float::of(self.numerics.cache_type()) {
            Some(cache) => self.by(kept, CachedRows { x, cache }),
            None => self.by(kept, CachedCodes { x, cache: self.numerics.cache_type() }),
        }
    }

    fn to_scaled_cache(&self, x: Tensor, scales: &[f32]) -> Tensor {
        let kept = self.numerics.to_scaled_cache(x.clone(), scales);
        self.by(kept, ScaledRows { x, scales: scales.into() })
    }

    fn scores(&self, q: &Tensor, k: &Tensor, scale: AttentionScale) -> Tensor {
        let stage = Scores { q: q.clone(), k: k.clone(), scale, cache: self.numerics.cache_type() };
        self.by(self.numerics.scores(q, k, scale), stage)
    }

    fn softmax(&self, scores: &Tensor, mask: Mask) -> Tensor {
        self.by(self.numerics.softmax(scores, mask), Softmax { scores: scores.clone(), mask, sinks: None })
    }

    fn softmax_with_sinks(&self, scores: &Tensor, mask: Mask, sinks: &[f32]) -> Tensor {
        let stage = Softmax { scores: scores.clone(), mask, sinks: Some(sinks.to_vec()) };
        self.by(self.numerics.softmax_with_sinks(scores, mask, sinks), stage)
    }

    fn add_alibi(&self, scores: &Tensor, slopes: &[f32], mask: Mask) -> Tensor {
        let stage = BiasedScores { scores: scores.clone(), slopes: slopes.to_vec(), position: mask.position };
        self.by(self.numerics.add_alibi(scores, slopes, mask), stage)
    }

    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor {
        let stage = AttentionContext { weights: weights.clone(), v: v.clone() };
        self.by(self.numerics.context(weights, v), stage)
    }

    fn activation(&self, x: &Tensor, activation: Activation) -> Tensor {
        let stage = Nonlinearity { x: x.clone(), up: None, activation };
        self.by(self.numerics.activation(x, activation), stage)
    }

    fn gated(&self, gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor {
        let stage = Nonlinearity { x: gate.clone(), up: Some(up.clone()), activation };
        self.by(self.numerics.gated(gate, up, activation), stage)
    }

    fn clamped_glu(&self, gate: &Tensor, up: &Tensor, glu: ClampedGlu) -> Tensor {
        let stage = ClampedGating { gate: gate.clone(), up: up.clone(), glu };
        self.by(self.numerics.clamped_glu(gate, up, glu), stage)
    }

    fn router_logits(&self, x: &Tensor, w: &Matrix, precision: RouterPrecision) -> Tensor {
        let made = self.numerics.router_logits(x, w, precision);
        let stage = Linear { x: x.clone(), w: w.clone(), bias: None };
        match precision {
            RouterPrecision::Activations => self.product(made, x, w, None, x.rows()),
            RouterPrecision::Unrounded => {
                self.rounding(made, stage, |profile| Profile { results: Float::F32, ..profile })
            }
            RouterPrecision::Whole => self.rounding(made, stage, |profile| match profile.operands {
                Operands::Whole => Profile { results: Float::F32, weights: Float::F32, ..profile },
                _ => profile,
            }),
        }
    }

    fn expert_scores(&self, logits: &Tensor, routing: &ExpertRouting) -> Tensor {
        let stage = ExpertScores { logits: logits.clone(), routing: routing.clone() };
        self.by(self.numerics.expert_scores(logits, routing), stage)
    }

    fn choose(&self, scores: &Tensor, routing: &ExpertRouting) -> Tensor {
        let stage = ExpertChoice { scores: scores.clone(), routing: routing.clone() };
        self.by(self.numerics.choose(scores, routing), stage)
    }

    fn expert_weights(&self, logits: &Tensor, chosen: &Tensor, routing: &ExpertRouting) -> Tensor {
        let stage =
            ExpertWeights { logits: logits.clone(), chosen: chosen.clone(), routing: routing.clone() };
        let made = self.numerics.expert_weights(logits, chosen, routing);
        self.rounding(made, stage, |profile| match routing.is_rounded {
            true => Profile { expert_weights: profile.results, ..profile },
            false => profile,
        })
    }

    fn routed(&self, x: &Tensor, w: &[Matrix], chosen: &Tensor) -> Tensor {
        let stage = ExpertProducts { x: x.clone(), w: w.to_vec(), chosen: chosen.clone() };
        self.by(self.numerics.routed(x, w, chosen), stage)
    }

    fn mix(&self, outputs: &Tensor, weights: &Tensor, scores: &Tensor, is_whole: bool) -> Tensor {
        let [outputs, weights, scores] = [outputs, weights, scores].map(Tensor::clone);
        let made = self.numerics.mix(&outputs, &weights, &scores, is_whole);
        self.by(made, ExpertMixture { outputs, weights, scores, is_whole })
    }

    fn shared_weights(&self, logits: &Tensor) -> Tensor {
        let stage = Nonlinearity { x: logits.clone(), up: None, activation: Activation::Sigmoid };
        self.by(self.numerics.shared_weights(logits), stage)
    }

    fn add_shared(&self, routed: &Tensor, outputs: &Tensor, weights: Option<&Tensor>) -> Tensor {
        let (routed, outputs, weights) = (routed.clone(), outputs.clone(), weights.cloned());
        let made = self.numerics.add_shared(&routed, &outputs, weights.as_ref());
        self.by(made, SharedSum { routed, outputs, weights })
    }

    fn row_scaled(&self, x: &Tensor, factors: &Tensor) -> Tensor {
        let stage = RowProduct { x: x.clone(), factors: factors.clone(), temperature: None };
        self.by(self.numerics.row_scaled(x, factors), stage)
    }

    fn tempered(&self, q: &Tensor, temperature: &QueryTemperature, positions: Range<usize>) -> Tensor {
        let made = self.numerics.tempered(q, temperature, positions.clone());
        let factors = temperature.factors(positions.clone());
        self.by(made, RowProduct { x: q.clone(), factors, temperature: Some((*temperature, positions)) })
    }

    fn mix_streams(&self, streams: &Tensor, coefs: &Tensor) -> Tensor {
        let stage = StreamMix { streams: streams.clone(), coefs: coefs.clone() };
        self.by(self.numerics.mix_streams(streams, coefs), stage)
    }

    fn match_magnitude(&self, x: &Tensor, like: &Tensor) -> Tensor {
        let stage = MagnitudeMatch { x: x.clone(), like: like.clone() };
        self.by(self.numerics.match_magnitude(x, like), stage)
    }

    fn mean_of_streams(&self, streams: &Tensor, count: usize) -> Tensor {
        let stage = StreamMean { streams: streams.clone(), count };
        self.by(self.numerics.mean_of_streams(streams, count), stage)
    }

    fn sparse_gate(&self, gate: &Tensor, sparsity: GateSparsity) -> Tensor {
        let stage = SparseGating { gate: gate.clone(), sparsity };
        self.by(self.numerics.sparse_gate(gate, sparsity), stage)
    }

    fn short_convolution(&self, x: &Tensor, conv: &ShortConvolution) -> Tensor {
        let stage = Convolution { x: x.clone(), conv: conv.clone() };
        self.by(self.numerics.short_convolution(x, conv), stage)
    }

    fn l2_norm(&self, x: &Tensor, norm: L2Norm) -> Tensor {
        self.by(self.numerics.l2_norm(x, norm), L2Normalisation { x: x.clone(), norm })
    }

    fn decay(&self, a: &Tensor, rates: &DecayRates) -> Tensor {
        self.by(self.numerics.decay(a, rates), Decay { a: a.clone(), rates: rates.clone() })
    }

    fn delta_rule(&self, tokens: &DeltaTokens, state: &Tensor) -> [Tensor; 2] {
        let state = &settled(state, DeltaHistory::passes_before(state));
        let history = Arc::new(DeltaHistory::of(tokens, state));
        let [state, out] = self.numerics.delta_rule(tokens, state);
        [self.by(state, DeltaState(history.clone())), self.by(out, DeltaOutput(history))]
    }

    fn silu_gated(&self, normed: &Tensor, gate: &Tensor) -> Tensor {
        let stage = Nonlinearity { x: gate.clone(), up: Some(normed.clone()), activation: Activation::Silu };
        let activated = |profile| Profile { activated: Float::F32, activation_chain: false, ..profile };
        self.rounding(self.numerics.silu_gated(normed, gate), stage, activated)
    }

    fn gated_by_part(&self, projected: &Tensor, part: usize, x: &Tensor) -> Tensor {
        let stage = GatedProduct { projected: projected.clone(), part, x: x.clone() };
        self.by(self.numerics.gated_by_part(projected, part, x), stage)
    }

    fn step_sizes(&self, dt: &Tensor, rule: &StepRule, is_single: bool) -> Tensor {
        let stage = StepSizes { dt: dt.clone(), rule: rule.clone(), is_single };
        self.by(self.numerics.step_sizes(dt, rule, is_single), stage)
    }

    fn recurrence(
        &self,
        x: &Tensor,
        steps: &Tensor,
        before: &Tensor,
        space: &StateSpace,
        is_single: bool,
    ) -> [Tensor; 2] {
        let before = settled(before, scanned_passes(before));
        let [out, after] = self.numerics.recurrence(x, steps, &before, space, is_single);
        let (x, steps, space) = (x.clone(), steps.clone(), space.clone());
        let scan = Arc::new(Scan { x, steps, before, space, is_single });
        [self.by(out, ScanOutput(scan.clone())), self.by(after, ScanState(scan))]
    }

    /// Norms a gated output. The gated output is not rounded, and transformers rounds a normed row only for a single
    /// token.
    fn gated_norm(&self, gate: &Tensor, x: &Tensor, norm: &RmsNorm, is_single: bool) -> Tensor {
        let made = self.numerics.gated_norm(gate, x, norm, is_single);
        let inside = Nonlinearity { x: gate.clone(), up: Some(x.clone()), activation: Activation::Silu };
        let whole = |profile| Profile { results: Float::F32, activated: Float::F32, ..profile };
        let gated = self.rounding(F32.gated(gate, x, Activation::Silu), inside, whole);
        self.rounding(made, RmsNormalisation { x: gated, norm: norm.clone() }, |profile| match is_single {
            true => profile,
            false => Profile { normed: Float::F32, ..profile },
        })
    }

    fn add(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let [x, y] = [a, b].map(|x| unrounded_origin::without_sums(x.clone()));
        self.by(self.numerics.add(a, b), Addition { a: x, b: y })
    }

    fn add_halves(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let stage = Addition { a: a.clone(), b: b.clone() };
        self.rounding(self.numerics.add_halves(a, b), stage, |profile| Profile {
            wide_stream: false,
            ..profile
        })
    }

    /// Returns the last row of recorded logits, with an origin that keeps all rows.
    fn last_row(&self, logits: &Tensor) -> Tensor {
        let last = logits.last_row();
        if is_given(logits) { self.by(last, LastRow { logits: logits.clone() }) } else { last }
    }

    fn probabilities(&self, logits: &Tensor, temperature: f32) -> Tensor {
        let stage = Probabilities { logits: logits.clone(), temperature };
        self.by(self.numerics.probabilities(logits, temperature), stage)
    }

    fn log_probabilities(&self, logits: &Tensor, picks: &Picks, temperature: f32) -> Tensor {
        let stage = LogProbabilities { logits: logits.clone(), picks: picks.clone(), temperature };
        self.by(self.numerics.log_probabilities(logits, picks, temperature), stage)
    }
}
