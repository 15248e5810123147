//! Exact evaluation of RMSNorm and LayerNorm.
//!
//! The statistics of a row are sums of positive terms. Their rounding error, k·u·(√(n/3)/2 + 1.5) each, is shared by
//! all values of the row. Each value also has one or two independent roundings.

use std::ops::Range;
use std::sync::Arc;

use crate::exact::dot::total;
use crate::exact::input::{InputTensor, InputValues};
use crate::exact::operation::{per_row, rows_around};
use crate::exact::unrounded_origin::UnroundedOrigin;
use crate::exact::value::{K, U, both, lost};
use crate::exact::{Choice, ExactValue, Float, FusedResults, LAMBDA, Operation, Profile, is_given, node_of};
use crate::ops::addition::exact::Addition;
use crate::ops::norm::{Gain, LayerNorm, RmsNorm};
use crate::parallel;
use crate::tensor::{Tensor, ValueOrigin};

/// RMSNorm along the last axis.
pub(crate) struct RmsNormalisation {
    /// Rows, in a tensor with any number of axes.
    pub(crate) x: Tensor,
    /// The weight, epsilon and gain.
    pub(crate) norm: RmsNorm,
}

impl Operation for RmsNormalisation {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let width = self.norm.width();
        let rows = rows_around(wanted, width);
        let (gains, x) = (self.gains(profile), self.read(profile, rows.clone()));
        let before = profile.mean_of_sums.then(|| InputTensor::unrounded(&self.x, profile, rows));
        per_row(wanted, width, |flats, exacts| {
            let first = flats[0] / width * width;
            let inside: Vec<usize> = flats.iter().map(|flat| flat - first).collect();
            let x = x.part(first, width);
            let mean = before.as_ref().map(|before| Mean::of(&before.part(first, width), self.norm.eps));
            let mean = mean.unwrap_or_else(|| Mean::of(&x, self.norm.eps));
            self.row(profile, &gains[first % gains.len()..][..width], (&x, mean), &inside, exacts);
        })
    }

    fn results(&self, profile: &Profile) -> Float {
        let is_short = || self.x.data().iter().all(|&x| profile.results.round(x.into()) == f64::from(x));
        match self.norm.gain {
            // Gemma's norms return to the type of their input.
            Gain::OnePlusWeight | Gain::TwoPlusWeight if profile.wide_stream && is_short() => profile.results,
            _ => profile.stream(),
        }
    }

    fn choices(&self) -> &'static [Choice] {
        match self.norm.gain {
            Gain::Weight | Gain::WeightFirst => &[
                Choice::Normed,
                Choice::WholeNormWeights,
                Choice::NormOfSums,
                Choice::MeanOfSums,
                Choice::ChainedNorms,
                Choice::Chained,
            ],
            Gain::OnePlusWeight | Gain::TwoPlusWeight => &[
                Choice::Gains,
                Choice::GainsAlone,
                Choice::NormOfSums,
                Choice::MeanOfSums,
                Choice::ChainedNorms,
                Choice::Chained,
            ],
        }
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn reads_sum(&self) -> Option<bool> {
        let is_sum = |origin: &ValueOrigin| {
            let node = node_of(origin).filter(|node| node.operation::<Addition>().is_some());
            node.is_some() || UnroundedOrigin::of(origin).is_some()
        };
        Some(!self.x.origins().is_empty() && self.x.origins().iter().all(is_sum))
    }

    fn is_unbiased(&self, profile: &Profile) -> bool {
        // A rounded input may have been any number that rounds to it, above or below with equal probability.
        is_given(&self.x) && (!profile.reads_sums() || profile.stream() != Float::F32)
    }

    fn inherited(&self, profile: &Profile) -> f64 {
        let width = self.norm.width();
        let is_unknown = |origin: &ValueOrigin| {
            let unknown = |before: Arc<UnroundedOrigin>| !matches!(*before, UnroundedOrigin::Of(_));
            UnroundedOrigin::of(origin)
                .is_some_and(|before| profile.fused == FusedResults::All || unknown(before))
        };
        if !profile.reads_sums() || !self.x.origins().iter().any(is_unknown) {
            return 0.0;
        }
        let all = 0..self.x.data().len();
        let x = match profile.mean_of_sums {
            true => InputTensor::unrounded(&self.x, profile, all),
            false => self.read(profile, all),
        };
        let of_row = |row: usize| Mean::of(&x.part(row * width, width), self.norm.eps).inherited;
        (0..self.x.data().len() / width).map(of_row).fold(0.0, f64::max)
    }

    fn shared(&self) -> f64 {
        let width = self.norm.width();
        let of_row = |row: usize| {
            let squares: Vec<f64> =
                self.x.data()[row * width..][..width].iter().map(|&x| f64::from(x) * f64::from(x)).collect();
            lost(squares.iter().copied(), total(&squares))
        };
        let rows = parallel::map(self.x.data().len() / width, 4 * width, of_row);
        let lost = rows.into_iter().fold(0.0, f64::max) / 2.0;
        shared(width).max(shared(width) / 2.0 + lost / LAMBDA)
    }
}

