//! Attention scores that can be compared: those between a query and a key that it sees. Producers leave
//! arbitrary values in other scores, whose attention weights are zero.

use std::ops::Range;
use std::sync::Arc;

use crate::checkpoint::{Point, TapAxis};
use crate::compare::axis_slices::axis;
use crate::measure::ColumnSelection;

/// The keys that the queries of a layer see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibleKeys {
    /// The position of the first query.
    pub first_query: usize,
    /// The position of the first key.
    pub first_key: usize,
    /// Sliding window: the number of latest positions that a query sees, including itself. `None` for all.
    pub window: Option<usize>,
    /// The recorded rows of the pass, if not all.
    pub rows: Option<Arc<[usize]>>,
}

impl VisibleKeys {
    /// Returns the columns of a row that can be compared. For taps other than scores, the whole row.
    pub fn columns(&self, point: Point, shape: &[usize], row: usize) -> ColumnSelection {
        // A tap with one value per token is a single row of all tokens.
        if let (&[_], [TapAxis::Token], Some(rows)) = (shape, point.axes(), &self.rows) {
            return ColumnSelection::These(rows.to_vec());
        }
        if self.rows.as_ref().is_some_and(|rows| rows.binary_search(&token_of(point, shape, row)).is_err()) {
            return ColumnSelection::Range(0..0);
        }
        match (point, shape) {
            (Point::AttnScores, &[_, queries, keys]) => {
                let query = self.first_query + row % queries;
                let first = self.window.map_or(0, |window| (query + 1).saturating_sub(window));
                let within = |position: usize| position.saturating_sub(self.first_key).min(keys);
                let (start, end) = (within(first), within(query + 1));
                if (start, end) == (0, keys) {
                    ColumnSelection::All
                } else {
                    ColumnSelection::Range(start..end)
                }
            }
            _ => ColumnSelection::All,
        }
    }

    /// Returns the visible columns of a row as a range.
    pub fn range(&self, point: Point, shape: &[usize], row: usize) -> Range<usize> {
        self.columns(point, shape, row).range(shape.last().copied().unwrap_or(1))
    }

    /// Returns true if the entry at a flat index can be compared. Always true for taps other than scores.
    pub fn sees(&self, point: Point, shape: &[usize], flat: usize) -> bool {
        let width = shape.last().copied().unwrap_or(1);
        self.range(point, shape, flat / width).contains(&(flat % width))
    }
}

/// Returns the token index that belongs to a row of an array.
fn token_of(point: Point, shape: &[usize], row: usize) -> usize {
    let Some(tokens) = axis(point, TapAxis::Token) else { return 0 };
    let inside = shape.get(tokens + 1..shape.len() - 1).map_or(1, |inner| inner.iter().product::<usize>());
    row / inside % shape[tokens]
}
