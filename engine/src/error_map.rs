//! Distribution of errors over two axes of an array and by magnitude. Its memory does not depend on the array's size.

use std::ops::Range;

/// Maximum number of cells along each side of a map.
const CELLS: usize = 24;
/// Maximum number of cells along an innermost axis. It is larger than [`CELLS`], because faults often affect
/// single entries of the innermost axis.
const FINE_CELLS: usize = 64;
/// Number of values up to which every value is counted. In larger arrays, one value in `step` is counted, and also
/// represents the values up to the next one. The step shares no factor with common head sizes, so that all entries
/// are sampled.
const COUNTED_WHOLE: usize = 1 << 16;
const STEP: usize = 127;

/// Magnitude of an error: zero, the largest power of two that is not above the error, or not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ErrorMagnitude(u8);

impl ErrorMagnitude {
    /// Magnitude of no error, or of a value without comparison.
    pub const NONE: Self = Self(0);
    /// The magnitude class of NaN and infinite errors.
    pub const NONFINITE: Self = Self(Self::COUNT as u8 - 1);
    /// Exponent of the smallest magnitude; smaller errors count as 2^LEAST.
    pub const LEAST: i16 = -40;
    /// Exponent of the largest magnitude; larger errors count as 2^MOST.
    pub const MOST: i16 = 23;
    /// Number of magnitudes.
    const COUNT: usize = (Self::MOST - Self::LEAST) as usize + 3;

    /// Returns the magnitude of a non-negative error.
    pub fn of(error: f64) -> Self {
        match error {
            0.0 => Self::NONE,
            error if !error.is_finite() => Self::NONFINITE,
            error => {
                let exponent = (error.to_bits() >> 52 & 0x7ff) as i16 - 1023;
                Self((exponent.clamp(Self::LEAST, Self::MOST) - Self::LEAST) as u8 + 1)
            }
        }
    }

    /// Returns the magnitude for 2^exponent; `None` outside of [`Self::LEAST`] to [`Self::MOST`].
    pub fn of_exponent(exponent: i16) -> Option<Self> {
        let is_known = (Self::LEAST..=Self::MOST).contains(&exponent);
        is_known.then(|| Self((exponent - Self::LEAST) as u8 + 1))
    }

    /// Returns the exponent of a finite error's power of two.
    pub fn exponent(self) -> Option<i16> {
        (self != Self::NONE && self != Self::NONFINITE).then(|| i16::from(self.0) - 1 + Self::LEAST)
    }

    /// Returns all magnitudes, from no error to NaN and infinity.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }
}

/// The two outermost axes of three.
const OUTERMOST: [usize; 2] = [0, 1];
/// Indices of the outermost and the innermost of three axes.
const INNERMOST: [usize; 2] = [0, 2];

/// The largest error of each region of an array, and the number of errors of each magnitude.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorMap {
    /// Axes of the map: the two outermost, or the outermost and the innermost of three.
    pub axes: [usize; 2],
    /// Lengths of the axes; for a single axis 1 and its length.
    pub lengths: [usize; 2],
    /// Largest errors in the cells of the map ([`Self::cells`]), row by row. On long axes, several neighbouring entries
    /// share a cell.
    pub largest: Vec<ErrorMagnitude>,
    /// Number of errors of each magnitude. Each counted error also represents the values that were skipped.
    counts: Vec<u64>,
    /// Number of values at each index of the two axes.
    inner: usize,
    /// First index after each cell, along the second axis and along the innermost axis.
    ends: [Vec<usize>; 2],
    /// Second map of an array with three axes, over the outermost and the innermost one. [`Self::settled`] keeps this map or
    /// the other one.
    innermost: Option<Vec<ErrorMagnitude>>,
    /// Counting interval within a run: one value in `step` is counted.
    step: usize,
    /// Counting interval over the whole array: one value in `counted` is counted.
    counted: usize,
}

impl ErrorMap {
    /// Creates the distribution of an array without differences.
    pub fn new(shape: &[usize]) -> Self {
        let (lengths, inner) = match *shape {
            [] => ([1, 1], 1),
            [only] => ([1, only], 1),
            [outer, next, ref inner @ ..] => ([outer, next], inner.iter().product()),
        };
        let values = shape.iter().fold(1usize, |values, &length| values.saturating_mul(length));
        let step = if values > COUNTED_WHOLE { STEP } else { 1 };
        let counts = vec![0; ErrorMagnitude::COUNT];
        let (axes, innermost) = (OUTERMOST, None);
        let ends = [ends_of_cells(lengths[1], CELLS), ends_of_cells(inner, FINE_CELLS)];
        let mut spread =
            Self { axes, lengths, largest: Vec::new(), counts, inner, ends, innermost, step, counted: 1 };
        let [rows, columns] = spread.cells();
        spread.largest = vec![ErrorMagnitude::NONE; rows * columns];
        spread
    }

