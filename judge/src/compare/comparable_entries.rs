//! Entries that can be compared without a model. Attention masks are derived from the dumps.

use std::sync::Arc;

use crate::checkpoint::Point;
use crate::compare::visible_keys::VisibleKeys;
use crate::measure::ColumnSelection;
use crate::view::View;

/// The entries of a site that can be compared.
pub(super) struct ComparableEntries {
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
    pub(super) fn causal(
        point: Point,
        shape: &[usize],
        first_query: usize,
        rows: Option<Vec<usize>>,
    ) -> Self {
        let causal = VisibleKeys { first_query, first_key: 0, window: None, rows: rows.map(Arc::from) };
        Self { point, shape: shape.to_vec(), causal, told_by: MaskEvidence::Nothing }
    }

    /// Removes scores that a mask hides on either side, as the attention weights show. Without weights, the
    /// scores show the mask.
    pub(super) fn masked(self, weights: Vec<View<'static>>, scores: [&View<'static>; 2]) -> Self {
        let told_by = match weights.is_empty() {
            false => MaskEvidence::Weights(weights),
            // A score that a mask set to minus infinity on one side may have any value on the other side.
            true => MaskEvidence::Scores(scores.map(View::clone)),
        };
        Self { told_by, ..self }
    }

    pub(super) fn columns(&self, row: usize) -> ColumnSelection {
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
