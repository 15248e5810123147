//! How far one array is from another: plain functions over numbers.

use std::ops::Range;

use crate::measure::grain::Grain;
use crate::measure::measurement::{Errors, Measurement, Worst};
use crate::measure::sums::{CHUNK, Chunk, Sums, ratio, squared};
use crate::parallel;
use crate::view::View;

/// Which entries of a row are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Columns {
    /// All.
    All,
    /// Those that follow each other.
    Range(Range<usize>),
    /// These, in ascending order.
    These(Vec<usize>),
}

impl Columns {
    /// The least range of a row of `width` that has them all.
    pub fn range(&self, width: usize) -> Range<usize> {
        match self {
            Columns::All => 0..width,
            Columns::Range(range) => range.clone(),
            Columns::These(columns) => {
                columns.first().map_or(0..0, |&first| first..columns.last().map_or(first, |&last| last + 1))
            }
        }
    }
}

/// Pairs that one thread takes at a time: so many that what they share is not worth mentioning.
const PIECE: usize = 1 << 18;
/// Pairs after which what was read of a file is given back.
const SPAN: usize = 1 << 22;

/// Compares `candidate` with `reference` in those entries of each row that `columns` says. The arrays are read once, in
/// order; of a mapped file that is larger what was read is given back on the way.
///
/// # Panics
/// If the shapes differ: shapes are checked, and refused with a message, before values are looked at.
pub fn measure<'v>(
    candidate: impl Into<View<'v>>,
    reference: impl Into<View<'v>>,
    grain: Grain,
    columns: impl Fn(usize) -> Columns + Sync,
) -> Measurement {
    measured(candidate.into(), reference.into(), grain, &columns)
}

fn measured(
    candidate: View,
    reference: View,
    grain: Grain,
    columns: &(dyn Fn(usize) -> Columns + Sync),
) -> Measurement {
    let is_scaled = candidate.scales().is_some() || reference.scales().is_some();
    let sides = Sides { candidate, reference, is_scaled, grain, columns };
    assert_eq!(sides.candidate.shape(), sides.reference.shape(), "shapes are compared before values");
    let width = sides.reference.width().max(1);
    let (piece, span) = (PIECE.div_ceil(width), SPAN.div_ceil(width));
    let rows = sides.reference.rows();
    let mut sums = Sums::new(sides.reference.shape());
    for first in (0..rows).step_by(span) {
        let end = rows.min(first + span);
        let found = parallel::map((end - first).div_ceil(piece), piece * width, |index| {
            let from = first + index * piece;
            sides.of_rows(from..end.min(from + piece))
        });
        sums = found.into_iter().fold(sums, Sums::followed_by);
        if first + span < rows {
            sides.candidate.release();
            sides.reference.release();
        }
    }
    sums.finish(sides.reference.shape())
}

/// Two arrays of one shape, and how they are compared.
struct Sides<'s, 'v> {
    candidate: View<'v>,
    reference: View<'v>,
    /// Whether what is stored on one side has scales.
    is_scaled: bool,
    grain: Grain,
    columns: &'s (dyn Fn(usize) -> Columns + Sync),
}

/// Room for a chunk of both sides, and for their scales.
struct Room {
    candidate: Vec<f64>,
    reference: Vec<f64>,
    scales: [Vec<f64>; 2],
}

impl Sides<'_, '_> {
    fn of_rows(&self, rows: Range<usize>) -> Sums {
        let scales = [(); 2].map(|()| vec![1.0; if self.is_scaled { CHUNK } else { 0 }]);
        let mut room = Room { candidate: vec![0.0; CHUNK], reference: vec![0.0; CHUNK], scales };
        let mut sums = Sums::new(self.reference.shape());
        for row in rows {
            match (self.columns)(row) {
                Columns::All => self.add_range(row, 0..self.reference.width(), &mut sums, &mut room),
                Columns::Range(range) => self.add_range(row, range, &mut sums, &mut room),
                Columns::These(columns) => self.add_some(row, &columns, &mut sums),
            }
        }
        sums
    }

