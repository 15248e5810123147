//! Fault in which a kernel did not write rows of its result: those of an incomplete tile, or past the end of a
//! loop.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext, index_range};
use crate::checkpoint::Point;
use crate::tensor::Tensor;

/// Results of products, and of other operations that kernels split by tokens.
const TILED: &[Point] = &[
    Point::Q,
    Point::K,
    Point::V,
    Point::AttnContext,
    Point::AttnOut,
    Point::FfnGate,
    Point::FfnUp,
    Point::FfnAct,
    Point::FfnOut,
    Point::Logits,
];

/// Minimum number of values in a row for a row of zeros to be evidence.
const SHORTEST: usize = 8;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::RowSource,
    at: TILED,
    takes: "zero:12-13",
    compute: |at, value| without_rows(at, value.as_word()?.strip_prefix("zero:")?),
    read: read_zeros,
    usual: Some(|_| Vec::new()),
    ..CatalogueEntry::PLAIN
}];

/// Replaces the rows of some positions by zeros.
fn without_rows(at: &SiteContext, positions: &str) -> Option<Tensor> {
    let lost = index_range(positions)?;
    let (width, nothing) = (at.value.row_len(), Tensor::scalar(0.0));
    at.positions.clone().any(|position| lost.contains(&position)).then(|| {
        at.n.gathered(&[at.value, &nothing], at.value.shape(), |flat| {
            match lost.contains(&(at.positions.start + flat / width)) {
                true => (1, 0),
                false => (0, flat),
            }
        })
    })
}

/// Finds the positions of rows that are zero, if they are consecutive and other rows of the pass are not zero.
fn read_zeros(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let width = at.value.row_len();
    let rows: Vec<&[f64]> = theirs.chunks(width).collect();
    let is_zero = |row: &&[f64]| row.iter().all(|&value| value == 0.0);
    let zeros: Vec<usize> = (0..rows.len()).filter(|&row| is_zero(&rows[row])).collect();
    let (Some(&first), Some(&last)) = (zeros.first(), zeros.last()) else { return Vec::new() };
    let is_run = last - first + 1 == zeros.len() && zeros.len() < rows.len();
    if !is_run || width < SHORTEST || rows.len() != at.positions.len() {
        return Vec::new();
    }
    let [first, last] = [first, last].map(|row| at.positions.start + row);
    let span = if first == last { first.to_string() } else { format!("{first}-{last}") };
    vec![ChangeValue::Word(format!("zero:{span}"))]
}
