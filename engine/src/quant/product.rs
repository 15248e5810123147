//! Matrix products from dot products: weight rows with all rows of activations.

use super::{Dot, DotOrder, DotTile, dot, fast_mixed_dot, fast_tile, plain_mixed_dot};
use crate::weight::DType;

/// Dot products of a matrix product. Eight are computed at a time if this machine has a tile for the type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    dot: Dot,
    tile: Option<DotTile>,
}

impl Product {
    /// Returns the functions for weights of a type and a summation order.
    ///
    /// # Panics
    /// If `weights` is not [`super::DECODABLE`].
    pub(crate) fn new(weights: DType, order: DotOrder) -> Self {
        Self { dot: dot(weights, order), tile: fast_tile(weights, order) }
    }

    /// Returns the functions for F16 weights with F32 activations.
    pub(crate) fn of_f16_with_f32() -> Self {
        Self { dot: fast_mixed_dot().unwrap_or_else(plain_mixed_dot), tile: None }
    }

    /// Multiplies consecutive rows of weights with all rows of activations. Writes one column for each row of weights,
    /// concatenated.
    ///
    /// # Panics
    /// If there are no activations, or a row ends inside a block.
    pub(crate) fn fill(&self, weights: &[u8], activations: &[Vec<u8>], columns: &mut [f32]) {
        let tokens = activations.len();
        let row_bytes = weights.len() / (columns.len() / tokens);
        for (rows, columns) in weights.chunks(2 * row_bytes).zip(columns.chunks_mut(2 * tokens)) {
            let tiled = match (self.tile, rows.split_at(row_bytes)) {
                (Some(tile), (first, second)) if first.len() == second.len() => {
                    fill_tiles(tile, [first, second], activations, columns)
                }
                _ => 0,
            };
            for (row, column) in rows.chunks(row_bytes).zip(columns.chunks_mut(tokens)) {
                let rest = column.iter_mut().zip(activations).skip(tiled);
                rest.for_each(|(out, activations)| *out = (self.dot)(row, activations));
            }
        }
    }
}

/// Multiplies the rows of activations that fill whole tiles. Returns the number of these rows.
fn fill_tiles(tile: DotTile, rows: [&[u8]; 2], activations: &[Vec<u8>], columns: &mut [f32]) -> usize {
    let (fours, _) = activations.as_chunks::<4>();
    let (first, second) = columns.split_at_mut(activations.len());
    let outs = first.as_chunks_mut::<4>().0.iter_mut().zip(second.as_chunks_mut::<4>().0);
    for (activations, (first, second)) in fours.iter().zip(outs) {
        [*first, *second] = tile(rows, activations.each_ref().map(Vec::as_slice));
    }
    4 * fours.len()
}
