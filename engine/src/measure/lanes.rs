//! Error figures of contiguous pairs of numbers. Sums and maxima are computed in lanes that compilers vectorise.
//! The order of the sums is the same on every machine.

use std::ops::Range;

use multiversion::multiversion;
use multiversion::target::match_target;
use zerocopy::IntoBytes;

use crate::measure::precision::Spacing;
#[cfg(target_arch = "x86_64")]
use crate::view::halves;
use crate::view::{brain, half};
use crate::weight::DType;

const LANES: usize = 8;

/// Values of the candidate and of the reference, as stored or widened. Both have the same number of elements.
#[derive(Clone, Copy)]
pub(super) enum PairSlices<'p> {
    F16(&'p [[u8; 2]], &'p [[u8; 2]]),
    BF16(&'p [[u8; 2]], &'p [[u8; 2]]),
    F32(&'p [[u8; 4]], &'p [[u8; 4]]),
    F64(&'p [[u8; 8]], &'p [[u8; 8]]),
}

/// Error figures of pairs of finite numbers.
pub(super) struct PairFigures {
    pub(crate) identical: usize,
    pub(crate) difference: f64,
    pub(crate) difference_squared: f64,
    pub(crate) product: f64,
    pub(crate) candidate_squared: f64,
    pub(crate) reference_squared: f64,
    pub(crate) largest: f64,
    /// Largest amount by which a squared error exceeds the limit times its squared element; at least 0.
    pub(crate) excess: f64,
}

