//! Sums over two arrays, chunk by chunk. The order of summation is the same on every machine and for any number of
//! threads.

use std::ops::Range;

use crate::error_map::ErrorMap;
use crate::measure::lanes::{PairSlices, scaled};
use crate::measure::measurement::{Errors, NonfiniteCounts};
use crate::measure::precision::ValuePrecision;

/// Maximum number of pairs in a chunk, so that both sides fit in the first-level cache.
pub(super) const CHUNK: usize = 1024;

/// Sums over pairs, in ascending order of their indices.
#[derive(Clone, Debug)]
pub(super) struct ArraySums {
    pub(crate) elements: usize,
    pub(crate) identical: usize,
    pub(crate) nonfinite: NonfiniteCounts,
    pub(crate) difference: f64,
    pub(crate) difference_squared: f64,
    pub(crate) product: f64,
    pub(crate) candidate_squared: f64,
    pub(crate) reference_squared: f64,
    pub(crate) scaled: f64,
    pub(crate) past_neighbour: f64,
    pub(crate) worst: Option<ElementPair>,
    pub(crate) spread: ErrorMap,
}

/// An element of both sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct ElementPair {
    pub(crate) flat: usize,
    pub(crate) difference: f64,
    pub(crate) candidate: f64,
    pub(crate) reference: f64,
}

/// Consecutive elements of a row of both sides.
pub(super) struct PairChunk<'c> {
    pub(crate) pairs: PairSlices<'c>,
    /// Scales of the elements of both sides, if one side has scales.
    pub(crate) scales: Option<[&'c [f64]; 2]>,
    pub(crate) place: ChunkLocation<'c>,
}

/// Location of a chunk's elements in the array.
#[derive(Clone, Copy)]
pub(super) enum ChunkLocation<'c> {
    /// Consecutive elements, starting at this index.
    Run(usize),
    /// Listed elements of a row: the row's start, and the listed entries.
    These(usize, &'c [usize]),
}

/// Limits of a chunk. They allow skipping the chunk's scaled errors once the row's sums are known.
#[derive(Clone, Copy)]
pub(super) struct ChunkLimits {
    /// Sum of the reference's squares.
    pub(crate) reference_squared: f64,
    /// Largest amount by which a squared error exceeds [`ArraySums::limit`] times its squared element; at least 0. NaN
    /// if every scaled error must be computed.
    pub(crate) excess: f64,
}

impl ArraySums {
    /// Creates empty sums for arrays of a shape.
    pub(crate) fn new(shape: &[usize]) -> Self {
        Self {
            elements: 0,
            identical: 0,
            nonfinite: NonfiniteCounts::default(),
            difference: 0.0,
            difference_squared: 0.0,
            product: 0.0,
            candidate_squared: 0.0,
            reference_squared: 0.0,
            scaled: 0.0,
            past_neighbour: 0.0,
            worst: None,
            spread: ErrorMap::new(shape),
        }
    }

    /// Adds a chunk of finite values that are bit-identical on both sides; `squared` is the sum of their squares.
    pub(crate) fn add_identical(&mut self, chunk: &PairChunk, squared: f64) -> ChunkLimits {
        let count = chunk.pairs.len();
        self.elements += count;
        self.identical += count;
        self.product += squared;
        self.candidate_squared += squared;
        self.reference_squared += squared;
        self.spread.add_identical(count);
        if self.worst.is_none() && count > 0 {
            self.worst = Some(chunk.pair(0, ValuePrecision::F32));
        }
        ChunkLimits { reference_squared: squared, excess: 0.0 }
    }

    /// Adds all figures of a chunk except scaled errors, which need the sums of the whole row.
    pub(crate) fn add(&mut self, chunk: &PairChunk, precision: ValuePrecision) -> ChunkLimits {
        if chunk.scales.is_some() {
            return self.add_each(chunk, precision);
        }
        let found = chunk.pairs.add_up(precision.storage(), self.limit());
        // NaN, infinity, and numbers whose squares leave the range of f64 are added one by one.
        if !found.is_ordinary() {
            return self.add_each(chunk, precision);
        }
        self.elements += chunk.pairs.len();
        self.identical += found.identical;
        self.difference += found.difference;
        self.difference_squared += found.difference_squared;
        self.product += found.product;
        self.candidate_squared += found.candidate_squared;
        self.reference_squared += found.reference_squared;
        if found.largest > self.past_neighbour {
            let past = chunk.pairs.past_neighbour(precision.storage(), precision.spacing());
            self.past_neighbour = larger(self.past_neighbour, past);
        }
        if self.worst.is_none_or(|worst| found.largest > worst.difference) {
            self.worst = Some(chunk.pair(chunk.pairs.first_largest(precision.storage()), precision));
        }
        self.spread_out(chunk, found.largest, precision);
        ChunkLimits { reference_squared: found.reference_squared, excess: found.excess }
    }

    /// Returns the square of the largest scaled error so far, slightly reduced so that rounding cannot hide a larger
    /// error.
    pub(crate) fn limit(&self) -> f64 {
        self.scaled * self.scaled * (1.0 - 1e-9)
    }

