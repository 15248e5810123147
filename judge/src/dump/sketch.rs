//! Sketches of taps: the taps that can be sketched, and one sketch row per token.

use crate::checkpoint::{Point, TapAxis, ValueKind};
use crate::measure::sketch::{WIDTH, of_row};
use crate::parallel;
use crate::view::View;

/// Returns true if a tap can be sketched. Token ids need no sketch. Scores are excluded because their hidden
/// entries are unknown; sketches of the attention weights show the same.
pub(crate) fn is_sketched(point: Point) -> bool {
    point.kind() == ValueKind::Real && point != Point::AttnScores && !point.is_of_named_ids()
}

/// Returns the number of rows of a sketch: one per token, or one for a value that exists once per pass.
pub(crate) fn rows(point: Point, shape: &[usize]) -> usize {
    match point.axes() {
        [TapAxis::Token | TapAxis::Key, ..] => shape.first().copied().unwrap_or(1),
        [TapAxis::Head, TapAxis::Token, ..] => shape.get(1).copied().unwrap_or(1),
        _ => 1,
    }
}

/// Computes the sketch of an array with the tap's own axes, `[rows, WIDTH]`.
pub fn sketched(point: Point, view: &View) -> View<'static> {
    let rows = rows(point, view.shape());
    let per_row = view.len().checked_div(rows).unwrap_or(0);
    let mut sketch = vec![0.0; rows * WIDTH];
    parallel::chunks(&mut sketch, WIDTH, 8 * per_row, |row, out| {
        let mut values = vec![0.0; per_row];
        read(point, view, row, rows, &mut values);
        out.copy_from_slice(&of_row(&values));
    });
    View::owned(&[rows, WIDTH], sketch)
}

/// Reads the values of one token. For attention weights, reads them head by head.
fn read(point: Point, view: &View, row: usize, rows: usize, out: &mut [f64]) {
    match point.axes() {
        [TapAxis::Head, TapAxis::Token, ..] => {
            let heads = out.chunks_mut(view.width().max(1)).enumerate();
            heads.for_each(|(head, out)| view.read(head * rows + row, 0..view.width(), out));
        }
        _ => {
            let lines = view.rows().checked_div(rows).unwrap_or(0);
            view.read_rows(row * lines..(row + 1) * lines, out);
        }
    }
}
