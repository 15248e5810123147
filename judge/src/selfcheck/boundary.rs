//! Sequence lengths from which a model computes differently: a full attention window, or LongRoPE's long
//! factors.

use std::collections::BTreeSet;

use crate::model::Model;

/// Maximum number of multiplications in one pass, so that a pass takes no longer than seconds.
const AFFORDABLE: usize = 1 << 32;
/// Number of tokens read after a boundary. It is larger than the number of positions that a cache drops at
/// once.
const BEYOND: usize = 40;

/// Returns the lengths after which a layer hides earlier tokens or rotates them differently.
pub(super) fn boundaries(model: &dyn Model) -> BTreeSet<usize> {
    let windows = (0..model.dimensions().n_layers).filter_map(|layer| model.window(layer));
    windows.chain(model.rereads_beyond()).collect()
}

/// Returns the number of tokens, at least `least`, that crosses every boundary that is short enough to run.
pub(super) fn crossing(model: &dyn Model, least: usize) -> usize {
    let weights: usize = model.matrices().iter().map(|(_, matrix)| matrix.rows * matrix.cols).sum();
    let is_affordable = |length: &usize| weights.saturating_mul(*length) <= AFFORDABLE;
    let lengths = boundaries(model).into_iter().map(|boundary| boundary.saturating_add(BEYOND));
    lengths.filter(is_affordable).fold(least, usize::max)
}
