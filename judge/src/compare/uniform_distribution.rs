//! Detects probabilities that carry no evidence: a uniform distribution over all tokens would pass as well.

use crate::checkpoint::{Point, Site};
use crate::measure::{ColumnSelection, Errors, ValuePrecision, measure};
use crate::tensor::Tensor;
use crate::view::View;

/// Relative error above which rounding of one operation is ruled out without an exact evaluation.
const NEAR: f64 = 0.25;

/// Errors of a uniform distribution instead of a dump's, against our engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UniformErrors {
    /// The errors that they would have.
    pub errors: Errors,
    /// True if rounding explains them, where that was evaluated.
    pub is_explained: bool,
}

impl UniformErrors {
    /// The reason of a row that they would pass, too.
    pub const BLIND: &str = "blind: at this temperature a uniform distribution would pass too, so the row \
        does not test the model; record logits, or probs at a lower temperature";

    /// Returns what `own` would hold if each token of a vocabulary were equally likely; `None` where it holds no probabilities.
    pub fn values(site: Site, own: &View, vocabulary: usize) -> Option<Tensor> {
        let each = match site.point {
            Point::Probs => 1.0 / vocabulary as f32,
            Point::TokenLogprobs | Point::TopLogprobs => -(vocabulary as f32).ln(),
            _ => return None,
        };
        (vocabulary > 1).then(|| Tensor::new(own.shape(), vec![each; own.len()]))
    }

    /// Measures uniform probabilities against others. Whether rounding explains them is asked where they are near enough.
    pub fn measured(values: &Tensor, own: &View, is_explained: impl FnOnce() -> bool) -> Self {
        let errors = measure(values, own.clone(), ValuePrecision::F32, |_| ColumnSelection::All).errors;
        Self { errors, is_explained: errors.max_scaled <= NEAR && is_explained() }
    }
}
