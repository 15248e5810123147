//! Memory estimate of a run, checked before it starts.

use std::ops::Range;

use crate::error::Result;
use crate::memory;
use crate::model::{Dimensions, LayerState, Model};

/// Checks the memory of independent passes over these positions: the scores and weights of one layer, `[H, T, S]`
/// each, the residual stream, and one layer's keys and values. This is a lower bound, so no feasible run is
/// refused.
///
/// # Errors
/// If there is too little memory.
pub(super) fn check(sizes: Dimensions, passes: impl IntoIterator<Item = Range<usize>>) -> Result<()> {
    let wide = |number: usize| number as u128;
    for positions in passes {
        let (tokens, keys) = (wide(positions.len()), wide(positions.end));
        let attention = 2 * wide(sizes.n_heads) * tokens * keys;
        let streams = 2 * tokens * wide(sizes.hidden_size) + keys * wide(sizes.kv_width + sizes.value_width);
        let what = format_args!("a pass of {tokens} tokens over {keys} keys");
        memory::check(what, (attention + streams) * size_of::<f32>() as u128)?;
    }
    Ok(())
}

/// Checks the memory of all layers' states, before a large number of passes is listed: keys and values, which grow with
/// the number of positions, and recurrent states, which do not.
///
/// # Errors
/// If there is too little memory.
pub(super) fn check_all(model: &dyn Model, positions: usize) -> Result<()> {
    let sizes = model.dimensions();
    let cached = |layer| positions as u128 * model.cache_widths(layer).iter().sum::<usize>() as u128;
    let of_layer = |layer| match model.layer_state(layer) {
        LayerState::Kv(_) => cached(layer),
        LayerState::Recurrent(state) => state.sizes().values(),
        LayerState::Both(_, state) => cached(layer) + state.sizes().values(),
    };
    let values: u128 = (0..sizes.n_layers).map(of_layer).sum();
    let passes = positions as u128 * size_of::<super::PassInput>() as u128;
    memory::check(format_args!("a run over {positions} tokens"), values * size_of::<f32>() as u128 + passes)
}
