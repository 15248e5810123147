//! Pairs of arrays of one shape, read row by row and chunk by chunk, without a copy if both have the same type.

use std::mem;
use std::ops::Range;

use crate::measure::lanes::PairSlices;
use crate::measure::precision::ValuePrecision;
use crate::measure::sums::{ArraySums, CHUNK, ChunkLimits, ChunkLocation, PairChunk};
use crate::view::View;

/// Selected entries of each row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnSelection {
    /// All entries.
    All,
    /// Consecutive entries.
    Range(Range<usize>),
    /// Listed entries, in ascending order.
    These(Vec<usize>),
}

impl ColumnSelection {
    /// Returns the smallest range of a row of `width` that covers the selection.
    pub fn range(&self, width: usize) -> Range<usize> {
        match self {
            ColumnSelection::All => 0..width,
            ColumnSelection::Range(range) => range.clone(),
            ColumnSelection::These(columns) => {
                columns.first().map_or(0..0, |&first| first..columns.last().map_or(first, |&last| last + 1))
            }
        }
    }
}

/// Two arrays of one shape, and the settings of their comparison.
pub(super) struct ArrayPair<'s, 'v> {
    pub(crate) candidate: View<'v>,
    pub(crate) reference: View<'v>,
    /// True if one side has scales.
    pub(crate) is_scaled: bool,
    pub(crate) precision: ValuePrecision,
    pub(crate) columns: &'s (dyn Fn(usize) -> ColumnSelection + Sync),
}

/// Compared entries of a row.
enum Entries {
    Range(Range<usize>),
    /// Listed entries: values of the candidate and of the reference, with their scales.
    These(Vec<usize>, [Vec<f64>; 2], Option<[Vec<f64>; 2]>),
}

/// Buffers for a chunk of both sides, for their scales, and for the limits of the chunks of a row.
struct ChunkBuffers {
    values: ValueBuffers,
    scales: [Vec<f64>; 2],
    met: Vec<ChunkLimits>,
}

/// Buffers for values of both sides that must be converted to another type.
struct ValueBuffers {
    short: [Vec<f32>; 2],
    wide: [Vec<f64>; 2],
}

impl ArrayPair<'_, '_> {
    /// Returns the sums over these rows.
    pub(crate) fn of_rows(&self, rows: Range<usize>) -> ArraySums {
        let len = CHUNK.min(self.reference.width());
        let wide = |value: f64| [(); 2].map(|()| vec![value; len]);
        let values = ValueBuffers { short: [(); 2].map(|()| vec![0.0; len]), wide: wide(0.0) };
        let mut room = ChunkBuffers { values, scales: wide(1.0), met: Vec::new() };
        let mut sums = ArraySums::new(self.reference.shape());
        for row in rows {
            let entries = match (self.columns)(row) {
                ColumnSelection::All => Entries::Range(0..self.reference.width()),
                ColumnSelection::Range(range) => Entries::Range(range),
                ColumnSelection::These(columns) => self.these(row, columns),
            };
            self.add(row, &entries, &mut sums, &mut room);
        }
        sums
    }

    /// Adds entries of a row. Scaled errors are added last, because they need the row's mean square, and only for the
    /// few chunks in which they can exceed the maximum so far.
    fn add(&self, row: usize, entries: &Entries, sums: &mut ArraySums, room: &mut ChunkBuffers) {
        let (count, limit) = (entries.len(), sums.limit());
        let parts = || (0..count).step_by(CHUNK).map(|from| from..count.min(from + CHUNK));
        let mut met = mem::take(&mut room.met);
        met.extend(parts().map(|part| self.add_chunk(row, entries, part, sums, room)));
        let square = met.iter().map(|met| met.reference_squared).sum::<f64>() / count as f64;
        for (part, met) in parts().zip(met.drain(..)) {
            if met.excess.is_nan() || met.excess > limit * square {
                sums.scale(&self.chunk(row, entries, part, room), met, square, self.precision);
            }
        }
        room.met = met;
    }

