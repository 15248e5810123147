//! Draft tokens: tokens that a greedy run reads in the pass of the token before.

use crate::compare::compared_dump::ComparedDump;
use crate::ops::sampling::argmax;
use crate::tensor::Tensor;

/// A token that a greedy run has read in the pass of the token before it, as one that verifies drafts does, where the engine
/// chooses another.
#[derive(Clone, Copy, Debug)]
pub struct DraftToken {
    /// The pass.
    pub pass: usize,
    /// The position that it follows.
    pub position: usize,
    /// The token.
    pub read: u32,
    /// The engine's choice.
    pub own: u32,
    /// Margin by which the engine's logits prefer that token.
    pub margin: f64,
}

impl DraftToken {
    /// Returns the token chosen within a pass against which the engine's logits prefer another by the largest
    /// margin.
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