/// Returns the relative error that the mean square of a row of `n` values causes in the norm.
fn shared(n: usize) -> f64 {
    K * U * ((n as f64 / 3.0).sqrt() / 2.0 + 1.5)
}

impl RmsNormalisation {
    fn read(&self, profile: &Profile, part: Range<usize>) -> InputTensor<'_> {
        match profile {
            Profile { norm_of_sums: true, .. } => InputTensor::unrounded(&self.x, profile, part),
            Profile { mean_of_sums: true, .. } => InputTensor::of_part(&self.x, profile, part),
            _ => InputTensor::read(&self.x, profile, part),
        }
    }

    fn gains(&self, profile: &Profile) -> Vec<f64> {
        let weights = profile.norm_weights();
        let weight = self.norm.weight.iter().map(|&weight| weights.round(weight.into()) as f32);
        let gains = RmsNorm { weight: weight.collect(), ..self.norm };
        gains.gains().map(|gain| profile.gains.round(gain.into())).collect()
    }

    fn row(
        &self,
        profile: &Profile,
        gains: &[f64],
        (x, mean): (&InputValues, Mean),
        wanted: &[usize],
        exacts: &mut Vec<ExactValue>,
    ) {
        let n = x.len() as f64;
        let Mean { inverse, lost, inherited } = mean;
        let of_row = shared(x.len());
        let one = |&at: &usize| {
            let x = x.get(at);
            let normed = x.value * inverse;
            // The input's uncertainty is divided by a number that is itself uncertain.
            let size = normed.abs() + x.radius * inverse;
            let own = size * (of_row * of_row + 2.0 * (K * U).powi(2)).sqrt();
            let from_input = both(x.sigma * inverse, size * inherited);
            let normed = ExactValue::statistical(normed, own)
                .losing(lost * size)
                .within((n / 2.0 + 4.0) * U * size)
                .moved(from_input, (LAMBDA * from_input).min(x.radius * inverse + LAMBDA * size * inherited));
            // If Gemma's gain is not rounded, the norm is rounded only after the gain.
            let normed = match self.norm.gain {
                Gain::Weight | Gain::WeightFirst => normed.rounded(profile.normed),
                Gain::OnePlusWeight | Gain::TwoPlusWeight if profile.gains_alone => normed,
                Gain::OnePlusWeight | Gain::TwoPlusWeight => normed.rounded(profile.gains),
            };
            let value = normed.value * gains[at];
            normed.through(value, gains[at]).moved(K * U * value.abs(), U * value.abs())
        };
        exacts.extend(wanted.iter().map(one));
    }
}

/// Divisor of a row: √(mean square + eps), stored as its inverse.
struct Mean {
    /// 1 / √(mean square + eps)
    inverse: f64,
    /// Relative loss of small squares that are added to large ones.
    lost: f64,
    /// Relative error of the divisor that uncertain values of the row cause.
    inherited: f64,
}

impl Mean {
    fn of(x: &InputValues, eps: f32) -> Self {
        let n = x.len() as f64;
        let squares: Vec<f64> = x.values.iter().map(|x| x * x).collect();
        let sum = total(&squares);
        let mean_square = sum / n + f64::from(eps);
        Self {
            inverse: 1.0 / mean_square.sqrt(),
            lost: lost(squares.into_iter(), sum) / 2.0,
            inherited: spread(x, &x.values) / (n * mean_square),
        }
    }
}

/// Returns √Σ(value · sigma)²: the error of a sum of products with uncertain numbers.
fn spread(x: &InputValues, values: &[f64]) -> f64 {
    let Some(doubt) = &x.doubt else { return 0.0 };
    values.iter().zip(&doubt.sigma).map(|(value, sigma)| (value * sigma).powi(2)).sum::<f64>().sqrt()
}

/// LayerNorm along the last axis.
pub struct LayerNormalisation {
    /// Rows.
    pub(crate) x: Tensor,
    /// The weight, bias and epsilon.
    pub(crate) norm: LayerNorm,
}

