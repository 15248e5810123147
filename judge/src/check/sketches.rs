//! Comparison of sketches: finds bit-identical rows by checksum, and estimates the errors of the others.

use crate::align::{AlignedDump, DumpSite};
use crate::check::site_check::ArrayComparison;
use crate::checkpoint::{Point, Site};
use crate::dump::sketch::sketched;
use crate::error::Result;
use crate::exact::Float;
use crate::measure::sketch::{PROJECTIONS, WIDTH};
use crate::measure::{ColumnSelection, Measurement, ValuePrecision, measure};
use crate::view::View;
use crate::weight::DType;

/// Error message for sketches with different orders of heads.
const UNALIGNED_SKETCHES: &str =
    "sketches cannot be compared: the two dumps order heads differently (layout.rope_pairing)";

/// Error message for sketches with different orders of experts.
const UNALIGNED_EXPERTS: &str = "sketches cannot be compared: the two dumps list the experts in different \
    orders";

/// Returns the sketch of values after rounding them to `stored`, the type that the other side had when it was
/// sketched.
pub(crate) fn sketch_of(point: Point, view: &View, stored: Option<DType>) -> View<'static> {
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
pub(crate) fn measure_sketches(candidate: &View, reference: &View, elements: usize) -> Measurement {
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

/// Compares two sketches, or a sketch with values that are sketched here, of a candidate and a reference. Both
/// passes must cover the same tokens, since a sketch cannot be split. An error message says what is missing.
pub(super) fn compare_sketches(both: [&DumpSite; 2]) -> Result<Result<ArrayComparison, String>> {
    let (site, [candidate, reference]) = (both[0].site, both.map(|at| at.held));
    let (Some(one), Some(other)) = (both[0].whole_pass(), both[1].whole_pass()) else {
        return Ok(Err(format!(
            "{site}: the sketches cover different passes: the dumps split the tokens \
            differently"
        )));
    };
    if site.point.follows_rope_pairing() && candidate.pairing() != reference.pairing() {
        return Ok(Ok(ArrayComparison::Unaligned(UNALIGNED_SKETCHES.to_owned())));
    }
    if site.point.is_of_chosen() && !are_in_one_order((candidate, one), (reference, other))? {
        return Ok(Ok(ArrayComparison::Unaligned(UNALIGNED_EXPERTS.to_owned())));
    }
    let sketches =
        (sketch(candidate, one, reference.stored(other))?, sketch(reference, other, candidate.stored(one))?);
    let (Some(one_sketch), Some(other_sketch)) = sketches else {
        return Ok(Err(format!("{site}: recorded in only one of the two dumps")));
    };
    if one_sketch.shape() != other_sketch.shape() {
        return Ok(Err(format!("{site}: the sketches have different shapes")));
    }
    let elements = candidate.dump.row(one).map_or(0, |row| row.shape.iter().product());
    Ok(Ok(ArrayComparison::Measured(measure_sketches(&one_sketch, &other_sketch, elements))))
}

/// Returns a dump's sketch of a site. If the dump has values instead, sketches them after rounding to the
/// other side's type.
fn sketch(held: &AlignedDump, site: Site, others: Option<DType>) -> Result<Option<View<'static>>> {
    if let Some(sketch) = held.dump.sketch(site)? {
        return Ok(Some(sketch));
    }
    let values = held.values(site, None)?;
    Ok(values.map(|values| sketch_of(site.point, &values, others)))
}

/// Returns true if both dumps list the experts of a pass in the same order.
fn are_in_one_order(one: (&AlignedDump, Site), other: (&AlignedDump, Site)) -> Result<bool> {
    let of = |(held, site): (&AlignedDump, Site)| held.dump.view(Site { point: Point::Experts, ..site });
    let is_choice = one.1.point == Point::Experts;
    let (Some(one), Some(other)) = (of(one)?, of(other)?) else { return Ok(false) };
    let is_stored_so = !is_choice && one.shape() == other.shape();
    Ok(is_stored_so && one.to_vec() == other.to_vec() && one.to_vec().is_sorted())
}
