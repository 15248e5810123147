//! Error statistics of two engines against the exact values: violations, largest errors, and sums for the bias.

use std::ops::Range;
use std::sync::Arc;

use multiversion::multiversion;

use crate::error_map::ErrorMap;
use crate::exact::bias::{BiasAccumulator, ResultWindow, SharedError, Terms};
use crate::exact::choice::ChoiceSet;
use crate::exact::float::Float;
use crate::exact::operation::{Node, by_row, is_run, node_of};
use crate::exact::result_pair::{EngineErrors, InexactValue, ResultPair};
use crate::exact::value::{ExactValue, K, U, both};
use crate::view::View;

/// Size below which machines that flush denormals treat a number as zero.
const FLUSHED: f64 = f32::MIN_POSITIVE as f64;

/// Maximum number of unexplained values that are kept.
const EXAMPLES: usize = 64;

/// Accumulates both engines' errors against the exact values.
pub(super) struct ErrorStatistics<'m> {
    values: [&'m View<'m>; 2],
    float: Float,
    /// Type in which each engine's values were stored, if it is smaller than the computed type. `None` for our engine,
    /// whose values were not stored.
    stored: [Option<Float>; 2],
    is_double: bool,
    pub(super) sides: [EngineErrors; 2],
    biases: Option<BiasAccumulator>,
    /// Some of the dump's values that are above their error bound.
    examples: Vec<usize>,
    room: RunBuffers,
}

/// Buffers for consecutive values.
#[derive(Default)]
struct RunBuffers {
    sides: [Vec<f64>; 2],
    bound_ratios: [Vec<f64>; 2],
    scales: Vec<f64>,
    terms: Terms,
}

impl<'m> ErrorStatistics<'m> {
    /// Creates statistics for all results, or for those in some rows and columns. `with_bias` also sums errors for the
    /// search for a bias.
    pub(super) fn new(
        compared: &ResultPair<'m>,
        choices: ChoiceSet,
        with_bias: bool,
        of: Option<ResultWindow>,
    ) -> Self {
        let node = compared.traced.origins().iter().find_map(node_of);
        let results = |node: Arc<Node>| node.stage.results(&node.rounding(choices));
        let [dump, _] = compared.sides;
        let all = || ResultWindow { rows: 0..dump.rows(), columns: 0..dump.width() };
        let float = node.map_or(Float::F32, results);
        let shape = compared.traced.shape();
        Self {
            is_double: compared.is_double,
            biases: with_bias.then(|| BiasAccumulator::new(shape, of.unwrap_or_else(all))),
            ..Self::of_values(compared.sides, shape, float, compared.stored)
        }
    }

    /// Creates statistics without a search for a bias. `stored` is the type that the dump's values were rounded to when
    /// stored, if shorter than `float`.
    fn of_values(values: [&'m View<'m>; 2], shape: &[usize], float: Float, stored: Option<Float>) -> Self {
        let spread = || ErrorMap::with_innermost(shape);
        Self {
            values,
            float,
            stored: [stored, None],
            is_double: false,
            sides: [(); 2].map(|()| EngineErrors { spread: Some(spread()), ..EngineErrors::default() }),
            biases: None,
            examples: Vec::new(),
            room: RunBuffers::default(),
        }
    }

    /// Adds results in ascending order.
    pub(super) fn add(&mut self, batch: &[usize], exacts: &[ExactValue]) {
        let (width, mut exacts) = (self.values[0].width(), exacts);
        let mut add = |run: &[usize]| {
            let (here, later) = exacts.split_at(run.len());
            self.add_run(run[0] / width, run[0] % width, here);
            exacts = later;
        };
        for row in by_row(batch, width) {
            match is_run(row) {
                true => add(row),
                false => row.chunk_by(|one, next| one + 1 == *next).for_each(&mut add),
            }
        }
    }

    /// Adds the errors of consecutive values of a row to the statistics.
    pub(super) fn add_run(&mut self, row: usize, column: usize, exacts: &[ExactValue]) {
        let (columns, width) = (column..column + exacts.len(), self.values[0].width());
        let flats = row * width + column..row * width + columns.end;
        self.read(row, columns);
        self.weigh(exacts);
        for side in 0..2 {
            self.count(side, flats.clone(), exacts);
        }
        if let Some(biases) = &mut self.biases {
            let coarser = self.stored[0].filter(|stored| stored.unit() > self.float.unit());
            let float = coarser.unwrap_or(self.float);
            let RunBuffers { sides: [one, other], scales, terms, .. } = &mut self.room;
            terms.take([one, other], exacts, float, scales);
            biases.add(row, column, terms);
        }
    }

