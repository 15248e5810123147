//! What one of several sequences has of an array that holds all of them.

use std::collections::HashSet;

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
    /// Which of its keys, in the order of their positions.
    pub(super) keys: Option<Vec<usize>>,
    /// Whose each of its keys is; padding is nobody's.
    pub(super) owners: Vec<Option<usize>>,
}

/// Keys that are not a sequence's own.
#[derive(Clone, Debug)]
pub struct Foreign {
    /// What the array has there, with the tap point's own axes.
    pub values: View<'static>,
    /// Whose they are; padding is nobody's.
    pub owners: Vec<Option<usize>>,
}

impl Share {
    /// What the whole has at keys that are not the sequence's own, if there are any.
    pub(super) fn foreign(&self, whole: View<'static>, point: Point) -> Result<Option<Foreign>, String> {
        let Some(own) = &self.keys else { return Ok(None) };
        let own: HashSet<usize> = own.iter().copied().collect();
        let others: Vec<usize> = (0..self.owners.len()).filter(|key| !own.contains(key)).collect();
        if others.is_empty() {
            return Ok(None);
        }
        let owners = others.iter().map(|&key| self.owners[key]).collect();
        let values = Self { keys: Some(others), ..self.clone() }.of(whole, point)?;
        Ok(Some(Foreign { values, owners }))
    }

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
