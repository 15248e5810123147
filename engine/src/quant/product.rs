//! Rows of a matrix with all rows of activations.

use super::{Dot, DotOrder, DotTile, dot, fast_mixed_dot, fast_tile, plain_mixed_dot};
use crate::weight::DType;

/// The dot products of a matrix product: eight at a time where this machine has fast code for that.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    dot: Dot,
    tile: Option<DotTile>,
}

impl Product {
    /// The functions for weights of this type, which add in that order.
    ///
    /// # Panics
    /// If `weights` is not [`super::DECODABLE`].
    pub fn new(weights: DType, order: DotOrder) -> Self {
        Self { dot: dot(weights, order), tile: fast_tile(weights, order) }
    }

    /// F16 weights with activations of F32.
    pub fn of_f16_with_f32() -> Self {
        Self { dot: fast_mixed_dot().unwrap_or_else(plain_mixed_dot), tile: None }
    }

    /// The dot products of each row of weights, which stand one behind the other, with all rows of activations: as many
    /// columns, likewise.
    ///
    /// # Panics
    /// If there are no activations, or a row ends inside a block.
    pub fn fill(&self, weights: &[u8], activations: &[Vec<u8>], columns: &mut [f32]) {
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

/// The products with as many rows of activations as fill whole tiles; gives back how many these are.
fn fill_tiles(tile: DotTile, rows: [&[u8]; 2], activations: &[Vec<u8>], columns: &mut [f32]) -> usize {
    let (fours, _) = activations.as_chunks::<4>();
    let (first, second) = columns.split_at_mut(activations.len());
    let outs = first.as_chunks_mut::<4>().0.iter_mut().zip(second.as_chunks_mut::<4>().0);
    for (activations, (first, second)) in fours.iter().zip(outs) {
        [*first, *second] = tile(rows, activations.each_ref().map(Vec::as_slice));
    }
    4 * fours.len()
}
