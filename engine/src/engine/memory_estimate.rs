//! Memory estimate of a run, checked before it starts.

use std::ops::Range;

use crate::error::Result;
use crate::memory;
use crate::model::Dimensions;

/// Makes sure that there is room for passes over these positions, each by itself: the scores and weights of one layer, `[H, T, S]`
/// each, the residual stream, and one layer's keys and values. It is the least that they take, so that nothing is refused
/// that could have been run.
///
/// # Errors
/// If there is not.
pub(super) fn check(sizes: Dimensions, passes: impl IntoIterator<Item = Range<usize>>) -> Result<()> {
    let wide = |number: usize| number as u128;
    for positions in passes {
        let (tokens, keys) = (wide(positions.len()), wide(positions.end));
        let attention = 2 * wide(sizes.n_heads) * tokens * keys;
        let streams = 2 * tokens * wide(sizes.hidden_size) + 2 * keys * wide(sizes.kv_width);
        let what = format_args!("a pass of {tokens} tokens over {keys} keys");
        memory::check(what, (attention + streams) * size_of::<f32>() as u128)?;
    }
    Ok(())
}

/// Checks the memory of the keys and values of all layers, for the largest number of passes, before these are listed.
///
/// # Errors
/// If there is no room for them.
pub(super) fn check_all(sizes: Dimensions, positions: usize) -> Result<()> {
    let values = 2 * sizes.n_layers as u128 * sizes.kv_width as u128;
    let bytes =
        positions as u128 * (values * size_of::<f32>() as u128 + size_of::<super::PassInput>() as u128);
    memory::check(format_args!("a run over {positions} tokens"), bytes)
}
