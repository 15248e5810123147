//! Sizes of the model whose values are looked for.

use crate::model::Dimensions;
use crate::tensor::RopePairing;

/// The sizes by which axes can be split.
#[derive(Clone, Copy, Debug)]
pub(super) struct AxisSizes {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Order of our heads.
    pub pairing: Option<RopePairing>,
    /// Square roots of a head's size and of the hidden size.
    roots: [f64; 2],
}

impl AxisSizes {
    pub fn of(dimensions: &Dimensions) -> Self {
        let Dimensions { n_heads: heads, head_dim, rope_pairing: pairing, .. } = *dimensions;
        let roots = [head_dim, dimensions.hidden_size].map(|size| (size as f64).sqrt());
        Self { heads, kv_heads: dimensions.kv_heads(), head_dim, pairing, roots }
    }

    /// True if engines save values before or after they meet a factor: a root of a size, or a power of two. A map that divided by
    /// any other factor would hide a fault.
    pub fn is_meant(&self, scale: f64) -> bool {
        const WITHIN: f64 = 5e-3;
        let is_near = |known: f64| (scale / known - 1.0).abs() < WITHIN;
        let is_root = self.roots.into_iter().any(|root| is_near(root) || is_near(1.0 / root));
        scale != 1.0 && (is_root || is_near(2f64.powi(scale.log2().round() as i32)))
    }
}
