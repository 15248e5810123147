//! Sizes of the model that is compared with the arrays.

use crate::model::Dimensions;
use crate::tensor::RopePairing;

/// Model sizes that determine how an axis can be split.
#[derive(Clone, Copy, Debug)]
pub(super) struct AxisSizes {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// RoPE pairing of the model.
    pub(crate) pairing: Option<RopePairing>,
    /// Square roots of the head size and of the hidden size.
    roots: [f64; 2],
}

impl AxisSizes {
    pub(crate) fn of(dimensions: &Dimensions) -> Self {
        let Dimensions { n_heads: heads, head_dim, rope_pairing: pairing, .. } = *dimensions;
        let roots = [head_dim, dimensions.hidden_size].map(|size| (size as f64).sqrt());
        Self { heads, kv_heads: dimensions.kv_heads(), head_dim, pairing, roots }
    }

    /// Returns true if an engine may apply this factor before or after it saves a value: the square root of a model
    /// size, or a power of two. Dividing by any other factor in a map would hide a fault.
    pub(crate) fn is_meant(&self, scale: f64) -> bool {
        const WITHIN: f64 = 5e-3;
        let is_near = |known: f64| (scale / known - 1.0).abs() < WITHIN;
        let is_root = self.roots.into_iter().any(|root| is_near(root) || is_near(1.0 / root));
        scale != 1.0 && (is_root || is_near(2f64.powi(scale.log2().round() as i32)))
    }
}