impl Operation for LayerNormalisation {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let width = self.norm.weight.len();
        let x = InputTensor::read(&self.x, profile, rows_around(wanted, width));
        rows_of(&x, width, wanted, |x, at, exacts| self.row(profile, x, at, exacts))
    }

    fn results(&self, profile: &Profile) -> Float {
        profile.stream()
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::LayerNormed, Choice::Chained]
    }
}

impl LayerNormalisation {
    fn gain(&self, profile: &Profile, at: usize) -> f64 {
        let weights = profile.norm_weights();
        let gain = self.norm.gain.of(weights.round(self.norm.weight[at].into()) as f32);
        // Compilers fuse the sum 1 + weight with the norm.
        if profile.fused == FusedResults::Nothing { weights.round(gain.into()) } else { gain.into() }
    }

    /// Evaluates LayerNorm stepwise: standardise, multiply by the weight, add the bias, with a rounding after each.
    fn stepwise(&self, profile: &Profile, standardised: f64, off: f64, at: usize) -> ExactValue {
        let short = profile.layer_normed;
        let (weight, bias) = (self.gain(profile, at), profile.weights.round(self.norm.bias[at].into()));
        let normed = ExactValue::bounded(standardised, 2.0 * off).rounded(short);
        let scaled = normed.through(normed.value * weight, weight).rounded(short);
        let value = scaled.value + bias;
        scaled.through(value, 1.0).moved(K * U * value.abs(), U * value.abs())
    }

    fn row(&self, profile: &Profile, x: &InputValues, wanted: &[usize], exacts: &mut Vec<ExactValue>) {
        let n = x.len() as f64;
        let mean = x.values.iter().sum::<f64>() / n;
        let squares = || x.values.iter().map(|x| (x - mean).powi(2));
        let sum: f64 = squares().sum();
        let (square, lost) = (sum / n + f64::from(self.norm.eps), lost(squares(), sum) / 2.0);
        let inverse = 1.0 / square.sqrt();
        let rms = (x.values.iter().map(|x| x * x).sum::<f64>() / n).sqrt();
        let size = x.values.iter().map(|x| x.abs()).sum::<f64>() / n;
        // The mean is a sum like others: its partial sums follow a random walk, or drift if values share a sign.
        let of_mean = K * U * (rms * rms / 2.0 + (n / 3.0 + 1.0) * mean * mean).sqrt() * inverse;
        let of_row = shared(x.len());
        let deviations: Vec<f64> = x.values.iter().map(|x| x - mean).collect();
        let inherited = spread(x, &deviations) / (n * square);
        // Uncertain large values make the mean more uncertain than uncertain small values do.
        let unsure_mean = spread(x, &vec![1.0; x.len()]) / n;
        let one = |&at: &usize| {
            let (x, gain) = (x.get(at), self.gain(profile, at));
            let scaled = deviations[at] * inverse * gain;
            let value = scaled + profile.weights.round(self.norm.bias[at].into());
            let own = scaled.abs() * (of_row * of_row + 3.0 * (K * U).powi(2)).sqrt();
            // Kernels that scale a value before subtracting the mean round it while it is large.
            let of_value = K * U * both(x.value, mean) * inverse;
            let own = both(both(own, both(of_mean, of_value) * gain.abs()), K * U * value.abs());
            let bound = (n / 2.0 + 5.0) * U * scaled.abs()
                + (n + 2.0) * U * size * inverse * gain.abs()
                + U * value.abs();
            let from_input = both(both(x.sigma, unsure_mean) * inverse * gain, scaled * inherited);
            if profile.layer_normed != Float::F32 {
                return self.stepwise(profile, deviations[at] * inverse, own.max(bound / 2.0), at);
            }
            let exact = ExactValue::statistical(value, own).losing(lost * scaled.abs());
            exact.within(bound).moved(from_input, LAMBDA * from_input)
        };
        exacts.extend(wanted.iter().map(one));
    }
}

/// Splits requested results by row: each row's `width` values with the row's requested results.
pub(crate) fn rows_of(
    x: &InputTensor,
    width: usize,
    wanted: &[usize],
    row: impl Fn(&InputValues, &[usize], &mut Vec<ExactValue>) + Sync,
) -> Vec<ExactValue> {
    per_row(wanted, width, |flats, exacts| {
        let first = flats[0] / width * width;
        let inside: Vec<usize> = flats.iter().map(|flat| flat - first).collect();
        row(&x.part(first, width), &inside, exacts);
    })
}
