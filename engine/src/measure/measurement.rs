//! Result of comparing two arrays of one shape.

use serde::{Deserialize, Serialize};

use crate::error_map::ErrorMap;
use crate::json_number;

/// Error figures of a comparison. All are NaN if a value is NaN, so that no check passes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// Largest |candidate − reference|.
    #[serde(with = "json_number")]
    pub max_abs: f64,
    /// Mean |candidate − reference|.
    #[serde(with = "json_number")]
    pub mean_abs: f64,
    /// Cosine of the angle between both arrays. It ignores scale errors and is never judged alone.
    #[serde(with = "json_number")]
    pub cosine: f64,
    /// ‖candidate − reference‖ / ‖reference‖.
    #[serde(with = "json_number")]
    pub rel_l2: f64,
    /// `max_abs` relative to the root mean square of the reference.
    #[serde(with = "json_number")]
    pub max_rel_rms: f64,
    /// Largest error of an element relative to √(x² + mean square of its row). Scales of rows do not change it, and
    /// cancellation in a single element does not make it large.
    #[serde(with = "json_number")]
    pub max_scaled: f64,
    /// Largest error, counting only errors larger than the distance to the value's neighbour in the computed type. 0 if
    /// every error may come from rounding the other way.
    #[serde(with = "json_number")]
    pub past_neighbour: f64,
}

/// Element with the largest error.
#[derive(Clone, Debug, PartialEq)]
pub struct WorstElement {
    /// Index along each axis.
    pub index: Vec<usize>,
    /// Candidate's value.
    pub candidate: f64,
    /// Reference's value.
    pub reference: f64,
}

/// Numbers of compared elements that are NaN or infinite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NonfiniteCounts {
    /// Number in the candidate.
    pub candidate: usize,
    /// Number in the reference.
    pub reference: usize,
    /// Number of elements that are equally NaN or infinite on both sides: both NaN, or the same infinity.
    pub shared: usize,
}

impl NonfiniteCounts {
    /// Returns the number of NaN or infinite elements on the side that has more of them, minus those equal on both
    /// sides.
    pub fn of_one_side(&self) -> usize {
        self.candidate.max(self.reference) - self.shared
    }
}

/// Result of comparing two arrays of one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Error figures.
    pub errors: Errors,
    /// Number of compared elements.
    pub elements: usize,
    /// Number of bit-identical elements. Their values and signs are equal: -0 differs from 0, and NaN equals nothing.
    /// Widening to `f64` is exact, so equal bits in `f64` mean equal bits in the stored type.
    pub identical: usize,
    /// Number of NaN or infinite elements.
    pub nonfinite: NonfiniteCounts,
    /// True if every compared element of the candidate is zero.
    pub candidate_all_zero: bool,
    /// True if every compared element of the reference is zero.
    pub reference_all_zero: bool,
    /// Element with the largest error; `None` if no element was compared.
    pub worst: Option<WorstElement>,
    /// Distribution of the errors over the array and by magnitude; `None` if unknown.
    pub spread: Option<Box<ErrorMap>>,
    /// Agreement on the next token at each position, for log-probabilities and for logits that differ.
    pub agreement: Option<Agreement>,
    /// Most likely tokens of both sides, for logits from which a token is chosen.
    pub tops: Option<Box<Tops>>,
}

impl Measurement {
    /// Returns true if at least one element was compared and all are bit-identical.
    pub fn is_identical(&self) -> bool {
        self.elements > 0 && self.identical == self.elements
    }
}

/// Agreement of two engines on the next token at each position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreement {
    /// Agreement at each position, in order.
    pub places: Vec<PositionAgreement>,
}

/// Agreement on the next token at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct PositionAgreement {
    /// Index of the row in the pass.
    pub row: usize,
    /// Largest difference of log-probabilities.
    pub delta: f64,
    /// KL(reference‖candidate) over the listed tokens, where all other tokens count as one. It is a lower bound of the
    /// divergence of the full distributions.
    pub divergence: f64,
    /// Total probability of the listed tokens, by the reference.
    pub covered: f64,
    /// True if both have the same most likely token; `None` if undetermined.
    pub same_top: Option<bool>,
    /// True if a value is above its error bound; `None` if not evaluated.
    pub is_over: Option<bool>,
}

/// Most likely tokens after a position, by the logits of both sides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tops {
    /// KL(reference‖candidate).
    #[serde(rename = "kl", with = "json_number")]
    pub divergence: f64,
    /// Tokens by the candidate, most likely first.
    pub candidate: Vec<LikelyToken>,
    /// Tokens by the reference, most likely first.
    pub reference: Vec<LikelyToken>,
}

/// A token with its probability.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LikelyToken {
    /// Id of the token.
    pub token: u32,
    /// Probability of the token.
    #[serde(with = "json_number")]
    pub probability: f64,
}