    /// Creates the distribution of an array without differences, with a map over its innermost axis as well.
    pub fn with_innermost(shape: &[usize]) -> Self {
        let spread = Self::new(shape);
        let cells = spread.cells()[0] * spread.inner.min(FINE_CELLS);
        Self { innermost: (shape.len() == 3).then(|| vec![ErrorMagnitude::NONE; cells]), ..spread }
    }

    /// Keeps the more specific of the two maps: the one with the smaller share of cells that have errors of 1 or more.
    pub fn settled(mut self) -> Self {
        let share = |map: &[ErrorMagnitude]| {
            let large = map.iter().filter(|size| **size >= ErrorMagnitude::of(1.0)).count();
            large as f64 / map.len().max(1) as f64
        };
        if let Some(innermost) = self.innermost.take()
            && share(&innermost) < share(&self.largest)
        {
            (self.axes, self.largest) = (INNERMOST, innermost);
            self.lengths[1] = self.inner;
        }
        self
    }

    /// Creates a distribution from its parts, with one value in `counted` counted; `None` if the parts contradict each
    /// other.
    pub fn from_parts(
        axes: [usize; 2],
        lengths: [usize; 2],
        largest: Vec<ErrorMagnitude>,
        counts: &[(ErrorMagnitude, u64)],
        counted: usize,
    ) -> Option<Self> {
        let mut spread = Self { axes, largest, counted, ..Self::new(&lengths) };
        counts.iter().for_each(|&(size, count)| spread.counts[usize::from(size.0)] = count);
        let [rows, columns] = spread.cells();
        let is_whole = spread.largest.len() == rows * columns && counted > 0;
        (is_whole && [OUTERMOST, INNERMOST].contains(&axes)).then_some(spread)
    }

    /// Returns the number of cells of the map along each axis.
    pub fn cells(&self) -> [usize; 2] {
        let [rows, columns] = self.lengths;
        [rows.min(CELLS), columns.min(if self.axes == INNERMOST { FINE_CELLS } else { CELLS })]
    }

    /// Returns the counting interval; 1 if all values were counted. NaN and infinity are always counted.
    pub fn counted(&self) -> usize {
        self.counted
    }

    /// Returns the number of errors of each magnitude that occurs.
    pub fn counts(&self) -> impl Iterator<Item = (ErrorMagnitude, u64)> {
        ErrorMagnitude::all().zip(self.counts.iter().copied()).filter(|(_, count)| *count > 0)
    }

    /// Returns true if any value differs.
    pub fn has_errors(&self) -> bool {
        self.largest.iter().any(|&size| size != ErrorMagnitude::NONE)
    }

    /// Adds the error of one value.
    pub fn add(&mut self, flat: usize, error: f64) {
        let size = ErrorMagnitude::of(error);
        self.counts[usize::from(size.0)] += 1;
        self.meet(self.cell(self.index(flat)), size);
    }

    /// Adds values without an error.
    pub fn add_identical(&mut self, count: usize) {
        self.counts[0] += count as u64;
    }

    /// Adds the errors of consecutive values. `error` returns the error of one value, `largest` the largest error in a
    /// range of values, and `bound` is an upper bound of all errors.
    pub fn add_run(
        &mut self,
        run: Range<usize>,
        bound: f64,
        error: impl Fn(usize) -> f64,
        largest: impl Fn(Range<usize>) -> f64,
    ) {
        let step = if bound.is_finite() { self.step } else { 1 };
        self.counted = self.counted.max(step);
        for at in (0..run.len()).step_by(step) {
            // In short runs, another value each time.
            let represented = step.min(run.len() - at);
            let counted = at + (run.start + at) / step % represented;
            self.counts[usize::from(ErrorMagnitude::of(error(counted)).0)] += represented as u64;
        }
        self.meet_run(run, bound, largest);
    }

