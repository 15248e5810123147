//! Exact evaluation of a sparse gate.

use crate::exact::dot::{average, dot};
use crate::exact::input::{InputTensor, InputValues};
use crate::exact::operation::per_row;
use crate::exact::value::{K, U, both};
use crate::exact::{Choice, ExactValue, Float, Operation, Profile};
use crate::ops::sparse_gate::GateSparsity;
use crate::tensor::Tensor;

/// Largest relative error of a library's normal quantile, in half units in the last place: llama.cpp's constant is
/// two units below torch's value.
const QUANTILE: f64 = 4.0;

/// Sparse gate along the last axis.
pub(crate) struct SparseGating {
    /// `[T, F]`
    pub(crate) gate: Tensor,
    /// Threshold.
    pub(crate) sparsity: GateSparsity,
}

impl Operation for SparseGating {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let short = if profile.activation_chain { Float::F32 } else { profile.results };
        let (gate, width) = (InputTensor::of(&self.gate, profile), self.gate.row_len());
        per_row(wanted, width, |flats, exacts| {
            let first = flats[0] / width * width;
            let row = gate.part(first, width);
            let threshold = self.threshold(&row, short);
            exacts.extend(flats.iter().map(|&flat| above(row.get(flat - first), threshold)));
        })
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::ActivationChain]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.gate]
    }

    /// Returns how many values share an error: all values of a row share the error of the threshold.
    fn dependence(&self) -> f64 {
        self.gate.row_len() as f64
    }
}

impl SparseGating {
    /// Evaluates the threshold of a row.
    fn threshold(&self, row: &InputValues, short: Float) -> ExactValue {
        let mean = average(row);
        // An error of the mean changes the sum of squared deviations by its square alone.
        let deviations = row.map(|x| {
            let value = x.value - mean.value;
            ExactValue { value, ..x }.moved(K * U * value.abs(), U * value.abs())
        });
        let squares = dot(&deviations, &deviations);
        let lost = row.len() as f64 * mean.radius * mean.radius;
        let variance = squares.moved(lost, lost);
        let divisor = f64::from(self.sparsity.divisor(row.len()));
        let value = variance.value / divisor;
        let variance = variance.through(value, 1.0 / divisor).moved(2.0 * K * U * value, 2.0 * U * value);
        let quantile = f64::from(self.sparsity.quantile);
        let quantile = ExactValue::bounded(quantile, QUANTILE * U * quantile.abs()).rounded(short);
        let distance = variance.root().rounded(short).times(quantile).rounded(short);
        sum(mean.rounded(short), distance).rounded(short)
    }
}

fn sum(a: ExactValue, b: ExactValue) -> ExactValue {
    let value = a.value + b.value;
    ExactValue { value, sigma: both(a.sigma, b.sigma), radius: a.radius + b.radius }
        .moved(K * U * value.abs(), U * value.abs())
}

/// Evaluates the part of a value that is above a threshold. It is zero for a value that is certainly below.
fn above(x: ExactValue, threshold: ExactValue) -> ExactValue {
    let rest = sum(x, ExactValue { value: -threshold.value, ..threshold });
    match rest.value + rest.radius <= 0.0 {
        true => ExactValue::default(),
        false if rest.value < 0.0 => ExactValue::bounded(0.0, rest.value + rest.radius),
        false => rest,
    }
}
