//! Attention scores that can be compared: those between a query and a key that it sees. Producers leave
//! arbitrary values in other scores, whose attention weights are zero.

use crate::checkpoint::{Point, TapAxis};
use crate::measure::ColumnSelection;
use crate::view::View;
use std::ops::Range;
use std::sync::Arc;

use crate::align::axis_slices::axis;

/// The keys that the queries of a layer see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VisibleKeys {
    /// The position of the first query.
    pub(crate) first_query: usize,
    /// The position of the first key.
    pub(crate) first_key: usize,
    /// Sliding window: the number of latest positions that a query sees, including itself. `None` for all.
    pub(crate) window: Option<usize>,
    /// True if the window is a chunk of positions: a query sees no keys of earlier chunks.
    pub(crate) has_chunks: bool,
    /// The recorded rows of the pass, if not all.
    pub(crate) rows: Option<Arc<[usize]>>,
}

impl VisibleKeys {
    /// Returns the columns of a row that can be compared. For taps other than scores, the whole row.
    pub(crate) fn columns(&self, point: Point, shape: &[usize], row: usize) -> ColumnSelection {
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
                let first = match self.window {
                    None => 0,
                    Some(chunk) if self.has_chunks => query / chunk * chunk,
                    Some(window) => (query + 1).saturating_sub(window),
                };
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
    pub(crate) fn range(&self, point: Point, shape: &[usize], row: usize) -> Range<usize> {
        self.columns(point, shape, row).range(shape.last().copied().unwrap_or(1))
    }

    /// Returns true if the entry at a flat index can be compared. Always true for taps other than scores.
    pub(crate) fn sees(&self, point: Point, shape: &[usize], flat: usize) -> bool {
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

/// The entries of a site that can be compared.
pub(crate) struct ComparableEntries {
    point: Point,
    shape: Vec<usize>,
    causal: VisibleKeys,
    told_by: MaskEvidence,
}

/// The evidence for keys that a layer does not see. Later positions are always hidden.
enum MaskEvidence {
    Nothing,
    /// Attention weights, which are zero at hidden keys.
    Weights(Vec<View<'static>>),
    /// Attention scores. A mask sets the score of a hidden key to minus infinity; keys outside the window
    /// come first in a row.
    Scores([View<'static>; 2]),
}

impl ComparableEntries {
    /// Makes the entries whose keys are not after their query, in the given rows.
    pub(crate) fn causal(
        point: Point,
        shape: &[usize],
        first_query: usize,
        rows: Option<Vec<usize>>,
    ) -> Self {
        let causal = VisibleKeys {
            first_query,
            first_key: 0,
            window: None,
            has_chunks: false,
            rows: rows.map(Arc::from),
        };
        Self { point, shape: shape.to_vec(), causal, told_by: MaskEvidence::Nothing }
    }

    /// Removes scores that a mask hides on either side, as the attention weights show. Without weights, the
    /// scores show the mask.
    pub(crate) fn masked(self, weights: Vec<View<'static>>, scores: [&View<'static>; 2]) -> Self {
        let told_by = match weights.is_empty() {
            false => MaskEvidence::Weights(weights),
            // A score that a mask set to minus infinity on one side may have any value on the other side.
            true => MaskEvidence::Scores(scores.map(View::clone)),
        };
        Self { told_by, ..self }
    }

    pub(crate) fn columns(&self, row: usize) -> ColumnSelection {
        let columns = self.causal.columns(self.point, &self.shape, row);
        let width = self.shape.last().copied().unwrap_or(1);
        let range = columns.range(width);
        match &self.told_by {
            MaskEvidence::Nothing => columns,
            MaskEvidence::Weights(all) => {
                let rows: Vec<Vec<f64>> = all.iter().map(|weights| row_of(weights, row)).collect();
                let sees = |key: &usize| rows.iter().all(|weights| weights[*key] != 0.0);
                match range.clone().all(|key| sees(&key)) {
                    true => columns,
                    false => ColumnSelection::These(range.filter(sees).collect()),
                }
            }
            MaskEvidence::Scores(sides) => {
                // A mask never hides a token from itself. A row of only minus infinity was therefore not
                // masked.
                let leading = |scores: &View| {
                    let scores = row_of(scores, row);
                    let masked = scores.iter().take_while(|score| **score == f64::NEG_INFINITY).count();
                    if masked < range.end { masked } else { 0 }
                };
                let first = sides.iter().map(leading).fold(range.start, usize::max).min(range.end);
                if first == range.start { columns } else { ColumnSelection::Range(first..range.end) }
            }
        }
    }
}

fn row_of(view: &View, row: usize) -> Vec<f64> {
    let mut values = vec![0.0; view.width()];
    view.read(row, 0..view.width(), &mut values);
    values
}
