//! Lengths at which a model computes differently: a full window, or LongRoPE's long factors.

use std::collections::BTreeSet;

use crate::model::Model;

/// Products of a weight and an activation in one pass that take seconds at most.
const AFFORDABLE: usize = 1 << 32;
/// Number of tokens read after a boundary: more than a cache drops at once.
const BEYOND: usize = 40;

/// Returns the lengths after which earlier tokens are hidden or rotated differently.
pub(super) fn boundaries(model: &dyn Model) -> BTreeSet<usize> {
    let windows = (0..model.dimensions().n_layers).filter_map(|layer| model.window(layer));
    windows.chain(model.rereads_beyond()).collect()
}

/// The number of tokens, `least` or more, that crosses each boundary which is affordable.
pub(super) fn crossing(model: &dyn Model, least: usize) -> usize {
    let weights: usize = model.matrices().iter().map(|(_, matrix)| matrix.rows * matrix.cols).sum();
    let is_affordable = |length: &usize| weights.saturating_mul(*length) <= AFFORDABLE;
    let lengths = boundaries(model).into_iter().map(|boundary| boundary.saturating_add(BEYOND));
    lengths.filter(is_affordable).fold(least, usize::max)
}
