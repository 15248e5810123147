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
        let Dimensions { n_heads: heads, head_dim, kv_width, rope_pairing: pairing, .. } = *dimensions;
        Self { heads, kv_heads: kv_width.checked_div(head_dim).unwrap_or(0), head_dim, pairing }
    }
}
