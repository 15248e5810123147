//! Systematic errors: too small for every element, and the same in many.
//!
//! Roundings to nearest have no direction, so that over N results their mean is √N times smaller than one of them. A scale
//! (error ∝ result) and an offset are looked for in the whole tensor, and in each of its rows, heads and channels.

use crate::exact::profile::Float;
use crate::exact::value::{Exact, LAMBDA};

/// Fewer results have no mean to speak of.
const FEWEST: u64 = 32;

/// What a step of a short type is moved over, as often as its sigma is a part of it: E|x| of a Gaussian.
const CROSSES: f64 = 0.8;

/// Which results of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strand {
    /// All of them.
    Whole,
    /// Those at one index of an axis.
    Axis(usize),
    /// Those at one place of each entry of the outermost axis: an output channel.
    Channel,
}

/// A systematic error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bias {
    /// Of which results.
    pub strand: Strand,
    /// Which of such strands it is.
    pub index: usize,
    /// The error: a part of the results, or the same in all.
    pub error: f64,
    /// Whether it is a part of the results.
    pub is_scale: bool,
    /// The error in sigmas of what rounding comes to.
    pub z: f64,
}

impl Bias {
    /// Whether rounding without a direction cannot make it.
    pub fn is_systematic(&self) -> bool {
        !(self.z.abs() <= LAMBDA)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    n: u64,
    errors: f64,
    scaled: f64,
    values: f64,
    squares: f64,
    variance: f64,
    scaled_variance: f64,
    step: f64,
    scaled_step: f64,
}

/// Sums over the strands of a tensor.
pub(super) struct Biases {
    shape: Vec<usize>,
    whole: Sums,
    axes: Vec<Vec<Sums>>,
    channels: Vec<Sums>,
}

impl Biases {
    pub(super) fn new(shape: &[usize]) -> Self {
        let axes = shape.iter().map(|&len| vec![Sums::default(); len]).collect();
        let channels = if shape.len() > 2 { shape[1..].iter().product() } else { 0 };
        Self {
            shape: shape.to_vec(),
            whole: Sums::default(),
            axes,
            channels: vec![Sums::default(); channels],
        }
    }

    pub(super) fn add(&mut self, flat: usize, value: f64, exact: &Exact, float: Float) {
        let y = exact.value;
        let (low, high) = float.cell(float.round(y));
        // What is rounded to a short type is the same number nearly everywhere, or the next.
        let step = high - low;
        let (error, variance) = match float {
            Float::F32 => (value - y, exact.sigma * exact.sigma),
            _ => (value - float.round(y), CROSSES * exact.sigma * step),
        };
        let one = |sums: &mut Sums| {
            sums.n += 1;
            sums.errors += error;
            sums.scaled += error * y;
            sums.values += y;
            sums.squares += y * y;
            sums.variance += variance;
            sums.scaled_variance += variance * y * y;
            sums.step = sums.step.max(step);
            sums.scaled_step = sums.scaled_step.max(step * y.abs());
        };
        one(&mut self.whole);
        let mut rest = flat;
        for (axis, &len) in self.shape.iter().enumerate().rev() {
            one(&mut self.axes[axis][rest % len]);
            rest /= len;
        }
        if let Some(channels) = (!self.channels.is_empty()).then_some(self.channels.len()) {
            one(&mut self.channels[flat % channels]);
        }
    }

    /// The one that stands out most, where all results of a row may share an error of `shared` of their size.
    pub(super) fn largest(&self, shared: f64) -> Option<Bias> {
        let whole = [(Strand::Whole, 0, &self.whole)];
        let axes = self.axes.iter().enumerate().flat_map(|(axis, strands)| {
            strands.iter().enumerate().map(move |(index, sums)| (Strand::Axis(axis), index, sums))
        });
        let channels = self.channels.iter().enumerate().map(|(index, sums)| (Strand::Channel, index, sums));
        let biases = whole.into_iter().chain(axes).chain(channels);
        biases
            .filter(|(.., sums)| sums.n >= FEWEST)
            .flat_map(|(strand, index, sums)| sums.biases(shared).map(|bias| Bias { strand, index, ..bias }))
            .filter(|bias| bias.z.is_finite())
            .max_by(|a, b| a.z.abs().total_cmp(&b.z.abs()))
    }
}

impl Sums {
    /// As a scale, and as an offset.
    fn biases(&self, shared: f64) -> [Bias; 2] {
        let z = |error: f64, step: f64, variance: f64, common: f64| {
            // A few steps of a short type are no direction.
            let beyond = (error.abs() - LAMBDA * step).max(0.0).copysign(error);
            if beyond == 0.0 { 0.0 } else { beyond / (variance + (shared * common).powi(2)).sqrt() }
        };
        let bias =
            |error: f64, is_scale: bool, z: f64| Bias { strand: Strand::Whole, index: 0, error, is_scale, z };
        let scale = z(self.scaled, self.scaled_step, self.scaled_variance, self.squares);
        let offset = z(self.errors, self.step, self.variance, self.values);
        [bias(self.scaled / self.squares, true, scale), bias(self.errors / self.n as f64, false, offset)]
    }
}
