//! Exact evaluation of Mamba-2's steps and recurrence.
//!
//! Engines add in several orders. The recurrent form adds the tokens' terms into the state, then the columns in the
//! product with C. The chunked form adds columns in products of B and C, then tokens. The bounds hold for any order
//! of the terms of all tokens and columns. A chunked engine adds exponents before it takes the exponential, which
//! loses digits.
//!
//! Errors of decays add up linearly over tokens, because equal tokens have equal steps and so the same rounding
//! error. A bound that assumes independent errors would be too small for correct engines.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::exact::input::InputTensor;
use crate::exact::operation::per_row;
use crate::exact::value::{K, LAMBDA, U};
use crate::exact::{ExactValue, Float, FusedResults, Operation, Profile};
use crate::exponential::exp;
use crate::ops::state_space::{StateSpace, StepRule};
use crate::parallel;
use crate::tensor::Tensor;

/// Step sizes of each head and token: `softplus(dt + bias)`, `[T, H]`.
pub(crate) struct StepSizes {
    /// `[T, H]`
    pub(crate) dt: Tensor,
    /// Bias and limits.
    pub(crate) rule: StepRule,
    /// True for single-token decode, in which transformers applies no limits.
    pub(crate) is_single: bool,
}

impl StepSizes {
    /// Applies the limits. If only some engines apply them, the result covers both values.
    fn limited(&self, step: ExactValue) -> ExactValue {
        let Some(limits) = self.rule.limits else { return step };
        let [least, most] = limits.range.map(f64::from);
        let limited = match step.value.max(least).min(most) {
            value if value == step.value => step,
            value => ExactValue::bounded(value, step.radius),
        };
        if limits.is_optional || self.is_single { step.or(limited) } else { limited }
    }
}

impl Operation for StepSizes {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let dt = InputTensor::of(&self.dt, profile);
        let one = |&flat: &usize| {
            let bias = profile.weights.round(self.rule.bias[flat % self.rule.bias.len()].into());
            let sum = dt.get(flat).plus(bias);
            let sum = match profile.fused {
                FusedResults::Nothing => sum.rounded(profile.results),
                _ => sum.or(sum.rounded(profile.results)),
            };
            let (x, distance) = (sum.value, exp(-sum.value.abs()));
            let (value, slope) = (x.max(0.0) + distance.ln_1p(), 1.0 / (1.0 + exp(-x)));
            // An engine may add 1 to the exponential before it takes the logarithm, which loses digits of small values.
            let library = U * ((2.0 * profile.library_ulps + 1.0) * (value + slope) + 1.0);
            self.limited(sum.through(value, slope).moved(library / 2.0, library))
        };
        per_row(wanted, self.rule.bias.len(), |flats, exacts| exacts.extend(flats.iter().map(one)))
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.dt]
    }
}

/// Recurrence over the tokens of a pass.
#[derive(Clone)]
pub(crate) struct Scan {
    /// x of all heads, B and C: `[T, H·P + 2·G·N]`.
    pub(crate) x: Tensor,
    /// `[T, H]`
    pub(crate) steps: Tensor,
    /// Recurrent state before the pass, `[H, P, N]`.
    pub(crate) before: Tensor,
    /// Sizes and weights.
    pub(crate) space: StateSpace,
    /// True for single-token decode. transformers computes it with other code, which rounds products to the type of
    /// activations.
    pub(crate) is_single: bool,
}

/// Outputs of a recurrence: `[T, H·P]`.
pub(crate) struct ScanOutput(pub(crate) Arc<Scan>);

/// Recurrent state after a pass: `[H, P, N]`.
pub(crate) struct ScanState(pub(crate) Arc<Scan>);

/// Largest number of tokens whose exponents an engine adds.
const CHUNK: usize = 256;

/// Inputs of a recurrence with their errors.
struct ScanInputs<'s> {
    x: InputTensor<'s>,
    steps: InputTensor<'s>,
    before: InputTensor<'s>,
    /// Decay exp(Δ · A) of each head and token, with its error.
    decays: Vec<ExactValue>,
}

