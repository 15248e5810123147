//! The part of an array that belongs to one of several sequences.

use std::collections::HashSet;

use crate::checkpoint::{Point, TapAxis};
use crate::dump::TensorRow;
use crate::dump::layout::to_axes;
use crate::view::View;

/// The part of an array that belongs to one sequence.
#[derive(Clone, Debug)]
pub(super) struct SequencePart {
    /// The manifest row of the whole array, with its axes.
    pub(super) whole: TensorRow,
    /// Index of the sequence on the axis `batch`.
    pub(super) entry: Option<usize>,
    /// Indices of the sequence's tokens.
    pub(super) tokens: Option<Vec<usize>>,
    /// Indices of the sequence's keys, ordered by position.
    pub(super) keys: Option<Vec<usize>>,
    /// Sequence that owns each key. `None` for padding.
    pub(super) owners: Vec<Option<usize>>,
}

/// Values at keys that belong to other sequences or to padding.
#[derive(Clone, Debug)]
pub struct ForeignKeys {
    /// The values, with the tap's own axes.
    pub(crate) values: View<'static>,
    /// Sequence that owns each key. `None` for padding.
    pub(crate) owners: Vec<Option<usize>>,
}

impl SequencePart {
    /// Returns the values of the whole array at keys of other sequences, if there are any.
    pub(super) fn foreign(&self, whole: View<'static>, point: Point) -> Result<Option<ForeignKeys>, String> {
        let Some(own) = &self.keys else { return Ok(None) };
        let own: HashSet<usize> = own.iter().copied().collect();
        let others: Vec<usize> = (0..self.owners.len()).filter(|key| !own.contains(key)).collect();
        if others.is_empty() {
            return Ok(None);
        }
        let owners = others.iter().map(|&key| self.owners[key]).collect();
        let values = Self { keys: Some(others), ..self.clone() }.of(whole, point)?;
        Ok(Some(ForeignKeys { values, owners }))
    }

    /// Returns the sequence's part of the whole array, with the tap's own axes.
    pub(super) fn of<'v>(&self, whole: View<'v>, point: Point) -> Result<View<'v>, String> {
        let axes = self.whole.axes()?;
        let batch = axes.iter().position(|&axis| axis == TapAxis::Batch);
        let entry = match (batch, self.entry) {
            (Some(batch), Some(entry)) => whole.slice(batch, entry..entry + 1),
            _ => whole,
        };
        let mut view = to_axes(entry, &axes, point.axes())?;
        for (counts, taken) in [(TapAxis::Token, &self.tokens), (TapAxis::Key, &self.keys)] {
            let axis = point.axes().iter().position(|&axis| axis == counts);
            if let (Some(axis), Some(taken)) = (axis, taken) {
                view = view.taken(axis, taken);
            }
        }
        Ok(view)
    }
}
