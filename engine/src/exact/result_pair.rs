//! Results of two engines for one operation with the same inputs, and their errors.

use std::ops::Range;

use multiversion::multiversion;

use crate::error_map::ErrorMap;
use crate::exact::bias::BiasEstimate;
use crate::exact::float::Float;
use crate::exact::value::ExactValue;
use crate::parallel;
use crate::tensor::Tensor;
use crate::view::View;

/// Two engines' results of one operation with the same inputs.
pub struct ResultPair<'c> {
    /// Value of the traced numerics, with its origin.
    pub traced: &'c Tensor,
    /// The dump's values and our engine's, in the layout of [`Self::traced`].
    pub sides: [&'c View<'c>; 2],
    /// Type in which the dump's values were stored, if it is smaller than the computed type. Stored values may have
    /// scales.
    pub stored: Option<Float>,
    /// True if the dump's values have more digits than `f32`.
    pub is_double: bool,
    /// Returns the meaningful columns of a row. The other columns are ignored.
    pub sees: &'c (dyn Fn(usize) -> Range<usize> + Sync),
}

/// Number of values that one piece of work covers.
pub(crate) const PIECE: usize = 1 << 16;

impl ResultPair<'_> {
    /// Divides all rows into pieces of about `values` values.
    pub(crate) fn pieces(&self, values: usize) -> Vec<Range<usize>> {
        let (rows, step) = (self.sides[0].rows(), values.div_ceil(self.sides[0].width().max(1)));
        (0..rows).step_by(step).map(|first| first..rows.min(first + step)).collect()
    }

    /// Returns the 8-bit type that the dump's values are stored in, if there is one.
    pub(crate) fn eighth(&self) -> Option<Float> {
        self.stored.filter(|float| float.is_eighth())
    }

    /// Returns the meaningful columns of a row.
    fn seen(&self, row: usize) -> Range<usize> {
        let (seen, width) = ((self.sees)(row), self.sides[0].width());
        seen.start.min(width)..seen.end.min(width)
    }

    /// Returns the indices to evaluate in some rows: all meaningful values, or only values whose bits differ between
    /// the engines. For 8-bit types, values count as different if ours would be stored with other bits.
    pub(crate) fn wanted(&self, rows: Range<usize>, wants_all: bool) -> Vec<usize> {
        let width = self.sides[0].width();
        let mut wanted = Vec::new();
        let mut room = RowBuffers::new(width);
        for row in rows {
            let seen = self.seen(row);
            let flats = row * width + seen.start..row * width + seen.end;
            match self.plain(row, &seen) {
                _ if wants_all => wanted.extend(flats),
                Some([theirs, ours]) => {
                    let pairs = theirs.iter().zip(ours).zip(flats);
                    wanted.extend(pairs.filter(|((theirs, ours), _)| theirs != ours).map(|(_, flat)| flat));
                }
                None => wanted.extend(self.others(row, seen, &mut room).map(|column| row * width + column)),
            }
        }
        wanted
    }

    /// Returns the stored bytes of both engines' values of a row, if both are contiguous `f32` and were computed in
    /// `f32`.
    fn plain(&self, row: usize, columns: &Range<usize>) -> Option<[&[[u8; 4]]; 2]> {
        let [dump, engine] = self.sides.map(|view| view.stored_f32(row, columns.clone()));
        dump.zip(engine).filter(|_| self.eighth().is_none()).map(|(dump, engine)| [dump, engine])
    }

    /// Returns the columns of a row in which the two engines differ, for any stored type.
    fn others<'r>(
        &self,
        row: usize,
        seen: Range<usize>,
        room: &'r mut RowBuffers,
    ) -> impl Iterator<Item = usize> + use<'r> {
        let ([dump, engine], eighth) = (self.sides, self.eighth());
        let RowBuffers { theirs, ours, scales } = room;
        dump.read(row, seen.clone(), theirs);
        engine.read(row, seen.clone(), ours);
        if let Some(of_dump) = dump.scales() {
            of_dump.read(row, seen.clone(), scales);
        }
        let first = seen.start;
        seen.filter(move |column| {
            let at = column - first;
            match eighth {
                None => theirs[at].to_bits() != ours[at].to_bits(),
                Some(float) => !float.may_store(ours[at], theirs[at], scales[at]),
            }
        })
    }

    /// Returns the flat indices to evaluate in many rows, in ascending order: all meaningful values, or only values
    /// that differ in their bits.
    pub(crate) fn all_wanted(&self, rows: Range<usize>, wants_all: bool) -> Vec<usize> {
        let step = PIECE.div_ceil(self.sides[0].width().max(1));
        let pieces = parallel::map(rows.len().div_ceil(step), PIECE, |piece| {
            let first = rows.start + piece * step;
            self.wanted(first..rows.end.min(first + step), wants_all)
        });
        pieces.concat()
    }

    /// Returns the number of values that [`Self::wanted`] selects in all rows.
    pub(crate) fn count(&self, wants_all: bool) -> usize {
        let of_row = |row: usize| {
            let seen = self.seen(row);
            match self.plain(row, &seen) {
                _ if wants_all => seen.len(),
                Some([theirs, ours]) => unlike(theirs, ours),
                None => self.wanted(row..row + 1, false).len(),
            }
        };
        let pieces = self.pieces(PIECE);
        let counts =
            parallel::map(pieces.len(), PIECE, |piece| pieces[piece].clone().map(of_row).sum::<usize>());
        counts.into_iter().sum()
    }
}