    /// Adds entries of a row that follow each other.
    fn add_range(&self, row: usize, columns: Range<usize>, sums: &mut Sums, room: &mut Room) {
        let flat = row * self.reference.width();
        let chunk_at = |from: usize| from..columns.end.min(from + CHUNK);
        let (mut total, mut last) = (0.0, 0.0);
        for from in columns.clone().step_by(CHUNK) {
            let reference = &mut room.reference[..chunk_at(from).len()];
            self.reference.read(row, chunk_at(from), reference);
            last = squared(reference);
            total += last;
        }
        let square = total / columns.len() as f64;
        for from in columns.clone().step_by(CHUNK) {
            let chunk = chunk_at(from);
            let (candidate, reference) =
                (&mut room.candidate[..chunk.len()], &mut room.reference[..chunk.len()]);
            if columns.len() > CHUNK {
                self.reference.read(row, chunk.clone(), reference);
                last = squared(reference);
            }
            let is_ordinary = last.is_finite();
            if is_ordinary && self.are_same_bits(row, &chunk) {
                sums.add_identical(reference, last, flat + from);
                continue;
            }
            self.candidate.read(row, chunk.clone(), candidate);
            let scales = self.is_scaled.then(|| self.scales(row, &chunk, &mut room.scales));
            let flat = |at: usize| flat + from + at;
            sums.add(
                &Chunk {
                    candidate,
                    reference,
                    scales,
                    reference_squared: last,
                    square,
                    flat: &flat,
                    is_run: true,
                },
                self.grain,
            );
        }
    }

    /// The scales of both sides; where one has none they are 1, as its room is.
    fn scales<'r>(
        &self,
        row: usize,
        columns: &Range<usize>,
        [one, other]: &'r mut [Vec<f64>; 2],
    ) -> [&'r [f64]; 2] {
        for (view, room) in [(&self.candidate, &mut *one), (&self.reference, &mut *other)] {
            if let Some(scales) = view.scales() {
                scales.read(row, columns.clone(), room);
            }
        }
        [&one[..columns.len()], &other[..columns.len()]]
    }

    fn are_same_bits(&self, row: usize, columns: &Range<usize>) -> bool {
        match (self.candidate.raw(row, columns.clone()), self.reference.raw(row, columns.clone())) {
            (Some(candidate), Some(reference)) => candidate == reference,
            _ => false,
        }
    }

    /// Adds some entries of a row.
    fn add_some(&self, row: usize, columns: &[usize], sums: &mut Sums) {
        let width = self.reference.width();
        let of = |view: &View| {
            let mut values = vec![0.0; width];
            view.read(row, 0..width, &mut values);
            columns.iter().map(|&column| values[column]).collect::<Vec<_>>()
        };
        let (candidate, reference) = (of(&self.candidate), of(&self.reference));
        let scale = |view: &View| view.scales().map_or_else(|| vec![1.0; columns.len()], of);
        let scales = self.is_scaled.then(|| [scale(&self.candidate), scale(&self.reference)]);
        let square = squared(&reference) / columns.len().max(1) as f64;
        let chunks = candidate.chunks(CHUNK).zip(reference.chunks(CHUNK)).zip(columns.chunks(CHUNK));
        for (index, ((candidate, reference), columns)) in chunks.enumerate() {
            let flat = |at: usize| row * width + columns[at];
            let reference_squared = squared(reference);
            let from = index * CHUNK;
            let scales =
                scales.as_ref().map(|both| both.each_ref().map(|one| &one[from..from + columns.len()]));
            let is_run = false;
            let chunk =
                Chunk { candidate, reference, scales, reference_squared, square, flat: &flat, is_run };
            sums.add(&chunk, self.grain);
        }
    }
}

/// Stands where there is no token.
pub const NO_TOKEN: f64 = -1.0;

/// Compares lists of token ids. Ids are equal or not, so the worst is the first that differs. Where one list has ended
/// [`NO_TOKEN`] stands for what it lacks.
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
    let mut found = measure(one, other, Grain::F32, |_| Columns::All);
    let mut pairs = candidate.iter().zip(&reference);
    if let Some(first) = pairs.position(|(candidate, reference)| candidate != reference) {
        let index = unravel(first, &shape);
        found.worst = Some(Worst { index, candidate: candidate[first], reference: reference[first] });
    }
    found.spread = None;
    found
}

/// Compares ids, each of which is at one of these places: a row and an entry of it.
pub fn measure_placed(candidate: &[f64], reference: &[f64], places: &[[usize; 2]]) -> Measurement {
    let shape = [places.len()];
    let mut found = measure_tokens(View::of(&shape, candidate), View::of(&shape, reference));
    if let Some(worst) = &mut found.worst {
        let place = worst.index.first().and_then(|&flat| places.get(flat));
        worst.index = place.map_or_else(Vec::new, |place| place.to_vec());
    }
    found
}

impl Sums {
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
            worst: self.worst.map(|pair| Worst {
                index: unravel(pair.flat, shape),
                candidate: pair.candidate,
                reference: pair.reference,
            }),
            spread: self.spread.has_errors().then(|| Box::new(self.spread)),
        }
    }
}

/// The index along each axis of the flat, row-major index `flat`.
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