/// Row of the recurrent state after a token.
struct StateRow {
    /// Values of the row, with their systematic errors.
    values: Vec<ExactValue>,
    /// Sums of the squares of the terms of each value.
    squares: Vec<f64>,
    /// Number of terms of each value.
    terms: usize,
}

impl Scan {
    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x, &self.steps, &self.before]
    }

    fn evaluated(&self, profile: &Profile) -> ScanInputs<'_> {
        let of = |tensor| InputTensor::of(tensor, profile);
        let (steps, heads) = (of(&self.steps), self.space.heads());
        let rates: Vec<f64> =
            self.space.decay.iter().map(|&decay| self.rate(decay.into(), profile)).collect();
        let count = self.steps.data().len();
        // Running sums of each head's exponents over the tokens.
        let mut sums = vec![0.0; count + heads];
        for flat in 0..count {
            sums[flat + heads] = sums[flat] + steps.get(flat).value * rates[flat % heads];
        }
        let decay = |flat: usize| {
            let (head, rate, first) =
                (flat % heads, rates[flat % heads], (flat / heads + 1).saturating_sub(CHUNK));
            let exponent = steps.get(flat).value * rate;
            let (value, added) = (exp(exponent), (sums[flat + heads] - sums[first * heads + head]).abs());
            // A is the result of an exponential, so the exponent has its error too.
            let library = (2.0 * profile.library_ulps + 1.0) * (1.0 + exponent.abs());
            let error = U * (added + library + 1.0) * value;
            steps.get(flat).through(value, rate * value).moved(error / 2.0, error)
        };
        let decays = (0..count).map(decay).collect();
        ScanInputs { x: of(&self.x), before: of(&self.before), steps, decays }
    }

    /// Returns the coefficient A of a head's recurrence.
    fn rate(&self, decay: f64, profile: &Profile) -> f64 {
        if self.space.is_log { -exp(profile.weights.round(decay)) } else { decay }
    }

    /// Returns the largest relative rounding error of a product.
    fn unit(&self, profile: &Profile) -> f64 {
        if self.is_single { profile.decode_products.unit() } else { U }
    }

    /// Returns B (`part` 0) or C (`part` 1) of a token and head, as a function of the column.
    fn shared<'i>(
        &self,
        inputs: &'i ScanInputs,
        (token, head): (usize, usize),
        part: usize,
    ) -> impl Fn(usize) -> ExactValue + 'i {
        let first = token * self.x.row_len() + self.space.first_shared(head, part);
        move |column| inputs.x.get(first + column)
    }

    /// Runs the recurrence for one row of the state, and calls `seen` after each token.
    fn run(
        &self,
        inputs: &ScanInputs,
        (row, tokens): (usize, usize),
        unit: f64,
        mut seen: impl FnMut(usize, &StateRow),
    ) -> StateRow {
        let (columns, heads, head) = (self.space.columns, self.space.heads(), row / self.space.head_dim);
        let values: Vec<ExactValue> = (0..columns).map(|at| inputs.before.get(row * columns + at)).collect();
        let squares = values.iter().map(|value| value.value.powi(2)).collect();
        let mut state = StateRow { values, squares, terms: 1 };
        for token in 0..tokens {
            let (step, decay) = (inputs.steps.get(token * heads + head), inputs.decays[token * heads + head]);
            let (x, b) =
                (inputs.x.get(token * self.x.row_len() + row), self.shared(inputs, (token, head), 0));
            let x = x.times(step);
            for (at, value) in state.values.iter_mut().enumerate() {
                let (kept, term) = (value.times(decay), x.times(b(at)));
                let error = 2.0 * unit * term.value.abs();
                let sigma = kept.sigma.hypot(term.sigma);
                *value =
                    ExactValue { value: kept.value + term.value, sigma, radius: kept.radius + term.radius }
                        .moved(K * error, error);
                state.squares[at] = state.squares[at] * decay.value.powi(2) + term.value.powi(2);
            }
            state.terms += 1;
            seen(token, &state);
        }
        state
    }

    /// Multiplies a row of the state by C, and adds D · x.
    fn read(
        &self,
        row: &StateRow,
        c: impl Fn(usize) -> ExactValue,
        skipped: ExactValue,
        unit: f64,
    ) -> ExactValue {
        let (mut sum, mut squares) = (ExactValue::default(), 0.0);
        // Sum and sum of squares of the products' rounding errors.
        let (mut most, mut variance) = (0.0, 0.0);
        for (at, state) in row.values.iter().enumerate() {
            let c = c(at);
            let product = state.times(c);
            let rounding = unit * product.value.abs();
            sum.value += product.value;
            sum.sigma = sum.sigma.hypot(product.sigma);
            sum.radius += product.radius;
            most += rounding;
            variance += (K * rounding).powi(2);
            squares += row.squares[at] * c.value.powi(2);
        }
        let sigma = variance.sqrt();
        let sum = sum.moved(sigma, most.min(LAMBDA * sigma));
        let sum = in_any_order(sum, row.terms * row.values.len(), squares);
        let value = sum.value + skipped.value;
        let rounding = unit * (sum.value.abs() + skipped.value.abs()) + U * value.abs();
        ExactValue { value, sigma: sum.sigma.hypot(skipped.sigma), radius: sum.radius + skipped.radius }
            .moved(K * rounding, rounding)
    }
}