    /// Adds the scaled errors of a chunk. `met` are the limits that [`Self::add`] returned. `square` is the mean square
    /// of the reference's compared entries in the row.
    pub(crate) fn scale(
        &mut self,
        chunk: &PairChunk,
        met: ChunkLimits,
        square: f64,
        precision: ValuePrecision,
    ) {
        if !met.excess.is_nan() {
            self.scaled = larger(self.scaled, chunk.pairs.scaled(precision.storage(), square));
            return;
        }
        for at in 0..chunk.pairs.len() {
            let ElementPair { difference, reference, .. } = chunk.pair(at, precision);
            self.scaled = larger(self.scaled, scaled(difference, reference, square));
        }
    }

    /// Adds the errors to the error map.
    fn spread_out(&mut self, chunk: &PairChunk, bound: f64, precision: ValuePrecision) {
        let count = chunk.pairs.len();
        if bound == 0.0 {
            return self.spread.add_identical(count);
        }
        let storage = precision.storage();
        let error = |at: usize| chunk.pairs.error(at, storage);
        let largest = |part: Range<usize>| chunk.pairs.part(part).largest(storage);
        match chunk.place {
            ChunkLocation::Run(first) => self.spread.add_run(first..first + count, bound, error, largest),
            ChunkLocation::These(..) => {
                (0..count).for_each(|at| self.spread.add(chunk.place.flat(at), error(at)))
            }
        }
    }

    fn add_each(&mut self, chunk: &PairChunk, precision: ValuePrecision) -> ChunkLimits {
        for at in 0..chunk.pairs.len() {
            let pair = chunk.pair(at, precision);
            let ElementPair { candidate, reference, difference, .. } = pair;
            self.elements += 1;
            self.identical += usize::from(candidate.to_bits() == reference.to_bits() && !candidate.is_nan());
            self.count_nonfinite(candidate, reference);
            self.difference += difference;
            self.difference_squared += difference * difference;
            self.product += candidate * reference;
            self.candidate_squared += candidate * candidate;
            self.reference_squared += reference * reference;
            if !(difference <= precision.step(reference)) {
                self.past_neighbour = larger(self.past_neighbour, difference);
            }
            self.meet(pair);
            self.spread.add(pair.flat, difference);
        }
        ChunkLimits { reference_squared: chunk.pairs.reference_squared(), excess: f64::NAN }
    }

    /// Keeps the worst element: the first NaN, or otherwise the first with the largest error.
    fn meet(&mut self, pair: ElementPair) {
        let is_worse =
            |worst: ElementPair| !worst.difference.is_nan() && !(pair.difference <= worst.difference);
        if self.worst.is_none_or(is_worse) {
            self.worst = Some(pair);
        }
    }

    fn count_nonfinite(&mut self, candidate: f64, reference: f64) {
        let same = candidate == reference || (candidate.is_nan() && reference.is_nan());
        self.nonfinite.candidate += usize::from(!candidate.is_finite());
        self.nonfinite.reference += usize::from(!reference.is_finite());
        self.nonfinite.shared += usize::from(!candidate.is_finite() && same);
    }

    /// Merges the sums of the pairs that follow these.
    pub(crate) fn followed_by(mut self, next: Self) -> Self {
        self.elements += next.elements;
        self.identical += next.identical;
        self.nonfinite.candidate += next.nonfinite.candidate;
        self.nonfinite.reference += next.nonfinite.reference;
        self.nonfinite.shared += next.nonfinite.shared;
        self.difference += next.difference;
        self.difference_squared += next.difference_squared;
        self.product += next.product;
        self.candidate_squared += next.candidate_squared;
        self.reference_squared += next.reference_squared;
        self.scaled = larger(self.scaled, next.scaled);
        self.past_neighbour = larger(self.past_neighbour, next.past_neighbour);
        next.worst.into_iter().for_each(|pair| self.meet(pair));
        self.spread = self.spread.followed_by(&next.spread);
        self
    }
}

impl PairChunk<'_> {
    #[inline]
    fn pair(&self, at: usize, precision: ValuePrecision) -> ElementPair {
        let [candidate, reference] = self.pairs.at(at);
        let apart = (candidate - reference).abs();
        // A difference that storing may have caused is not an error; NaN stays NaN.
        let scales = self.scales.map_or([1.0; 2], |scales| scales.map(|scales| scales[at]));
        let slack = precision.slack([candidate, reference], scales);
        let difference = if apart <= slack { 0.0 } else { apart - slack };
        ElementPair { flat: self.place.flat(at), difference, candidate, reference }
    }
}

impl ChunkLocation<'_> {
    fn flat(self, at: usize) -> usize {
        match self {
            Self::Run(first) => first + at,
            Self::These(first, columns) => first + columns[at],
        }
    }
}

impl Errors {
    /// Returns the worse of two measurements, figure by figure: the larger error, the smaller cosine.
    pub fn worse(self, other: Self) -> Self {
        Self {
            max_abs: larger(self.max_abs, other.max_abs),
            mean_abs: larger(self.mean_abs, other.mean_abs),
            cosine: -larger(-self.cosine, -other.cosine),
            rel_l2: larger(self.rel_l2, other.rel_l2),
            max_rel_rms: larger(self.max_rel_rms, other.max_rel_rms),
            max_scaled: larger(self.max_scaled, other.max_scaled),
            past_neighbour: larger(self.past_neighbour, other.past_neighbour),
        }
    }
}

/// Returns the larger of two figures; NaN is larger than any number.
pub fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}
