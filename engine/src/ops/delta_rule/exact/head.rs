//! Evaluates one head of a gated delta rule in `f64`, with the rounding errors of each step.

use crate::exact::input::{InputTensor, InputValues};
use crate::exact::value::{K, U};
use crate::exact::{ExactValue, Profile};
use crate::ops::delta_rule::exact::chunk::Chunk;
use crate::ops::delta_rule::exact::inputs::{KnownPass, TokenInputs, dot, sizes};

/// One token's step of the recurrence. It multiplies the state by exp(g) · (I - β k kᵀ) and adds β v kᵀ. Each
/// vector of errors has one entry per value dimension.
struct DeltaStep {
    decay: f64,
    beta: f64,
    q: Vec<f64>,
    k: Vec<f64>,
    /// β·v, one entry per value dimension. It does not depend on the earlier state.
    written: Vec<f64>,
    /// Variance of the error of the update β(v - S·k). The key multiplies this error.
    error_along_key: Vec<f64>,
    /// Largest variance of an element's rounding error, for each row of the state.
    rounding_variance: Vec<f64>,
    /// Variances of the relative errors that the decay causes in the state before the token and after it.
    decay_variances: [f64; 2],
    /// S·q: output before the scale.
    raw_output: Vec<f64>,
    /// Output, with the rounding errors of S·q and of the scale only.
    output: Vec<ExactValue>,
}

/// A head after all tokens.
pub(super) struct HeadRun {
    steps: Vec<DeltaStep>,
    /// Index of the first token of the latest pass.
    first: usize,
    /// `[Dv][Dk]`
    state: Vec<Vec<f64>>,
    /// Largest variance of an element's error, for each row of the initial state.
    initial: Vec<f64>,
    /// Factor of outputs, 1 / √Dk.
    scale: f64,
}

impl HeadRun {
    pub(super) fn of(passes: &[KnownPass], initial: &InputTensor, head: usize, profile: &Profile) -> Self {
        let [keys, values] = passes.first().map_or([1, 0], |pass| pass.tokens.widths());
        let rows: Vec<InputValues> =
            (0..values).map(|row| initial.part((head * values + row) * keys, keys)).collect();
        let largest = |doubt: &[f64]| doubt.iter().fold(0.0f64, |most, sigma| most.max(sigma * sigma));
        let mut run = Self {
            steps: Vec::new(),
            first: 0,
            initial: rows.iter().map(|row| row.doubt.as_ref().map_or(0.0, |of| largest(&of.sigma))).collect(),
            state: rows.into_iter().map(|row| row.values).collect(),
            scale: 1.0 / (keys as f64).sqrt(),
        };
        for pass in passes {
            run.first = run.steps.len();
            let mut chunk = Chunk::new(profile);
            for token in 0..pass.tokens.len() {
                let inputs = pass.token(token, head);
                chunk.enter(&inputs, &run.state);
                let is_last = token + 1 == pass.tokens.len() || chunk.is_whole();
                // Errors of g and of the exponential change the state before the token. Errors of sums of g in a chunk
                // change the state at the end of the chunk.
                let before = inputs.decay.sigma.powi(2) + (profile.library_ulps * U).powi(2);
                let after = if is_last { chunk.of_decay() } else { 0.0 };
                let step = DeltaStep { decay_variances: [before, after], ..run.step(&inputs, &mut chunk) };
                run.steps.push(step);
            }
        }
        run
    }