    fn add_chunk(
        &self,
        row: usize,
        entries: &Entries,
        part: Range<usize>,
        sums: &mut ArraySums,
        room: &mut ChunkBuffers,
    ) -> ChunkLimits {
        let is_same = match entries {
            Entries::Range(range) => self.are_same_bits(row, within(range, &part)),
            Entries::These(..) => false,
        };
        let chunk = self.chunk(row, entries, part, room);
        let same_squared =
            is_same.then(|| chunk.pairs.reference_squared()).filter(|squared| squared.is_finite());
        match same_squared {
            Some(squared) => sums.add_identical(&chunk, squared),
            None => sums.add(&chunk, self.precision),
        }
    }

    /// Returns some of the entries, without a copy if possible.
    fn chunk<'r>(
        &'r self,
        row: usize,
        entries: &'r Entries,
        part: Range<usize>,
        room: &'r mut ChunkBuffers,
    ) -> PairChunk<'r> {
        let first = row * self.reference.width();
        match entries {
            Entries::Range(range) => {
                let columns = within(range, &part);
                let place = ChunkLocation::Run(first + columns.start);
                let scales = self.is_scaled.then(|| self.scales(row, &columns, &mut room.scales));
                PairChunk { pairs: self.pairs(row, columns, &mut room.values), scales, place }
            }
            Entries::These(columns, values, scales) => {
                let [candidate, reference] = values.each_ref().map(|values| &values[part.clone()]);
                let scales = scales.as_ref();
                let scales = scales.map(|both| both.each_ref().map(|one| &one[part.clone()]));
                let place = ChunkLocation::These(first, &columns[part.clone()]);
                PairChunk { pairs: PairSlices::widened(candidate, reference), scales, place }
            }
        }
    }

    fn pairs<'r>(&'r self, row: usize, columns: Range<usize>, room: &'r mut ValueBuffers) -> PairSlices<'r> {
        let Self { candidate: one, reference: other, .. } = self;
        let stored = one.raw(row, columns.clone()).zip(other.raw(row, columns.clone()));
        if let Some(pairs) = stored.and_then(|(one, other)| PairSlices::stored([one, other])) {
            return pairs;
        }
        let ([short_one, short_other], [wide_one, wide_other]) = (&mut room.short, &mut room.wide);
        let short = one.as_f32(row, columns.clone(), short_one);
        match short.zip(other.as_f32(row, columns.clone(), short_other)) {
            Some((one, other)) => PairSlices::F32(one, other),
            None => PairSlices::F64(
                one.as_f64(row, columns.clone(), wide_one),
                other.as_f64(row, columns, wide_other),
            ),
        }
    }

    /// Returns the scales of both sides; a side without scales gets 1 for each element.
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

    fn are_same_bits(&self, row: usize, columns: Range<usize>) -> bool {
        match (self.candidate.raw(row, columns.clone()), self.reference.raw(row, columns)) {
            (Some(candidate), Some(reference)) => candidate == reference,
            _ => false,
        }
    }

    /// Reads the listed entries of a row of both sides.
    fn these(&self, row: usize, columns: Vec<usize>) -> Entries {
        let width = self.reference.width();
        let of = |view: &View| {
            let mut values = vec![0.0; width];
            view.read(row, 0..width, &mut values);
            columns.iter().map(|&column| values[column]).collect::<Vec<_>>()
        };
        let sides = [&self.candidate, &self.reference];
        let scale = |view: &View| view.scales().map_or_else(|| vec![1.0; columns.len()], of);
        let (values, scales) = (sides.map(of), self.is_scaled.then(|| sides.map(scale)));
        Entries::These(columns, values, scales)
    }
}

impl Entries {
    fn len(&self) -> usize {
        match self {
            Entries::Range(range) => range.len(),
            Entries::These(columns, ..) => columns.len(),
        }
    }
}

/// Returns the part of a range at an offset.
fn within(range: &Range<usize>, part: &Range<usize>) -> Range<usize> {
    range.start + part.start..range.start + part.end
}
