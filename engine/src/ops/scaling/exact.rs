//! Exact evaluation of a scaled value.

use std::sync::Arc;

use crate::exact::input::InputTensor;
use crate::exact::operation::rows_around;
use crate::exact::value::{K, U};
use crate::exact::{Choice, ExactValue, Float, Node, Operation, Profile, node_of};
use crate::ops::embedding::exact::EmbeddingLookup;
use crate::ops::scaling::Multiplier;
use crate::tensor::Tensor;

/// Multiplies or divides each value by a number.
pub(crate) struct Scaling {
    /// Scaled value.
    pub(crate) x: Tensor,
    /// Number that the values are multiplied or divided by.
    pub(crate) by: Multiplier,
}

impl Operation for Scaling {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        // If the engine multiplies by a reciprocal, the reciprocal is rounded as well.
        let (factor, roundings) = match self.by {
            Multiplier::Element(factor) => (self.results(profile).round(factor.into()), 1.0),
            Multiplier::Number(factor) => (factor.into(), 1.0),
            Multiplier::Divisor(divisor) => (1.0 / f64::from(divisor), 2.0),
        };
        InputTensor::scaled(&self.x, profile, rows_around(wanted, 1)).each(wanted, |x| {
            let value = x.value * factor;
            let rounding = roundings * U * value.abs();
            x.through(value, factor).moved(K * rounding, rounding)
        })
    }

    fn results(&self, profile: &Profile) -> Float {
        // The result keeps its input's type: the stream's type for embeddings, the product's type for products.
        let is_embedding = |node: Arc<Node>| node.operation::<EmbeddingLookup>().is_some();
        let is_of_stream = self.x.origins().iter().filter_map(node_of).any(is_embedding);
        if is_of_stream { profile.stream() } else { profile.results }
    }

    fn is_certain(&self) -> bool {
        true
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::ChainedNorms]
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }
}
