//! What is found of two arrays of one shape.

use crate::spread::Spread;

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
    /// Where the errors are, and of what size; `None` where that is not told.
    pub spread: Option<Box<Spread>>,
    /// Of log-probabilities and of logits that differ, how both sides agree on what follows each position.
    pub agreement: Option<Agreement>,
    /// Of the logits that a token is chosen by, which lead.
    pub tops: Option<Box<Tops>>,
}

impl Measurement {
    /// Whether every compared element is bit-identical, and there is one.
    pub fn is_identical(&self) -> bool {
        self.elements > 0 && self.identical == self.elements
    }
}

/// How two engines agree on what follows each position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreement {
    /// Each position, in order.
    pub places: Vec<Placed>,
}

/// How they agree after one position.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The row of the pass.
    pub row: usize,
    /// The largest difference of log-probabilities.
    pub delta: f64,
    /// KL(reference‖candidate) of the tokens that are named, and all others taken together: no more than that of the
    /// whole distributions.
    pub divergence: f64,
    /// How likely the tokens are that are named, together, by the reference.
    pub covered: f64,
    /// Whether both find the same token likeliest; `None` where that is not told.
    pub same_top: Option<bool>,
    /// Whether a value is beyond rounding, where that was evaluated.
    pub is_beyond: Option<bool>,
}

/// The likeliest tokens after a position, by the logits of both sides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tops {
    /// By the candidate: each id with its probability, the likeliest first.
    pub candidate: Vec<(u32, f64)>,
    /// By the reference.
    pub reference: Vec<(u32, f64)>,
    /// KL(reference‖candidate).
    pub divergence: f64,
}
