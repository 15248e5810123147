//! Error metrics of arrays: pure functions over numbers.

use crate::measure::array_pair::{ArrayPair, ColumnSelection};
use crate::measure::lanes::ratio;
use crate::measure::measurement::{Errors, Measurement, WorstElement};
use crate::measure::precision::ValuePrecision;
use crate::measure::sums::ArraySums;
use crate::parallel;
use crate::view::View;

/// Number of pairs in one thread's piece of work, large enough to make the overhead negligible.
const PIECE: usize = 1 << 18;
/// Number of pairs after which the memory pages of a mapped file are released.
const SPAN: usize = 1 << 22;

/// Compares `candidate` with `reference` in the selected columns of each row. The arrays are read once, in order.
/// Memory pages of large mapped files are released while reading.
///
/// # Panics
/// If the shapes differ; callers check shapes first and report an error.
pub fn measure<'v>(
    candidate: impl Into<View<'v>>,
    reference: impl Into<View<'v>>,
    precision: ValuePrecision,
    columns: impl Fn(usize) -> ColumnSelection + Sync,
) -> Measurement {
    measured(candidate.into(), reference.into(), precision, &columns)
}

fn measured(
    candidate: View,
    reference: View,
    precision: ValuePrecision,
    columns: &(dyn Fn(usize) -> ColumnSelection + Sync),
) -> Measurement {
    let is_scaled = candidate.scales().is_some() || reference.scales().is_some();
    let sides = ArrayPair { candidate, reference, is_scaled, precision, columns };
    assert_eq!(sides.candidate.shape(), sides.reference.shape(), "shapes are compared before values");
    let width = sides.reference.width().max(1);
    let (piece, span) = (PIECE.div_ceil(width), SPAN.div_ceil(width));
    let rows = sides.reference.rows();
    let mut sums = ArraySums::new(sides.reference.shape());
    for first in (0..rows).step_by(span) {
        let end = rows.min(first + span);
        let found = parallel::map((end - first).div_ceil(piece), piece * width, |index| {
            let from = first + index * piece;
            sides.of_rows(from..end.min(from + piece))
        });
        sums = found.into_iter().fold(sums, ArraySums::followed_by);
        if first + span < rows {
            sides.candidate.release();
            sides.reference.release();
        }
    }
    sums.finish(sides.reference.shape())
}

/// Token id that marks a missing token.
pub const NO_TOKEN: f64 = -1.0;

/// Compares lists of token ids for equality. The worst element is the first that differs. The shorter list is
/// padded with [`NO_TOKEN`].
pub fn measure_tokens<'v>(candidate: impl Into<View<'v>>, reference: impl Into<View<'v>>) -> Measurement {
    let (candidate, reference) = (candidate.into(), reference.into());
    let length = candidate.len().max(reference.len());
    let shape = if reference.shape().is_empty() { Vec::new() } else { vec![length] };
    let ids = |view: &View| {
        let mut ids = view.to_vec();
        ids.resize(length, NO_TOKEN);
        ids
    };
    let (candidate, reference) = (ids(&candidate), ids(&reference));
    let (one, other) = (View::of(&shape, &candidate), View::of(&shape, &reference));
    let mut found = measure(one, other, ValuePrecision::F32, |_| ColumnSelection::All);
    let mut pairs = candidate.iter().zip(&reference);
    if let Some(first) = pairs.position(|(candidate, reference)| candidate != reference) {
        let index = unravel(first, &shape);
        found.worst = Some(WorstElement { index, candidate: candidate[first], reference: reference[first] });
    }
    found.spread = None;
    found
}

/// Compares lists of ids, each with its position in the array: a row, and an entry of the row.
pub fn measure_placed(candidate: &[f64], reference: &[f64], places: &[[usize; 2]]) -> Measurement {
    let shape = [places.len()];
    let mut found = measure_tokens(View::of(&shape, candidate), View::of(&shape, reference));
    if let Some(worst) = &mut found.worst {
        let place = worst.index.first().and_then(|&flat| places.get(flat));
        worst.index = place.map_or_else(Vec::new, |place| place.to_vec());
    }
    found
}

impl ArraySums {
    fn finish(self, shape: &[usize]) -> Measurement {
        let max_abs = self.worst.map_or(f64::NAN, |pair| pair.difference);
        let count = self.elements as f64;
        let errors = Errors {
            max_abs,
            mean_abs: self.difference / count,
            cosine: self.product / (self.candidate_squared * self.reference_squared).sqrt(),
            rel_l2: ratio(self.difference_squared.sqrt(), self.reference_squared.sqrt()),
            max_rel_rms: ratio(max_abs, (self.reference_squared / count).sqrt()),
            max_scaled: self.scaled,
            past_neighbour: self.past_neighbour,
        };
        Measurement {
            agreement: None,
            tops: None,
            errors,
            elements: self.elements,
            identical: self.identical,
            nonfinite: self.nonfinite,
            candidate_all_zero: self.candidate_squared == 0.0,
            reference_all_zero: self.reference_squared == 0.0,
            worst: self.worst.map(|pair| WorstElement {
                index: unravel(pair.flat, shape),
                candidate: pair.candidate,
                reference: pair.reference,
            }),
            spread: self.spread.has_errors().then(|| Box::new(self.spread)),
        }
    }
}

/// Returns the index along each axis of the flat, row-major index `flat`.
pub fn unravel(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&length| {
            let along = flat % length;
            flat /= length;
            along
        })
        .collect();
    index.reverse();
    index
}
