//! How far one array is from another: plain functions over numbers.

use crate::compare::grain::Grain;
use crate::dump::Values;

/// The error figures of one comparison. All are NaN where a NaN was met, so that no check passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Largest |candidate − reference|.
    pub max_abs: f64,
    /// Mean |candidate − reference|.
    pub mean_abs: f64,
    /// Cosine of the angle between the two, which is blind to scale and never judged alone.
    pub cosine: f64,
    /// ‖candidate − reference‖ / ‖reference‖.
    pub rel_l2: f64,
    /// `max_abs` in units of the root mean square of the reference.
    pub max_rel_rms: f64,
    /// Largest error of an element in units of its own size, √(x² + the mean square of its row): blind to the scale of
    /// rows, and to what cancels in an element.
    pub max_scaled: f64,
    /// Largest error of an element that is further off than its neighbour in the type in which it was computed: 0 where
    /// rounding the other way explains every one.
    pub past_neighbour: f64,
}

/// The element that is furthest off.
#[derive(Clone, Debug, PartialEq)]
pub struct Worst {
    /// Index along each axis.
    pub index: Vec<usize>,
    /// The candidate's value there.
    pub candidate: f64,
    /// The reference's value there.
    pub reference: f64,
}

/// How many of the compared elements are NaN or infinite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nonfinite {
    /// Of the candidate.
    pub candidate: usize,
    /// Of the reference.
    pub reference: usize,
    /// The same on both sides: both NaN, or the same infinity.
    pub shared: usize,
}

impl Nonfinite {
    /// Those that only one side has.
    pub fn of_one_side(&self) -> usize {
        self.candidate.max(self.reference) - self.shared
    }
}

/// What comparing two arrays of one shape found.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// The error figures.
    pub errors: Errors,
    /// How many elements were compared.
    pub elements: usize,
    /// How many of them are bit-identical: the same number with the same sign, -0 apart from 0, NaN never. Values are
    /// widened to `f64` without loss, so that equal bits here are equal bits in the reference's own type.
    pub identical: usize,
    /// How many are NaN or infinite.
    pub nonfinite: Nonfinite,
    /// Whether every compared element of the candidate is zero.
    pub candidate_all_zero: bool,
    /// Whether every compared element of the reference is zero.
    pub reference_all_zero: bool,
    /// The worst element; `None` where nothing was compared.
    pub worst: Option<Worst>,
}

impl Measurement {
    /// Whether every compared element is bit-identical, and there is one.
    pub fn is_identical(&self) -> bool {
        self.elements > 0 && self.identical == self.elements
    }
}

/// Compares `candidate` with `reference` at the flat indices that `keep` accepts.
///
/// # Panics
/// If the shapes differ: shapes are checked, and refused with a message, before values are looked at.
pub fn measure(
    candidate: &Values,
    reference: &Values,
    grain: Grain,
    keep: impl Fn(usize) -> bool,
) -> Measurement {
    assert_eq!(candidate.shape, reference.shape, "shapes are compared before values");
    let width = reference.shape.last().copied().unwrap_or(1).max(1);
    let mut sums = Sums::default();
    let rows = candidate.data.chunks(width).zip(reference.data.chunks(width)).enumerate();
    for (row, (candidate, reference)) in rows {
        let kept = || (0..reference.len()).filter(|column| keep(row * width + column));
        let square = mean_square(kept().map(|column| reference[column]));
        for column in kept() {
            let pair = Pair { candidate: candidate[column], reference: reference[column], square };
            sums.add(row * width + column, pair, grain);
        }
    }
    sums.finish(&reference.shape)
}

fn mean_square(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0usize, 0.0), |(count, sum), x| (count + 1, sum + x * x));
    sum / count.max(1) as f64
}

/// Stands where there is no token.
pub const NO_TOKEN: f64 = -1.0;