    fn read(&mut self, row: usize, columns: Range<usize>) {
        let RunBuffers { sides, bound_ratios, scales, .. } = &mut self.room;
        for (values, read) in self.values.iter().zip(sides) {
            read.resize(columns.len(), 0.0);
            values.read(row, columns.clone(), read);
        }
        bound_ratios.iter_mut().for_each(|room| room.resize(columns.len(), 0.0));
        scales.clear();
        scales.resize(columns.len(), 1.0);
        if let Some(of_dump) = self.values[0].scales() {
            of_dump.read(row, columns, scales);
        }
    }

    /// Computes the bound ratio of each value.
    fn weigh(&mut self, exacts: &[ExactValue]) {
        let RunBuffers { sides, bound_ratios, scales, .. } = &mut self.room;
        // If the dump's values have more digits than f32, only our values were rounded to f32.
        let finer = if self.is_double { U } else { 0.0 };
        for (side, bound_ratios) in bound_ratios.iter_mut().enumerate() {
            let (values, stored) = (&sides[side], self.stored[side]);
            if self.float == Float::F32 && stored.is_none() {
                plain_headrooms(values, exacts, finer, bound_ratios);
                continue;
            }
            for (at, exact) in exacts.iter().enumerate() {
                let exact = ExactValue { radius: exact.radius + finer * exact.value.abs(), ..*exact };
                bound_ratios[at] =
                    bound_ratio(values[at], &exact, self.float, stored.map(|stored| (stored, scales[at])));
            }
        }
    }

    fn count(&mut self, side: usize, flats: Range<usize>, exacts: &[ExactValue]) {
        let RunBuffers { sides, bound_ratios, .. } = &self.room;
        let (values, bound_ratios) = (&sides[side], &bound_ratios[side]);
        let known = &mut self.sides[side];
        // Values come in ascending order; of equal bound ratios, the first value counts.
        let least = known.least_that_counts();
        let (over, largest, is_met) = counted(bound_ratios, least);
        known.over += over;
        if is_met {
            let finer = if self.is_double { U } else { 0.0 };
            for (at, exact) in exacts.iter().enumerate().filter(|(at, _)| !(bound_ratios[*at] <= least)) {
                let exact = ExactValue { radius: exact.radius + finer * exact.value.abs(), ..*exact };
                let (flat, value, bound_ratio) = (flats.start + at, values[at], bound_ratios[at]);
                known.meet(InexactValue { flat, value, exact, bound_ratio });
            }
        }
        if let Some(spread) = &mut known.spread {
            let largest_of = |part| counted(&bound_ratios[part], 0.0).1;
            spread.add_run(flats.clone(), largest, |at| bound_ratios[at], largest_of);
            spread.meet_innermost(flats.clone(), bound_ratios, largest);
        }
        if side == 0 && over > 0 && self.examples.len() < EXAMPLES {
            let over = flats.zip(bound_ratios).filter(|(_, bound_ratio)| !(**bound_ratio <= 1.0));
            let room = EXAMPLES - self.examples.len();
            self.examples.extend(over.map(|(flat, _)| flat).take(room));
        }
    }

    /// Merges the error statistics of other results into these.
    pub(super) fn plus(mut self, part: Self) -> Self {
        for (side, part) in self.sides.iter_mut().zip(part.sides) {
            side.over += part.over;
            part.worst.into_iter().for_each(|off| side.meet(off));
            side.spread = side.spread.take().zip(part.spread).map(|(one, next)| one.followed_by(&next));
        }
        self.examples.extend(part.examples);
        self.examples.truncate(EXAMPLES);
        self.biases = self.biases.zip(part.biases).map(|(biases, part)| biases.plus(&part));
        self
    }

    /// Returns true if the dump's results are more precise than the stated precision allows.
    pub(super) fn is_too_sure(&self) -> bool {
        self.biases.as_ref().is_some_and(BiasAccumulator::is_too_sure)
    }

    /// Returns the results for both engines, and some unexplained values of the dump in ascending order.
    pub(super) fn finish(mut self, common: SharedError) -> (EngineErrors, EngineErrors, Vec<usize>) {
        let bias = |side: usize| self.biases.as_ref().and_then(|biases| biases.largest(side, common));
        let biases = [bias(0), bias(1)];
        let settled =
            |side: EngineErrors| EngineErrors { spread: side.spread.map(ErrorMap::settled), ..side };
        let [dump, engine] = self.sides.map(settled);
        self.examples.sort_unstable();
        (EngineErrors { bias: biases[0], ..dump }, EngineErrors { bias: biases[1], ..engine }, self.examples)
    }
}

