//! Result of comparing two arrays of one shape.

use crate::error_map::ErrorMap;

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
pub struct WorstElement {
    /// Index along each axis.
    pub index: Vec<usize>,
    /// The candidate's value there.
    pub candidate: f64,
    /// The reference's value there.
    pub reference: f64,
}

/// Numbers of compared elements that are NaN or infinite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NonfiniteCounts {
    /// Number in the candidate.
    pub candidate: usize,
    /// Number in the reference.
    pub reference: usize,
    /// Number of equal ones: both NaN, or the same infinity.
    pub shared: usize,
}

impl NonfiniteCounts {
    /// Returns the number on one side only.
    pub fn of_one_side(&self) -> usize {
        self.candidate.max(self.reference) - self.shared
    }
}

/// Result of comparing two arrays of one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// The error figures.
    pub errors: Errors,
    /// Number of compared elements.
    pub elements: usize,
    /// Number of bit-identical elements: the same number with the same sign, -0 differs from 0, NaN never equal.
    /// Values are widened to `f64` without loss, so equal bits here are equal bits in the reference's own type.
    pub identical: usize,
    /// Numbers of NaN or infinite elements.
    pub nonfinite: NonfiniteCounts,
    /// True if every compared element of the candidate is zero.
    pub candidate_all_zero: bool,
    /// True if every compared element of the reference is zero.
    pub reference_all_zero: bool,
    /// The worst element; `None` where nothing was compared.
    pub worst: Option<WorstElement>,
    /// Distribution of the errors over the array and by size; `None` if unknown.
    pub spread: Option<Box<ErrorMap>>,
    /// Agreement on the next token of each position, for log-probabilities and for logits that differ.
    pub agreement: Option<Agreement>,
    /// Leading tokens, for the logits that a token is chosen by.
    pub tops: Option<Box<Tops>>,
}

impl Measurement {
    /// Returns true if every compared element is bit-identical, and there is one.
    pub fn is_identical(&self) -> bool {
        self.elements > 0 && self.identical == self.elements
    }
}

/// Agreement of two engines on the next token of each position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreement {
    /// Positions, in order.
    pub places: Vec<PositionAgreement>,
}

/// Agreement on the next token of one position.
#[derive(Clone, Debug, PartialEq)]
pub struct PositionAgreement {
    /// The row of the pass.
    pub row: usize,
    /// The largest difference of log-probabilities.
    pub delta: f64,
    /// KL(reference‖candidate) of the tokens that are named, and all others taken together: no more than that of the
    /// whole distributions.
    pub divergence: f64,
    /// Probability of the listed tokens together, by the reference.
    pub covered: f64,
    /// True if both have the same most likely token; `None` if undetermined.
    pub same_top: Option<bool>,
    /// True if a value is above its error bound; `None` if not evaluated.
    pub is_over: Option<bool>,
}

/// The likeliest tokens after a position, by the logits of both sides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tops {
    /// Ids and probabilities by the candidate, the most likely first.
    pub candidate: Vec<(u32, f64)>,
    /// Ids and probabilities by the reference, the most likely first.
    pub reference: Vec<(u32, f64)>,
    /// KL(reference‖candidate).
    pub divergence: f64,
}
