//! Exact evaluation of AltUp: mixed streams, rescaled magnitudes, and the mean of streams.

use crate::exact::dot::{average, dot};
use crate::exact::input::{InputTensor, InputValues};
use crate::exact::operation::per_row;
use crate::exact::value::{K, U};
use crate::exact::{Choice, ExactValue, Float, Operation, Profile};
use crate::ops::altup::{LEAST_SQUARE, parts};
use crate::tensor::Tensor;

/// Linear combination of AltUp's streams, which are parts of each row.
pub(crate) struct StreamMix {
    /// `[T, n·d]`
    pub(crate) streams: Tensor,
    /// `[T, n·n]`
    pub(crate) coefs: Tensor,
}

impl Operation for StreamMix {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let [streams, coefs] = [&self.streams, &self.coefs].map(|x| InputTensor::of(x, profile));
        let (width, count) = (self.streams.row_len(), parts(&self.coefs));
        let d = width / count;
        per_row(wanted, width, |flats, exacts| {
            let row = flats[0] / width;
            let one = |&flat: &usize| {
                let at = flat % width;
                let values = (0..count).map(|part| streams.get(row * width + part * d + at % d));
                dot(&InputValues::new(values), &coefs.part((row * count + at / d) * count, count))
            };
            exacts.extend(flats.iter().map(one));
        })
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.streams, &self.coefs]
    }
}

/// Rescales the parts of each row of `x` to the magnitude of the row of `like`.
pub(crate) struct MagnitudeMatch {
    /// `[T, k·d]`
    pub(crate) x: Tensor,
    /// `[T, d]`
    pub(crate) like: Tensor,
}

impl Operation for MagnitudeMatch {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let short = if profile.activation_chain { Float::F32 } else { profile.results };
        let [x, like] = [&self.x, &self.like].map(|x| InputTensor::of(x, profile));
        let (width, d) = (self.x.row_len(), self.like.row_len());
        per_row(wanted, d, |flats, exacts| {
            let first = flats[0] / d * d;
            let row = x.part(first, d);
            let target = magnitude(&like.part(first / width * d, d), 0.0, short);
            let inverse = reciprocal(magnitude(&row, LEAST_SQUARE.into(), short));
            let one = |&flat: &usize| row.get(flat - first).times(target).rounded(short).times(inverse);
            exacts.extend(flats.iter().map(one));
        })
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::ActivationChain]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x, &self.like]
    }

    /// Returns how many values share an error: all values of a part share the errors of two magnitudes.
    fn dependence(&self) -> f64 {
        self.like.row_len() as f64
    }
}

/// Returns the root of the mean square, or `least` if that is larger.
fn magnitude(x: &InputValues, least: f64, short: Float) -> ExactValue {
    let squares = x.map(|x| x.times(x).rounded(short));
    let mean = average(&squares).rounded(short);
    let least = ExactValue::sure(least);
    let mean = larger(mean, least.or(least.rounded(short)));
    mean.root().rounded(short)
}

/// Returns the larger of a value and its lower limit, which engines may round.
fn larger(x: ExactValue, least: ExactValue) -> ExactValue {
    let ends = |x: ExactValue| [x.value - x.radius, x.value + x.radius];
    let ([low, high], [least_low, least_high]) = (ends(x), ends(least));
    if low >= least_high {
        return x;
    }
    let (low, high) = (low.max(least_low), high.max(least_high));
    ExactValue::bounded((low + high) / 2.0, (high - low) / 2.0)
}

fn reciprocal(x: ExactValue) -> ExactValue {
    let nearest = x.value - x.radius;
    let slope = if nearest > 0.0 { 1.0 / (x.value * nearest) } else { f64::INFINITY };
    x.through(1.0 / x.value, slope)
}

/// Mean of AltUp's streams, which are parts of each row.
pub(crate) struct StreamMean {
    /// `[T, n·d]`
    pub(crate) streams: Tensor,
    /// Number of parts.
    pub(crate) count: usize,
}

impl Operation for StreamMean {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let streams = InputTensor::of(&self.streams, profile);
        let width = self.streams.row_len();
        let d = width / self.count;
        let one = |&flat: &usize| {
            let values = (0..self.count).map(|part| streams.get(flat / d * width + part * d + flat % d));
            let mean = average(&InputValues::new(values));
            // Engines that multiply by a reciprocal round it, too.
            let again = if self.count.is_power_of_two() { 0.0 } else { U * mean.value.abs() };
            mean.moved(K * again, again)
        };
        wanted.iter().map(one).collect()
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.streams]
    }
}
