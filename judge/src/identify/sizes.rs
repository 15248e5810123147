//! Sizes of the model whose values are looked for.

use crate::model::Dimensions;
use crate::tensor::RopePairing;

/// What tells how axes can be split.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extents {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// How our heads lie.
    pub pairing: Option<RopePairing>,
}

impl Extents {
    pub fn of(dimensions: &Dimensions) -> Self {
        let Dimensions { n_heads: heads, head_dim, rope_pairing: pairing, .. } = *dimensions;
        Self { heads, kv_heads: dimensions.kv_heads(), head_dim, pairing }
    }
}
