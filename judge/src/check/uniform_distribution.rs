//! Detects probabilities without evidence: a uniform distribution over all tokens would pass, too.

use crate::checkpoint::{Point, Site};
use crate::measure::{ColumnSelection, Errors, ValuePrecision, measure};
use crate::tensor::Tensor;
use crate::view::View;

/// Relative error above which one operation's rounding is ruled out without an exact evaluation.
const NEAR: f64 = 0.25;

/// The errors that a uniform distribution would have instead of the dump's, against our engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UniformErrors {
    /// The errors of the uniform distribution.
    pub(crate) errors: Errors,
    /// True if rounding explains these errors. False if not evaluated.
    pub(crate) is_explained: bool,
}

impl UniformErrors {
    /// The reason for a row in which a uniform distribution would pass, too.
    pub(crate) const BLIND: &str = "blind: at this temperature a uniform distribution would pass too, so the row \
        does not test the model; record logits, or probs at a lower temperature";

    /// Measures the errors of uniform probabilities over all tokens of a vocabulary against our engine's
    /// values. `None` if the site has no probabilities. `is_explained` is called with the uniform values, and
    /// only if their errors are small enough for rounding.
    pub(crate) fn of(
        site: Site,
        own: &View,
        vocabulary: usize,
        is_explained: impl FnOnce(&Tensor) -> bool,
    ) -> Option<Self> {
        let each = match site.point {
            Point::Probs => 1.0 / vocabulary as f32,
            Point::TokenLogprobs | Point::TopLogprobs => -(vocabulary as f32).ln(),
            _ => return None,
        };
        let values = (vocabulary > 1).then(|| Tensor::new(own.shape(), vec![each; own.len()]))?;
        let errors = measure(&values, own.clone(), ValuePrecision::F32, |_| ColumnSelection::All).errors;
        Some(Self { errors, is_explained: errors.max_scaled <= NEAR && is_explained(&values) })
    }
}
