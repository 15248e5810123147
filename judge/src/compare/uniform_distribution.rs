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
    pub errors: Errors,
    /// True if rounding explains these errors. False if not evaluated.
    pub is_explained: bool,
}

impl UniformErrors {
    /// The reason for a row in which a uniform distribution would pass, too.
    pub const BLIND: &str = "blind: at this temperature a uniform distribution would pass too, so the row \
        does not test the model; record logits, or probs at a lower temperature";

    /// Returns the values of a site if all tokens of a vocabulary were equally likely. `None` if the site has
    /// no probabilities.
    pub fn values(site: Site, own: &View, vocabulary: usize) -> Option<Tensor> {
        let each = match site.point {
            Point::Probs => 1.0 / vocabulary as f32,
            Point::TokenLogprobs | Point::TopLogprobs => -(vocabulary as f32).ln(),
            _ => return None,
        };
        (vocabulary > 1).then(|| Tensor::new(own.shape(), vec![each; own.len()]))
    }

    /// Measures the errors of uniform probabilities. `is_explained` is called only if the errors are small
    /// enough for rounding.
    pub fn measured(values: &Tensor, own: &View, is_explained: impl FnOnce() -> bool) -> Self {
        let errors = measure(values, own.clone(), ValuePrecision::F32, |_| ColumnSelection::All).errors;
        Self { errors, is_explained: errors.max_scaled <= NEAR && is_explained() }
    }
}