impl<'p> PairSlices<'p> {
    /// Creates pairs from stored numbers of the same type. `None` if the types must be widened.
    pub(crate) fn stored(sides: [(DType, &'p [u8]); 2]) -> Option<Self> {
        let [(dtype, candidate), (other, reference)] = sides;
        match dtype {
            _ if dtype != other => None,
            DType::F16 => Some(Self::F16(candidate.as_chunks().0, reference.as_chunks().0)),
            DType::BF16 => Some(Self::BF16(candidate.as_chunks().0, reference.as_chunks().0)),
            DType::F32 => Some(Self::F32(candidate.as_chunks().0, reference.as_chunks().0)),
            DType::F64 => Some(Self::F64(candidate.as_chunks().0, reference.as_chunks().0)),
            _ => None,
        }
    }

    /// Creates pairs from widened numbers.
    pub(crate) fn widened(candidate: &'p [f64], reference: &'p [f64]) -> Self {
        Self::F64(candidate.as_bytes().as_chunks().0, reference.as_bytes().as_chunks().0)
    }

    pub(crate) fn len(self) -> usize {
        match self {
            Self::F16(_, reference) | Self::BF16(_, reference) => reference.len(),
            Self::F32(_, reference) => reference.len(),
            Self::F64(_, reference) => reference.len(),
        }
    }

    // Arrays are built without `map`, which is not inlined here.
    #[inline(always)]
    pub(crate) fn at(self, at: usize) -> [f64; 2] {
        match self {
            Self::F16(candidate, reference) => [half(candidate[at]).into(), half(reference[at]).into()],
            Self::BF16(candidate, reference) => [brain(candidate[at]).into(), brain(reference[at]).into()],
            Self::F32(candidate, reference) => [single(candidate[at]), single(reference[at])],
            Self::F64(candidate, reference) => {
                [f64::from_le_bytes(candidate[at]), f64::from_le_bytes(reference[at])]
            }
        }
    }

    pub(crate) fn part(self, part: Range<usize>) -> Self {
        match self {
            Self::F16(candidate, reference) => Self::F16(&candidate[part.clone()], &reference[part]),
            Self::BF16(candidate, reference) => Self::BF16(&candidate[part.clone()], &reference[part]),
            Self::F32(candidate, reference) => Self::F32(&candidate[part.clone()], &reference[part]),
            Self::F64(candidate, reference) => Self::F64(&candidate[part.clone()], &reference[part]),
        }
    }

    /// Returns the distance between two finite numbers, minus half a step of `storage`.
    #[inline]
    pub(crate) fn error(self, at: usize, storage: Option<[Spacing; 2]>) -> f64 {
        let [candidate, reference] = self.at(at);
        match storage {
            None => (candidate - reference).abs(),
            Some(storage) => past(storage.map(Spacing::halved), candidate, reference),
        }
    }

    /// Returns the first index with the largest error.
    pub(crate) fn first_largest(self, storage: Option<[Spacing; 2]>) -> usize {
        let most = self.largest(storage);
        let mut among = 0..self.len();
        while among.len() > 1 {
            let middle = among.start + among.len() / 2;
            let is_before = self.part(among.start..middle).largest(storage) == most;
            among = if is_before { among.start..middle } else { middle..among.end };
        }
        among.start
    }

    /// Computes all figures. Errors are counted only above half a step of `storage`.
    pub(crate) fn add_up(self, storage: Option<[Spacing; 2]>, limit: f64) -> PairFigures {
        gathered(self, storage, LaneFigures { limit, ..LaneFigures::default() }).found()
    }

    /// Returns the largest error.
    pub(crate) fn largest(self, storage: Option<[Spacing; 2]>) -> f64 {
        largest(gathered(self, storage, LargestError([0.0; LANES])).0)
    }

    /// Returns the largest error, counting only errors larger than the distance to the value's neighbour. 0 if there
    /// are none.
    pub(crate) fn past_neighbour(self, storage: Option<[Spacing; 2]>, neighbour: Spacing) -> f64 {
        largest(gathered(self, storage, NeighbourExcess { neighbour, lanes: [0.0; LANES] }).lanes)
    }

    /// Returns the largest error relative to its element and its row, whose mean square is `square`.
    pub(crate) fn scaled(self, storage: Option<[Spacing; 2]>, square: f64) -> f64 {
        largest(gathered(self, storage, ScaledSquares { square, lanes: [0.0; LANES] }).lanes)
    }

    /// Returns the sum of the reference's squares.
    pub(crate) fn reference_squared(self) -> f64 {
        sum(gathered(self, None, LaneSquares([0.0; LANES])).0)
    }
}

impl PairFigures {
    /// Returns true if every number was finite, and no square lost digits.
    pub(crate) fn is_ordinary(&self) -> bool {
        let has_squares = (self.difference == 0.0) == (self.difference_squared == 0.0);
        let squares = [self.difference_squared, self.candidate_squared, self.reference_squared];
        has_squares && squares.into_iter().all(is_ordinary)
    }
}

/// Returns true if a sum of squares is within the precise range of f64.
fn is_ordinary(squared: f64) -> bool {
    (1e-150..1e150).contains(&squared) || squared == 0.0
}

/// Returns an error relative to a size; an error of 0 gives 0 for any size.
pub(super) fn ratio(error: f64, size: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error / size }
}

/// Returns an error relative to the size of its element and its row.
#[inline(always)]
pub(super) fn scaled(error: f64, reference: f64, square: f64) -> f64 {
    ratio(error, (reference * reference + square).sqrt())
}

/// A candidate's number, the reference's, and their distance.
struct LanePair {
    candidate: f64,
    reference: f64,
    error: f64,
    is_identical: bool,
}

/// Accumulator with eight lanes. Lane i takes every eighth pair, starting at pair i.
trait PairAccumulator {
    fn meet(&mut self, lane: usize, pair: LanePair);
}

/// Accumulates all pairs.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw+f16c", "x86_64+avx2+fma+f16c"))]
fn gathered<L: PairAccumulator>(pairs: PairSlices, storage: Option<[Spacing; 2]>, lanes: L) -> L {
    match pairs {
        PairSlices::F16(candidate, reference) => match_target! {
            "x86_64+f16c" => meet(candidate, reference, |eight| each(halves(eight), f64::from), storage, lanes),
            _ => meet(candidate, reference, |eight| each(eight, |one| half(one).into()), storage, lanes),
        },
        PairSlices::BF16(candidate, reference) => {
            meet(candidate, reference, |eight| each(eight, |one| brain(one).into()), storage, lanes)
        }
        PairSlices::F32(candidate, reference) => {
            meet(candidate, reference, |eight| each(eight, single), storage, lanes)
        }
        PairSlices::F64(candidate, reference) => {
            meet(candidate, reference, |eight| each(eight, f64::from_le_bytes), storage, lanes)
        }
    }
}

/// Widens eight stored numbers. `array::map` is not used, because compilers do not inline it into functions with
/// special instructions.
#[inline(always)]
fn each<S: Copy>(eight: [S; LANES], widen: impl Fn(S) -> f64) -> [f64; LANES] {
    let mut wide = [0.0; LANES];
    for (wide, stored) in wide.iter_mut().zip(eight) {
        *wide = widen(stored);
    }
    wide
}

#[inline(always)]
fn single(bits: [u8; 4]) -> f64 {
    f32::from_le_bytes(bits).into()
}

#[inline(always)]
fn meet<S: Copy + Eq + Default, L: PairAccumulator>(
    candidate: &[S],
    reference: &[S],
    widen: impl Fn([S; LANES]) -> [f64; LANES],
    storage: Option<[Spacing; 2]>,
    lanes: L,
) -> L {
    match storage.map(|storage| storage.map(Spacing::halved)) {
        None => meet_all(candidate, reference, widen, |c, r| (c - r).abs(), lanes),
        Some(slack) => meet_all(candidate, reference, widen, |c, r| past(slack, c, r), lanes),
    }
}

/// Returns the distance between two numbers, minus both slacks. NaN is kept.
#[inline(always)]
fn past([one, other]: [Spacing; 2], candidate: f64, reference: f64) -> f64 {
    maximum((candidate - reference).abs() - (one.at_finite(candidate) + other.at_finite(reference)), 0.0)
}

/// Accumulates all pairs. The lanes are in a local variable, so that they stay in registers.
#[inline(always)]
fn meet_all<S: Copy + Eq + Default, L: PairAccumulator>(
    candidate: &[S],
    reference: &[S],
    widen: impl Fn([S; LANES]) -> [f64; LANES],
    error: impl Fn(f64, f64) -> f64,
    mut lanes: L,
) -> L {
    let (candidates, candidate_rest) = candidate.as_chunks::<LANES>();
    let (references, reference_rest) = reference.as_chunks::<LANES>();
    for (c, r) in candidates.iter().zip(references) {
        bring(c);
        bring(r);
        meet_eight([*c, *r], LANES, &widen, &error, &mut lanes);
    }
    if !reference_rest.is_empty() {
        let mut rest = [[S::default(); LANES]; 2];
        rest[0][..candidate_rest.len()].copy_from_slice(candidate_rest);
        rest[1][..reference_rest.len()].copy_from_slice(reference_rest);
        meet_eight(rest, reference_rest.len(), &widen, &error, &mut lanes);
    }
    lanes
}

/// Accumulates one pair in each of the first `count` lanes.
#[inline(always)]
fn meet_eight<S: Copy + Eq, L: PairAccumulator>(
    [c, r]: [[S; LANES]; 2],
    count: usize,
    widen: impl Fn([S; LANES]) -> [f64; LANES],
    error: impl Fn(f64, f64) -> f64,
    lanes: &mut L,
) {
    let (candidates, references) = (widen(c), widen(r));
    for lane in 0..count {
        let (candidate, reference) = (candidates[lane], references[lane]);
        let error = error(candidate, reference);
        lanes.meet(lane, LanePair { candidate, reference, error, is_identical: c[lane] == r[lane] });
    }
}

/// Prefetches the memory after the current read position. Processors prefetch by themselves, but not across pages,
/// which cost a seventh of the time.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[expect(unsafe_code)]
fn bring<S>(now: &[S]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    const AHEAD: usize = 1024;
    // SAFETY: a prefetch accesses no memory, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(now.as_ptr().cast::<i8>().wrapping_add(AHEAD)) }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn bring<S>(_: &[S]) {}

#[derive(Default)]
struct LaneFigures {
    limit: f64,
    identical: [u64; LANES],
    difference: [f64; LANES],
    difference_squared: [f64; LANES],
    product: [f64; LANES],
    candidate_squared: [f64; LANES],
    reference_squared: [f64; LANES],
    largest: [f64; LANES],
    excess: [f64; LANES],
}

impl PairAccumulator for LaneFigures {
    #[inline(always)]
    fn meet(&mut self, lane: usize, pair: LanePair) {
        let LanePair { candidate, reference, error, is_identical } = pair;
        let (error_squared, reference_squared) = (error * error, reference * reference);
        // An overflow check in each lane would prevent vectorisation.
        self.identical[lane] = self.identical[lane].wrapping_add(is_identical.into());
        self.difference[lane] += error;
        self.difference_squared[lane] += error_squared;
        // Products of two f32 are exact in f64, so fused multiply-add only saves a rounding for f64 values.
        self.product[lane] = candidate.mul_add(reference, self.product[lane]);
        self.candidate_squared[lane] = candidate.mul_add(candidate, self.candidate_squared[lane]);
        self.reference_squared[lane] += reference_squared;
        self.largest[lane] = maximum(self.largest[lane], error);
        self.excess[lane] = maximum(self.excess[lane], reference_squared.mul_add(-self.limit, error_squared));
    }
}

impl LaneFigures {
    fn found(self) -> PairFigures {
        PairFigures {
            identical: self.identical.iter().sum::<u64>() as usize,
            difference: sum(self.difference),
            difference_squared: sum(self.difference_squared),
            product: sum(self.product),
            candidate_squared: sum(self.candidate_squared),
            reference_squared: sum(self.reference_squared),
            largest: largest(self.largest),
            excess: largest(self.excess),
        }
    }
}

struct LargestError([f64; LANES]);

impl PairAccumulator for LargestError {
    #[inline(always)]
    fn meet(&mut self, lane: usize, pair: LanePair) {
        self.0[lane] = maximum(self.0[lane], pair.error);
    }
}

struct NeighbourExcess {
    neighbour: Spacing,
    lanes: [f64; LANES],
}

impl PairAccumulator for NeighbourExcess {
    #[inline(always)]
    fn meet(&mut self, lane: usize, pair: LanePair) {
        let counted = if pair.error > self.neighbour.at_finite(pair.reference) { pair.error } else { 0.0 };
        self.lanes[lane] = maximum(self.lanes[lane], counted);
    }
}

struct ScaledSquares {
    square: f64,
    lanes: [f64; LANES],
}

impl PairAccumulator for ScaledSquares {
    #[inline(always)]
    fn meet(&mut self, lane: usize, pair: LanePair) {
        self.lanes[lane] = maximum(self.lanes[lane], scaled(pair.error, pair.reference, self.square));
    }
}

struct LaneSquares([f64; LANES]);

impl PairAccumulator for LaneSquares {
    #[inline(always)]
    fn meet(&mut self, lane: usize, pair: LanePair) {
        self.0[lane] += pair.reference * pair.reference;
    }
}

fn sum(lanes: [f64; LANES]) -> f64 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

fn largest(lanes: [f64; LANES]) -> f64 {
    lanes.into_iter().fold(0.0, maximum)
}

/// Returns the larger of two numbers with one instruction. The callers handle NaN.
#[inline(always)]
fn maximum(a: f64, b: f64) -> f64 {
    if b > a { b } else { a }
}
