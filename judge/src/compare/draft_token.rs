//! Draft tokens: tokens that a greedy run reads in the same pass as the token before them.

use crate::compare::compared_dump::ComparedDump;
use crate::ops::sampling::argmax;
use crate::tensor::Tensor;

/// A draft token for which our engine prefers another token. Speculative decoding reads such tokens in the
/// pass that verifies them.
#[derive(Clone, Copy, Debug)]
pub struct DraftToken {
    /// The pass that read the token.
    pub pass: usize,
    /// The position before the token.
    pub position: usize,
    /// The token that was read.
    pub read: u32,
    /// The token that our engine prefers.
    pub own: u32,
    /// Margin by which our logits prefer `own` to `read`.
    pub margin: f64,
}

impl DraftToken {
    /// Returns the draft token of a pass for which our engine prefers another token by the largest margin.
    pub(super) fn widest(held: &ComparedDump, pass: usize, logits: &Tensor) -> Option<Self> {
        let first = held.passes().get(pass).filter(|known| known.tokens.len() == logits.rows())?.position;
        let other = |row: usize| {
            let position = first + row;
            let read = held.choices.at(position)?;
            let logits = logits.row(row);
            let own = argmax(logits);
            let margin = f64::from(logits[own]) - f64::from(*logits.get(read as usize)?);
            (own != read as usize).then_some(Self { pass, position, read, own: own as u32, margin })
        };
        (0..logits.rows() - 1).filter_map(other).max_by(|a, b| a.margin.total_cmp(&b.margin))
    }
}