    /// Updates the largest error of each cell that a run covers, without counting errors.
    fn meet_run(&mut self, run: Range<usize>, bound: f64, largest: impl Fn(Range<usize>) -> f64) {
        let ([rows, columns], [high, wide], inner) = (self.lengths, self.cells(), self.inner);
        let bound = ErrorMagnitude::of(bound);
        let mut start = run.start;
        while start < run.end {
            let row = start / (columns * inner);
            let first = row * columns * inner;
            let until = run.end.min(first + columns * inner);
            let covered =
                (start - first) / inner * wide / columns..(until - 1 - first) / inner * wide / columns + 1;
            let cells = &mut self.largest[row * high / rows * wide..][covered.clone()];
            for (cell, end_of_cell) in cells.iter_mut().zip(&self.ends[0][covered]) {
                let end = until.min(first + end_of_cell * inner);
                // No error of the run exceeds `bound`, so a cell that has its magnitude cannot change.
                if *cell < bound {
                    let part = start - run.start..end - run.start;
                    *cell = (*cell).max(ErrorMagnitude::of(largest(part)));
                }
                start = end;
            }
        }
    }

    /// Updates the map over the innermost axis with the errors of a run. If the largest error of the run is below 1,
    /// all errors of the run are replaced by it.
    pub fn meet_innermost(&mut self, run: Range<usize>, errors: &[f64], largest: f64) {
        let ([rows, high], inner) = ([self.lengths[0], self.cells()[0]], self.inner);
        let per_row = self.lengths[1] * inner;
        let Some(map) = &mut self.innermost else { return };
        let wide = inner.min(FINE_CELLS);
        let (is_small, bound) = (largest < 1.0 && run.len() >= inner, ErrorMagnitude::of(largest));
        for start in run.clone().step_by(per_row.max(1)) {
            // A run rarely covers several rows.
            let end = run.end.min(start + per_row);
            if is_small && start / per_row == (end - 1) / per_row {
                let cells = &mut map[start / per_row * high / rows * wide..][..wide];
                cells.iter_mut().for_each(|cell| *cell = (*cell).max(bound));
                continue;
            }
            let mut flat = start;
            while flat < end {
                let (whole, row) = (flat / inner * inner, flat / per_row * high / rows * wide);
                let until = end.min(whole + inner);
                let covered = (flat - whole) * wide / inner..(until - 1 - whole) * wide / inner + 1;
                let cells = map[row..][covered.clone()].iter_mut().zip(&self.ends[1][covered]);
                for (cell, end_of_cell) in cells {
                    let end_of_cell = until.min(whole + end_of_cell);
                    // As above.
                    if *cell < bound {
                        *cell = (*cell).max(magnitude(&errors[flat - run.start..end_of_cell - run.start]));
                    }
                    flat = end_of_cell;
                }
            }
        }
    }

    /// Merges the distribution of another part of the array.
    pub fn followed_by(mut self, next: &Self) -> Self {
        self.counts.iter_mut().zip(&next.counts).for_each(|(count, next)| *count += next);
        self.counted = self.counted.max(next.counted);
        let maps = [
            (Some(&mut self.largest), Some(&next.largest)),
            (self.innermost.as_mut(), next.innermost.as_ref()),
        ];
        for (map, next) in maps.into_iter().filter_map(|(map, next)| map.zip(next)) {
            map.iter_mut().zip(next).for_each(|(size, &next)| *size = (*size).max(next));
        }
        self
    }

    #[inline]
    fn meet(&mut self, cell: usize, size: ErrorMagnitude) {
        self.largest[cell] = self.largest[cell].max(size);
    }

    /// Returns the index of a value along the two axes.
    fn index(&self, flat: usize) -> [usize; 2] {
        let outer = flat / self.inner;
        [outer / self.lengths[1], outer % self.lengths[1]]
    }

    #[inline]
    fn cell(&self, [row, column]: [usize; 2]) -> usize {
        let ([rows, columns], [high, wide]) = (self.lengths, self.cells());
        row * high / rows * wide + column * wide / columns
    }
}

/// Returns the magnitude of the largest of some errors.
fn magnitude(errors: &[f64]) -> ErrorMagnitude {
    let larger = |most: f64, &error: &f64| if error > most || error.is_nan() { error } else { most };
    ErrorMagnitude::of(errors.iter().fold(0.0, larger))
}

/// Returns the first index after each cell of an axis with at most `most` cells.
fn ends_of_cells(length: usize, most: usize) -> Vec<usize> {
    let cells = length.min(most);
    // ⌈cell · length / cells⌉, without the product, which may overflow.
    (1..=cells).map(|cell| cell * (length / cells) + (cell * (length % cells)).div_ceil(cells)).collect()
}