/// Returns the errors of values against exact values in the same order. `float` is the type of the engine's
/// results; `stored` is the type they were rounded to when stored, if shorter.
pub fn errors_of(values: &View, exacts: &[ExactValue], float: Float, stored: Option<Float>) -> EngineErrors {
    let mut statistics = ErrorStatistics::of_values([values, values], values.shape(), float, stored);
    let width = values.width().max(1);
    for (row, exacts) in exacts.chunks(width).enumerate() {
        statistics.add_run(row, 0, exacts);
    }
    statistics.finish(SharedError::default()).0
}

/// Returns the root mean square of the errors, in units of the standard deviation that sigma and the last rounding
/// to `float` give each value. The result is about 1 for an engine that rounds where the evaluation assumes it, and
/// 0 if no value is rounded.
pub fn rms_in_sigmas(values: &[f64], exacts: &[ExactValue], float: Float) -> f64 {
    let squares = values.iter().zip(exacts).filter_map(|(value, exact)| {
        let sigma = both(exact.sigma, K * float.unit() * exact.value.abs());
        (sigma > 0.0).then(|| ((value - exact.value) / sigma).powi(2))
    });
    let (sum, count) = squares.fold((0.0, 0usize), |(sum, count), square| (sum + square, count + 1));
    if count == 0 { 0.0 } else { (sum / count as f64).sqrt() }
}

/// Returns the number of violations, the largest bound ratio (NaN if any ratio is NaN), and whether any ratio is above
/// `least`.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn counted(bound_ratios: &[f64], least: f64) -> (usize, f64, bool) {
    const LANES: usize = 8;
    let (mut over, mut largest, mut unlike) = ([0u64; LANES], [0.0f64; LANES], [0u64; LANES]);
    let (whole, rest) = bound_ratios.as_chunks::<LANES>();
    for bound_ratios in whole {
        for (lane, &bound_ratio) in bound_ratios.iter().enumerate() {
            over[lane] += u64::from(!(bound_ratio <= 1.0));
            unlike[lane] += u64::from(!(bound_ratio <= least));
            largest[lane] = if bound_ratio > largest[lane] { bound_ratio } else { largest[lane] };
        }
    }
    for (lane, &bound_ratio) in rest.iter().enumerate() {
        over[lane] += u64::from(!(bound_ratio <= 1.0));
        unlike[lane] += u64::from(!(bound_ratio <= least));
        largest[lane] = if bound_ratio > largest[lane] { bound_ratio } else { largest[lane] };
    }
    let over = over.iter().sum::<u64>() as usize;
    let is_number = over == 0 || bound_ratios.iter().all(|bound_ratio| !bound_ratio.is_nan());
    let largest = if is_number { largest.into_iter().fold(0.0, f64::max) } else { f64::NAN };
    (over, largest, unlike.iter().sum::<u64>() > 0)
}

/// Computes bound ratios of results whose last rounding is to `f32`; see [`bound_ratio`].
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn plain_headrooms(values: &[f64], exacts: &[ExactValue], finer: f64, bound_ratios: &mut [f64]) {
    for ((bound_ratio, &value), exact) in bound_ratios.iter_mut().zip(values).zip(exacts) {
        let distance = if value == exact.value { 0.0 } else { (value - exact.value).abs() };
        let radius = exact.radius + finer * exact.value.abs();
        *bound_ratio = distance / if radius > FLUSHED { radius } else { FLUSHED };
    }
}

/// Returns the bound ratio of a value: its distance from the exact value in units of the error bound. The exact value
/// may be any number that rounds, or is stored under a scale, as this value.
fn bound_ratio(value: f64, exact: &ExactValue, float: Float, stored: Option<(Float, f64)>) -> f64 {
    let (low, high) = float.cell(value);
    let stored = stored.filter(|(stored, _)| stored.is_coarser_at(value, float));
    let (low, high) = stored.map_or((low, high), |(stored, scale)| {
        let other = stored.stored_cell(value, scale, float);
        (low.min(other.0), high.max(other.1))
    });
    let distance = (low - exact.value).max(exact.value - high).max(0.0);
    // `f64::max` would ignore a NaN operand.
    if exact.value.is_nan() || value.is_nan() { f64::NAN } else { distance / exact.radius.max(FLUSHED) }
}