/// Buffers for one row of both engines' values and for the scales of stored values.
struct RowBuffers {
    theirs: Vec<f64>,
    ours: Vec<f64>,
    scales: Vec<f64>,
}

impl RowBuffers {
    fn new(width: usize) -> Self {
        Self { theirs: vec![0.0; width], ours: vec![0.0; width], scales: vec![1.0; width] }
    }
}

/// Returns the number of values whose bits differ.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn unlike(some: &[[u8; 4]], others: &[[u8; 4]]) -> usize {
    some.iter()
        .zip(others)
        .map(|(one, other)| usize::from(u32::from_ne_bytes(*one) != u32::from_ne_bytes(*other)))
        .sum()
}

/// Errors of one engine's values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineErrors {
    /// Violations: number of values above their error bound.
    pub over: usize,
    /// The largest bound ratio, error / error bound; above 1 rounding cannot explain the error.
    pub bound_ratio: f64,
    /// Values with the largest bound ratios, worst first.
    pub worst: Vec<InexactValue>,
    /// The most significant bias, if the operation's rounding is unbiased.
    pub bias: Option<BiasEstimate>,
    /// Distribution of errors over the array and by size, in units of the error bound; `None` if nothing differs.
    pub spread: Option<ErrorMap>,
}

/// A value with its exact value and bound ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InexactValue {
    /// Index in the array.
    pub flat: usize,
    /// Value computed by the engine.
    pub value: f64,
    /// Exact value.
    pub exact: ExactValue,
    /// Bound ratio: the error in units of the error bound.
    pub bound_ratio: f64,
}

/// Number of worst values that are kept.
const WORST: usize = 6;

impl EngineErrors {
    /// Keeps a value if it is among the worst. NaN counts as larger than any number; of equal bound ratios, the first
    /// index is kept.
    pub(crate) fn meet(&mut self, off: InexactValue) {
        let is_worse = |known: &InexactValue| match (known.bound_ratio.is_nan(), off.bound_ratio.is_nan()) {
            (false, false) if off.bound_ratio != known.bound_ratio => off.bound_ratio > known.bound_ratio,
            (known_is, is) if known_is != is => is,
            _ => off.flat < known.flat,
        };
        let at = self.worst.iter().position(is_worse).unwrap_or(self.worst.len());
        if at < WORST {
            self.worst.truncate(WORST - 1);
            self.worst.insert(at, off);
            self.bound_ratio = self.worst[0].bound_ratio;
        }
    }

    /// Returns the bound ratio that a value must exceed to be among the worst.
    pub(crate) fn least_that_counts(&self) -> f64 {
        self.worst.get(WORST - 1).map_or(-1.0, |last| last.bound_ratio)
    }

    /// Returns true if rounding explains the values.
    pub fn is_explained(&self) -> bool {
        self.over == 0 && self.bias.as_ref().is_none_or(|bias| !bias.is_systematic())
    }
}