/// Adds the error of a sum of `n` terms in any order, given the sum of their squares.
fn in_any_order(sum: ExactValue, n: usize, squares: f64) -> ExactValue {
    let n = n as f64;
    let sigma = K * U * ((n / 2.0 + 1.0) * squares + (n / 3.0 + 1.0) * sum.value * sum.value).sqrt();
    sum.moved(sigma, LAMBDA * sigma)
}

impl Operation for ScanOutput {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let scan = &self.0;
        let (inputs, unit) = (scan.evaluated(profile), scan.unit(profile));
        let (rows, size) = (scan.space.heads() * scan.space.head_dim, scan.space.head_dim);
        // The wanted tokens of each row of the state.
        let mut tokens: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        wanted.iter().for_each(|flat| tokens.entry(flat % rows).or_default().push(flat / rows));
        let tokens: Vec<(usize, Vec<usize>)> = tokens.into_iter().collect();
        let of_row = |index: usize| {
            let (row, tokens) = &tokens[index];
            let (mut found, last) =
                (Vec::with_capacity(tokens.len()), tokens.last().map_or(0, |last| last + 1));
            scan.run(&inputs, (*row, last), unit, |token, state| {
                if tokens.binary_search(&token).is_ok() {
                    let skip = ExactValue::sure(profile.weights.round(scan.space.skip[row / size].into()));
                    let x = inputs.x.get(token * scan.x.row_len() + row);
                    let read =
                        scan.read(state, scan.shared(&inputs, (token, row / size), 1), skip.times(x), unit);
                    found.push((token * rows + row, read));
                }
            });
            found
        };
        let cost = 8 * scan.x.rows() * scan.space.columns;
        let mut all = parallel::map(tokens.len(), cost, of_row).concat();
        all.sort_unstable_by_key(|(flat, _)| *flat);
        all.into_iter().map(|(_, exact)| exact).collect()
    }

    fn is_light(&self) -> bool {
        false
    }

    fn results(&self, profile: &Profile) -> Float {
        if self.0.is_single { profile.results } else { Float::F32 }
    }

    fn inputs(&self) -> Vec<&Tensor> {
        self.0.inputs()
    }
}

impl Operation for ScanState {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let scan = &self.0;
        let (inputs, unit, columns) = (scan.evaluated(profile), scan.unit(profile), scan.space.columns);
        let rows: Vec<&[usize]> = wanted.chunk_by(|a, b| a / columns == b / columns).collect();
        let of_row = |index: usize| {
            let flats = rows[index];
            let state = scan.run(&inputs, (flats[0] / columns, scan.x.rows()), unit, |_, _| {});
            let one = |flat: &usize| {
                let at = flat % columns;
                in_any_order(state.values[at], state.terms, state.squares[at])
            };
            flats.iter().map(one).collect::<Vec<_>>()
        };
        parallel::map(rows.len(), 8 * scan.x.rows() * columns, of_row).concat()
    }

    fn is_light(&self) -> bool {
        false
    }

    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }

    fn inputs(&self) -> Vec<&Tensor> {
        self.0.inputs()
    }
}
