//! Comparison of sketches: finds bit-identical rows by checksum, and estimates the errors of the others.

use crate::checkpoint::Point;
use crate::dump::sketch::sketched;
use crate::exact::Float;
use crate::measure::sketch::{PROJECTIONS, WIDTH};
use crate::measure::{ColumnSelection, Measurement, ValuePrecision, measure};
use crate::view::View;
use crate::weight::DType;

/// Returns the sketch of values after rounding them to `stored`, the type that the other side had when it was
/// sketched.
pub fn sketch_of(point: Point, view: &View, stored: Option<DType>) -> View<'static> {
    match stored.filter(|&dtype| dtype != DType::F32).and_then(Float::of) {
        None => sketched(point, view),
        Some(float) => {
            let rounded = view.to_vec().into_iter().map(|value| float.round(value)).collect();
            sketched(point, &View::owned(view.shape(), rounded))
        }
    }
}

/// Compares two sketches of `elements` values in all. An error is the estimated root mean square error per
/// value of a row. Indices count rows and projections. Rows with equal checksums are identical.
pub fn measure_sketches(candidate: &View, reference: &View, elements: usize) -> Measurement {
    let rows = reference.rows();
    let per_row = elements / rows.max(1);
    let is_same = |row: usize| candidate.get(row * WIDTH) == reference.get(row * WIDTH);
    let projections = |view: &View, row: usize| {
        let projection = |column: usize| view.get(row * WIDTH + column) / (per_row as f64).sqrt();
        (WIDTH - PROJECTIONS..WIDTH).map(projection).collect::<Vec<f64>>()
    };
    // Equal values have equal projections, even if they were summed in another order.
    let side = |row: usize| if is_same(row) { reference } else { candidate };
    let of_candidate: Vec<f64> = (0..rows).flat_map(|row| projections(side(row), row)).collect();
    let of_reference: Vec<f64> = (0..rows).flat_map(|row| projections(reference, row)).collect();
    let shape = [rows, PROJECTIONS];
    let (one, other) = (View::of(&shape, &of_candidate), View::of(&shape, &of_reference));
    let found = measure(one, other, ValuePrecision::F32, |_| ColumnSelection::All);
    let same = (0..rows).filter(|&row| is_same(row)).count();
    Measurement { elements, identical: per_row * same, spread: None, ..found }
}