/// Compares lists of token ids. Ids are equal or not, so the worst is the first that differs. Where one list has ended
/// [`NO_TOKEN`] stands for what it lacks.
pub fn measure_tokens(candidate: &Values, reference: &Values) -> Measurement {
    let length = candidate.data.len().max(reference.data.len());
    let ids = |values: &Values| {
        let ids = values.data.iter().copied().chain(std::iter::repeat(NO_TOKEN));
        let shape = if values.shape.is_empty() { Vec::new() } else { vec![length] };
        Values { data: ids.take(length).collect(), shape }
    };
    let (candidate, reference) = (ids(candidate), ids(reference));
    let mut found = measure(&candidate, &reference, Grain::F32, |_| true);
    let mut pairs = candidate.data.iter().zip(&reference.data);
    if let Some(first) = pairs.position(|(candidate, reference)| candidate != reference) {
        let index = unravel(first, &reference.shape);
        found.worst =
            Some(Worst { index, candidate: candidate.data[first], reference: reference.data[first] });
    }
    found
}

/// One element of both sides, and the mean square of the reference's row.
#[derive(Clone, Copy)]
struct Pair {
    candidate: f64,
    reference: f64,
    square: f64,
}

#[derive(Default)]
struct Sums {
    elements: usize,
    identical: usize,
    nonfinite: Nonfinite,
    difference: f64,
    difference_squared: f64,
    product: f64,
    candidate_squared: f64,
    reference_squared: f64,
    scaled: f64,
    past_neighbour: f64,
    worst: Option<(usize, f64, Pair)>,
}

impl Sums {
    fn add(&mut self, index: usize, pair: Pair, grain: Grain) {
        let Pair { candidate, reference, square } = pair;
        let apart = (candidate - reference).abs();
        // What storing may have changed is no error; NaN stays NaN.
        let slack = grain.slack(candidate, reference);
        let difference = if apart <= slack { 0.0 } else { apart - slack };
        self.elements += 1;
        self.identical += usize::from(candidate.to_bits() == reference.to_bits() && !candidate.is_nan());
        self.count_nonfinite(candidate, reference);
        self.difference += difference;
        self.difference_squared += difference * difference;
        self.product += candidate * reference;
        self.candidate_squared += candidate * candidate;
        self.reference_squared += reference * reference;
        self.scaled = larger(self.scaled, ratio(difference, (reference * reference + square).sqrt()));
        if !(difference <= grain.step(reference)) {
            self.past_neighbour = larger(self.past_neighbour, difference);
        }
        // The first NaN is worse than any number, and stays the worst.
        let worse = self.worst.is_none_or(|(_, worst, _)| !worst.is_nan() && !(difference <= worst));
        if worse {
            self.worst = Some((index, difference, pair));
        }
    }

    fn count_nonfinite(&mut self, candidate: f64, reference: f64) {
        let same = candidate == reference || (candidate.is_nan() && reference.is_nan());
        self.nonfinite.candidate += usize::from(!candidate.is_finite());
        self.nonfinite.reference += usize::from(!reference.is_finite());
        self.nonfinite.shared += usize::from(!candidate.is_finite() && same);
    }

    fn finish(self, shape: &[usize]) -> Measurement {
        let max_abs = self.worst.map_or(f64::NAN, |(_, difference, _)| difference);
        let count = self.elements as f64;
        let errors = Errors {
            max_abs,
            mean_abs: self.difference / count,
            cosine: self.product / (self.candidate_squared * self.reference_squared).sqrt(),
            rel_l2: ratio(self.difference_squared.sqrt(), self.reference_squared.sqrt()),
            max_rel_rms: ratio(max_abs, (self.reference_squared / count).sqrt()),
            max_scaled: self.scaled,
            past_neighbour: self.past_neighbour,
        };
        Measurement {
            errors,
            elements: self.elements,
            identical: self.identical,
            nonfinite: self.nonfinite,
            candidate_all_zero: self.candidate_squared == 0.0,
            reference_all_zero: self.reference_squared == 0.0,
            worst: self.worst.map(|(flat, _, pair)| Worst {
                index: unravel(flat, shape),
                candidate: pair.candidate,
                reference: pair.reference,
            }),
        }
    }
}

/// The larger of two figures; NaN is larger than any number.
pub fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// An error relative to a size; no error is no error whatever the size.
fn ratio(error: f64, size: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error / size }
}

/// The index along each axis of the flat, row-major index `flat`.
pub fn unravel(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&length| {
            let along = flat % length;
            flat /= length;
            along
        })
        .collect();
    index.reverse();
    index
}