    /// Updates the state by a token.
    fn step(&mut self, token: &TokenInputs, chunk: &mut Chunk) -> DeltaStep {
        let (q, k) = (&token.q.values, &token.k.values);
        let decay = token.decay.value.exp();
        let of_key: f64 = token.k.doubt.iter().flat_map(|doubt| &doubt.sigma).map(|s| s * s).sum();
        let worst_key = token.k.doubt.iter().flat_map(|doubt| &doubt.sigma).fold(0.0f64, |a, s| a.max(s * s));
        let n = k.len() as f64;
        let (unit, beta) = ((K * U).powi(2), token.beta);
        let mut step = DeltaStep {
            decay,
            beta: beta.value,
            q: q.clone(),
            k: k.clone(),
            written: Vec::with_capacity(self.state.len()),
            decay_variances: [0.0; 2],
            raw_output: Vec::with_capacity(self.state.len()),
            error_along_key: Vec::with_capacity(self.state.len()),
            rounding_variance: Vec::with_capacity(self.state.len()),
            output: Vec::with_capacity(self.state.len()),
        };
        for (column, row) in self.state.iter_mut().enumerate() {
            row.iter_mut().for_each(|s| *s *= decay);
            let (recalled, recalled_squares) = dot(row, k);
            let [before, _] = sizes(row);
            let v = token.v.get(column);
            let difference = v.value - recalled;
            let update = beta.value * difference;
            row.iter_mut().zip(k).for_each(|(s, k)| *s += update * k);
            let [after, _] = sizes(row);
            let (raw_output, raw_squares) = dot(row, q);
            let of_sum = unit * ((n / 2.0 + 1.0) * recalled_squares + (n / 3.0 + 1.0) * recalled * recalled);
            let difference_variance =
                of_sum + unit * difference * difference + v.sigma.powi(2) + before * of_key;
            let along = beta.value.powi(2) * difference_variance
                + unit * update * update
                + (difference * beta.sigma).powi(2)
                + chunk.update(column, v.value);
            let added = update * update * (unit * chunk.terms() + worst_key);
            let value = self.scale * raw_output;
            let of_query: f64 = match &token.q.doubt {
                Some(doubt) => row.iter().zip(&doubt.sigma).map(|(s, sigma)| (s * sigma).powi(2)).sum(),
                None => 0.0,
            };
            let own =
                unit * ((n / 2.0 + 2.0) * raw_squares + (n / 3.0 + 1.0) * raw_output * raw_output) + of_query;
            let own = self.scale.powi(2) * (own + chunk.output(column, update)) + 2.0 * unit * value * value;
            step.error_along_key.push(along);
            step.rounding_variance.push(unit * (before + after) + added);
            step.written.push(beta.value * v.value);
            step.raw_output.push(raw_output);
            step.output.push(ExactValue::statistical(value, own.sqrt()));
        }
        step
    }

    /// Returns the outputs of the latest pass, `[T][Dv]`.
    pub(super) fn outputs(&self) -> Vec<Vec<ExactValue>> {
        (self.first..self.steps.len()).map(|token| self.output(token)).collect()
    }

    /// Returns a token's outputs, `[Dv]`, with the errors of the state.
    fn output(&self, token: usize) -> Vec<ExactValue> {
        /// Squared weight below which the errors of earlier tokens are neglected.
        const FORGOTTEN: f64 = 1e-12;
        let mut weight = self.steps[token].q.clone();
        let mut variances = vec![0.0; self.state.len()];
        let mut length: f64 = weight.iter().map(|w| w * w).sum();
        // Part of each output that comes from the state after a token, then from the state before it.
        let mut shares = self.steps[token].raw_output.clone();
        for (at, step) in self.steps[..=token].iter().enumerate().rev() {
            let (along, _) = dot(&weight, &step.k);
            let [before, after] = step.decay_variances;
            let after = if at == token { 0.0 } else { after };
            for (column, (variance, share)) in variances.iter_mut().zip(&mut shares).enumerate() {
                *variance +=
                    along * along * step.error_along_key[column] + length * step.rounding_variance[column];
                *variance += after * *share * *share;
                *share -= along * step.written[column];
                *variance += before * *share * *share;
            }
            let taken = step.beta * along;
            weight.iter_mut().zip(&step.k).for_each(|(w, k)| *w = step.decay * (*w - taken * k));
            length = weight.iter().map(|w| w * w).sum();
            if length < FORGOTTEN * U {
                break;
            }
        }
        let with = |(output, (variance, initial)): (&ExactValue, (f64, &f64))| {
            let sigma = self.scale * (variance + length * initial).sqrt();
            ExactValue::statistical(output.value, (output.sigma.powi(2) + sigma * sigma).sqrt())
        };
        self.steps[token].output.iter().zip(variances.into_iter().zip(&self.initial)).map(with).collect()
    }

    /// Returns the state after the latest pass: `[Dv][Dk]`.
    pub(super) fn state(&self) -> Vec<Vec<ExactValue>> {
        let mut rounding_variance = self.initial.clone();
        let mut keys: Vec<Vec<f64>> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            for key in &mut keys {
                let taken = step.beta * dot(key, &step.k).0;
                key.iter_mut().zip(&step.k).for_each(|(p, k)| *p = step.decay * (*p - taken * k));
            }
            keys.push(step.k.clone());
            let decay = step.decay.powi(2);
            rounding_variance
                .iter_mut()
                .zip(&step.rounding_variance)
                .for_each(|(sum, new)| *sum = decay * *sum + new);
        }
        let of_row = |(row, (values, rounding_variance)): (usize, (&Vec<f64>, &f64))| {
            let of_element = |(at, &value): (usize, &f64)| {
                let (mut variance, mut share) = (*rounding_variance, value);
                for (step, key) in self.steps.iter().zip(&keys).rev() {
                    let [before, after] = step.decay_variances;
                    variance += key[at].powi(2) * step.error_along_key[row] + after * share * share;
                    share -= key[at] * step.written[row];
                    variance += before * share * share;
                }
                ExactValue::statistical(value, variance.sqrt())
            };
            values.iter().enumerate().map(of_element).collect()
        };
        self.state.iter().zip(&rounding_variance).enumerate().map(of_row).collect()
    }
}
