//! What one of several sequences has of an array that holds all of them.

use crate::checkpoint::{Axis, Point};
use crate::dump::TensorRow;
use crate::dump::layout::to_axes;
use crate::view::View;

/// A sequence's share of an array.
#[derive(Clone, Debug)]
pub(super) struct Share {
    /// The array, as the manifest has it, with its axes.
    pub(super) whole: TensorRow,
    /// Which entry of its axis `batch`.
    pub(super) entry: Option<usize>,
    /// Which of its tokens.
    pub(super) tokens: Option<Vec<usize>>,
    /// Which of its keys.
    pub(super) keys: Option<Vec<usize>>,
}

impl Share {
    /// That of the whole, with the tap point's own axes.
    pub(super) fn of<'v>(&self, whole: View<'v>, point: Point) -> Result<View<'v>, String> {
        let axes = self.whole.axes()?;
        let batch = axes.iter().position(|&axis| axis == Axis::Batch);
        let entry = match (batch, self.entry) {
            (Some(batch), Some(entry)) => whole.slice(batch, entry..entry + 1),
            _ => whole,
        };
        let mut view = to_axes(entry, &axes, point.axes())?;
        for (counts, taken) in [(Axis::Token, &self.tokens), (Axis::Key, &self.keys)] {
            let axis = point.axes().iter().position(|&axis| axis == counts);
            if let (Some(axis), Some(taken)) = (axis, taken) {
                view = view.taken(axis, taken);
            }
        }
        Ok(view)
    }
}
