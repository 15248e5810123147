//! How far one array is from another: plain functions over numbers.

use crate::dump::Values;

/// The error figures of one comparison. All are NaN where a NaN was met, so that no check passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Largest |ours − theirs|.
    pub max_abs: f64,
    /// Mean |ours − theirs|.
    pub mean_abs: f64,
    /// Cosine of the angle between the two, which is blind to scale and never judged alone.
    pub cosine: f64,
    /// ‖ours − theirs‖ / ‖theirs‖.
    pub rel_l2: f64,
    /// `max_abs` in units of the root mean square of theirs.
    pub max_rel_rms: f64,
}

/// The element that is furthest off.
#[derive(Clone, Debug, PartialEq)]
pub struct Worst {
    /// Index along each axis.
    pub index: Vec<usize>,
    /// Our value there.
    pub ours: f64,
    /// The reference's value there.
    pub theirs: f64,
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
    /// How many of our compared elements are NaN or infinite.
    pub nonfinite_ours: usize,
    /// How many of the reference's compared elements are NaN or infinite.
    pub nonfinite_theirs: usize,
    /// Whether every compared element of the reference is zero.
    pub theirs_all_zero: bool,
    /// The worst element; `None` where nothing was compared.
    pub worst: Option<Worst>,
}

impl Measurement {
    /// Whether every compared element is bit-identical, and there is one.
    pub fn is_identical(&self) -> bool {
        self.elements > 0 && self.identical == self.elements
    }
}

/// Compares `ours` with `theirs` at the flat indices that `keep` accepts.
///
/// # Panics
/// If the shapes differ: shapes are checked, and refused with a message, before values are looked at.
pub fn measure(ours: &Values, theirs: &Values, keep: impl Fn(usize) -> bool) -> Measurement {
    assert_eq!(ours.shape, theirs.shape, "shapes are compared before values");
    let mut sums = Sums::default();
    let pairs = ours.data.iter().zip(&theirs.data).enumerate();
    for (index, (&ours, &theirs)) in pairs.filter(|(index, _)| keep(*index)) {
        sums.add(index, ours, theirs);
    }
    sums.finish(&theirs.shape)
}

/// Stands where there is no token.
pub const NO_TOKEN: f64 = -1.0;

/// Compares lists of token ids. Ids are equal or not, so the worst is the first that differs. Where one list has ended
/// [`NO_TOKEN`] stands for what it lacks.
pub fn measure_tokens(ours: &Values, theirs: &Values) -> Measurement {
    let length = ours.data.len().max(theirs.data.len());
    let ids = |values: &Values| {
        let ids = values.data.iter().copied().chain(std::iter::repeat(NO_TOKEN));
        let shape = if values.shape.is_empty() { Vec::new() } else { vec![length] };
        Values { data: ids.take(length).collect(), shape }
    };
    let (ours, theirs) = (ids(ours), ids(theirs));
    let mut found = measure(&ours, &theirs, |_| true);
    let mut pairs = ours.data.iter().zip(&theirs.data);
    if let Some(first) = pairs.position(|(ours, theirs)| ours != theirs) {
        let index = unravel(first, &theirs.shape);
        found.worst = Some(Worst { index, ours: ours.data[first], theirs: theirs.data[first] });
    }
    found
}

#[derive(Default)]
struct Sums {
    elements: usize,
    identical: usize,
    nonfinite_ours: usize,
    nonfinite_theirs: usize,
    difference: f64,
    difference_squared: f64,
    product: f64,
    ours_squared: f64,
    theirs_squared: f64,
    worst: Option<(usize, f64, f64, f64)>,
}

impl Sums {
    fn add(&mut self, index: usize, ours: f64, theirs: f64) {
        let difference = (ours - theirs).abs();
        self.elements += 1;
        self.identical += usize::from(ours.to_bits() == theirs.to_bits() && !ours.is_nan());
        self.nonfinite_ours += usize::from(!ours.is_finite());
        self.nonfinite_theirs += usize::from(!theirs.is_finite());
        self.difference += difference;
        self.difference_squared += difference * difference;
        self.product += ours * theirs;
        self.ours_squared += ours * ours;
        self.theirs_squared += theirs * theirs;
        // The first NaN is worse than any number, and stays the worst.
        let worse = self.worst.is_none_or(|(_, worst, ..)| !worst.is_nan() && !(difference <= worst));
        if worse {
            self.worst = Some((index, difference, ours, theirs));
        }
    }

    fn finish(self, shape: &[usize]) -> Measurement {
        let max_abs = self.worst.map_or(f64::NAN, |(_, difference, ..)| difference);
        let count = self.elements as f64;
        let errors = Errors {
            max_abs,
            mean_abs: self.difference / count,
            cosine: self.product / (self.ours_squared * self.theirs_squared).sqrt(),
            rel_l2: ratio(self.difference_squared.sqrt(), self.theirs_squared.sqrt()),
            max_rel_rms: ratio(max_abs, (self.theirs_squared / count).sqrt()),
        };
        Measurement {
            errors,
            elements: self.elements,
            identical: self.identical,
            nonfinite_ours: self.nonfinite_ours,
            nonfinite_theirs: self.nonfinite_theirs,
            theirs_all_zero: self.theirs_squared == 0.0,
            worst: self.worst.map(|(flat, _, ours, theirs)| Worst {
                index: unravel(flat, shape),
                ours,
                theirs,
            }),
        }
    }
}

/// An error relative to a size; no error is no error whatever the size.
fn ratio(error: f64, size: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error / size }
}

/// The index along each axis of the flat, row-major index `flat`.
fn unravel(mut flat: usize, shape: &[usize]) -> Vec<usize> {
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
