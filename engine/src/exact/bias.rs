//! Bias: a systematic error that many elements share and that is too small to detect in one element.
//!
//! Rounding to nearest is unbiased, so the mean error of N results is √N times smaller than one error. The search
//! covers a scale (error ∝ result) and an offset, in the whole tensor and in each row, head and channel.

use std::ops::Range;

use multiversion::multiversion;

use crate::exact::float::Float;
use crate::exact::value::{ExactValue, LAMBDA};

/// Minimum number of results for a meaningful mean.
const FEWEST: u64 = 32;

/// Mean absolute value of a Gaussian in units of sigma. Times sigma / step, it is the probability that an error
/// moves a result to a neighbouring number of a short type.
const CROSSES: f64 = 0.8;

/// Results of a tensor whose errors may have a common bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BiasGroup {
    /// All results.
    Whole,
    /// Results at one index of an axis.
    Axis(usize),
    /// Results of one output channel: those at one index inside each entry of the outermost axis.
    Channel,
}

/// Estimate of a systematic error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BiasEstimate {
    /// Results that have the common bias.
    pub group: BiasGroup,
    /// Index of the group.
    pub index: usize,
    /// The bias: relative to the results if `is_scale`, otherwise absolute.
    pub error: f64,
    /// True if the bias is proportional to the results.
    pub is_scale: bool,
    /// The bias in standard deviations of the rounding error.
    pub z: f64,
}

impl BiasEstimate {
    /// Returns true if unbiased rounding cannot cause the bias.
    pub fn is_systematic(&self) -> bool {
        !(self.z.abs() <= LAMBDA)
    }
}

/// Error that several results share, so that averaging does not reduce it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SharedError {
    /// Relative error shared by all results of the tensor.
    pub(super) shared: f64,
    /// Relative error shared by all results of a row, and independent between rows.
    pub(super) of_row: f64,
    /// Number of dependent results that count as one independent result.
    pub(super) dependence: f64,
}

/// Sums over one group of results. Errors are summed for each of the two engines.
#[derive(Clone, Copy, Debug, Default)]
struct BiasSums {
    n: u64,
    values: f64,
    squares: f64,
    variance: f64,
    scaled_variance: f64,
    step: f64,
    scaled_step: f64,
    errors: [f64; 2],
    scaled: [f64; 2],
}

/// Consecutive results of a row with their errors, ready to be summed.
#[derive(Debug, Default)]
pub(super) struct Terms {
    values: Vec<f64>,
    variances: Vec<f64>,
    /// Steps of a short type; empty for `f32`.
    steps: Vec<f64>,
    has_steps: bool,
    errors: [Vec<f64>; 2],
    /// Two numbers: the first engine's results that are not the nearest number of their type, and how many of these are
    /// expected.
    moved: [f64; 2],
}

impl Terms {
    /// Stores two engines' results. Their last rounding divides by a scale and rounds to type `float`.
    pub(super) fn take(&mut self, sides: [&[f64]; 2], exacts: &[ExactValue], float: Float, scales: &[f64]) {
        let [one, other] = &mut self.errors;
        for room in [&mut self.values, &mut self.variances, &mut self.steps, one, other] {
            room.resize(exacts.len(), 0.0);
        }
        self.has_steps = float != Float::F32;
        self.moved = [0.0; 2];
        if !self.has_steps {
            let [one, other] = &mut self.errors;
            return plain(exacts, sides, [&mut self.values, &mut self.variances, one, other]);
        }
        for (at, exact) in exacts.iter().enumerate() {
            let scale = scales[at];
            // Rounded to a short type, both engines' results are nearly always the same number or neighbours.
            let rounded = float.round(exact.value / scale);
            let (low, high) = float.cell(rounded);
            let (rounded, step) = (rounded * scale, (high - low) * scale);
            self.values[at] = exact.value;
            self.variances[at] = exact.sigma * (CROSSES * step + exact.sigma);
            self.steps[at] = step;
            // The first engine's values may have been stored in this type; the second's were not, and storing is not an
            // error.
            let second = float.round(sides[1][at] / scale) * scale;
            [self.errors[0][at], self.errors[1][at]] = [sides[0][at] - rounded, second - rounded];
            self.moved[0] += f64::from(u8::from(self.errors[0][at] != 0.0));
            // Probability that rounding moves the result to another number of its type, at most 1.
            self.moved[1] += if step > 0.0 { (CROSSES * exact.sigma / step).min(1.0) } else { 0.0 };
        }
    }
}

/// Computes exact values, their variances and both engines' errors, for results that are not rounded to a short
/// type.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn plain(exacts: &[ExactValue], [one, other]: [&[f64]; 2], terms: [&mut [f64]; 4]) {
    let len = exacts.len();
    let [values, variances, errors, other_errors] = terms.map(|terms| &mut terms[..len]);
    let (one, other) = (&one[..len], &other[..len]);
    for at in 0..len {
        let ExactValue { value, sigma, .. } = exacts[at];
        values[at] = value;
        variances[at] = sigma * sigma;
        errors[at] = one[at] - value;
        other_errors[at] = other[at] - value;
    }
}

impl BiasSums {
    fn plus(self, other: &Self) -> Self {
        let both = |a: [f64; 2], b: [f64; 2]| [a[0] + b[0], a[1] + b[1]];
        Self {
            n: self.n + other.n,
            values: self.values + other.values,
            squares: self.squares + other.squares,
            variance: self.variance + other.variance,
            scaled_variance: self.scaled_variance + other.scaled_variance,
            step: self.step.max(other.step),
            scaled_step: self.scaled_step.max(other.scaled_step),
            errors: both(self.errors, other.errors),
            scaled: both(self.scaled, other.scaled),
        }
    }
}

/// Sums over many groups of results, one array per quantity.
#[derive(Debug)]
struct GroupSums {
    n: Vec<u64>,
    /// Values, squares, variances, scaled variances, errors of both engines and scaled errors of both engines.
    sums: [Vec<f64>; 8],
    /// The largest step of a short type, and the largest scaled step.
    steps: [Vec<f64>; 2],
}

const LANES: usize = 8;

impl GroupSums {
    fn new(len: usize) -> Self {
        let zeros = || vec![0.0; len];
        Self { n: vec![0; len], sums: std::array::from_fn(|_| zeros()), steps: [zeros(), zeros()] }
    }

    /// Adds consecutive results, each to its own group, starting at group `first`.
    fn add_each(&mut self, first: usize, terms: &Terms) {
        let strands = first..first + terms.values.len();
        self.n[strands.clone()].iter_mut().for_each(|n| *n += 1);
        let sums = self.sums.each_mut().map(|sums| &mut sums[strands.clone()]);
        let [one, other] = &terms.errors;
        add_each(sums, [&terms.values, &terms.variances, one, other]);
        if terms.has_steps {
            let steps = self.steps.each_mut().map(|steps| &mut steps[strands.clone()]);
            let [plain, scaled] = steps;
            for ((plain, scaled), (step, value)) in
                plain.iter_mut().zip(scaled).zip(terms.steps.iter().zip(&terms.values))
            {
                (*plain, *scaled) = (plain.max(*step), scaled.max(step * value.abs()));
            }
        }
    }

    /// Adds consecutive results to one group.
    fn add_all(&mut self, group: usize, terms: &Terms) {
        let [one, other] = &terms.errors;
        let sums = sums_of([&terms.values, &terms.variances, one, other]);
        self.n[group] += terms.values.len() as u64;
        self.sums.iter_mut().zip(sums).for_each(|(all, sum)| all[group] += sum);
        if terms.has_steps {
            for (step, value) in terms.steps.iter().zip(&terms.values) {
                self.steps[0][group] = self.steps[0][group].max(*step);
                self.steps[1][group] = self.steps[1][group].max(step * value.abs());
            }
        }
    }

    fn get(&self, group: usize) -> BiasSums {
        let [values, squares, variance, scaled_variance, one, other, scaled_one, scaled_other] =
            self.sums.each_ref().map(|sums| sums[group]);
        BiasSums {
            n: self.n[group],
            values,
            squares,
            variance,
            scaled_variance,
            step: self.steps[0][group],
            scaled_step: self.steps[1][group],
            errors: [one, other],
            scaled: [scaled_one, scaled_other],
        }
    }

    fn all(&self) -> impl Iterator<Item = BiasSums> {
        (0..self.n.len()).map(|group| self.get(group))
    }

    /// Adds a range of another set of sums, starting at group `first`.
    fn add(&mut self, first: usize, other: &Self, some: Range<usize>) {
        let own = first..first + some.len();
        self.n[own.clone()].iter_mut().zip(&other.n[some.clone()]).for_each(|(n, more)| *n += more);
        for (sums, more) in self.sums.iter_mut().zip(&other.sums) {
            sums[own.clone()].iter_mut().zip(&more[some.clone()]).for_each(|(sum, more)| *sum += more);
        }
        for (steps, more) in self.steps.iter_mut().zip(&other.steps) {
            let more = &more[some.clone()];
            steps[own.clone()].iter_mut().zip(more).for_each(|(step, more)| *step = step.max(*more));
        }
    }
}

/// Adds the i-th value, its variance and both engines' errors to the sums of group i.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn add_each(sums: [&mut [f64]; 8], terms: [&[f64]; 4]) {
    let [values, squares, variances, scaled_variances, one, other, scaled_one, scaled_other] = sums;
    let len = values.len();
    let [y, variance, error, other_error] = terms.map(|terms| &terms[..len]);
    add_products(values, y, |_, y| y, y);
    add_products(squares, y, |y, x| y * x, y);
    add_products(variances, variance, |_, x| x, y);
    add_products(scaled_variances, variance, |y, x| y * y * x, y);
    add_products(one, error, |_, x| x, y);
    add_products(other, other_error, |_, x| x, y);
    add_products(scaled_one, error, |y, x| y * x, y);
    add_products(scaled_other, other_error, |y, x| y * x, y);
}

#[inline(always)]
fn add_products(sums: &mut [f64], terms: &[f64], of: impl Fn(f64, f64) -> f64, values: &[f64]) {
    for ((sum, &term), &value) in sums.iter_mut().zip(terms).zip(values) {
        *sum += of(value, term);
    }
}

/// Sums the figures of all results: every eighth result into one lane, then the lanes.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn sums_of(terms: [&[f64]; 4]) -> [f64; 8] {
    let mut lanes = [[0.0f64; LANES]; 8];
    let [(y, y_rest), (variances, variance_rest), (ones, one_rest), (others, other_rest)] =
        terms.map(|terms| terms.as_chunks::<LANES>());
    for (((y, variance), one), other) in y.iter().zip(variances).zip(ones).zip(others) {
        for lane in 0..LANES {
            add_figures(&mut lanes, lane, [y[lane], variance[lane], one[lane], other[lane]]);
        }
    }
    for (lane, &y) in y_rest.iter().enumerate() {
        add_figures(&mut lanes, lane, [y, variance_rest[lane], one_rest[lane], other_rest[lane]]);
    }
    lanes.map(|lanes| lanes.iter().sum())
}

#[inline(always)]
fn add_figures(lanes: &mut [[f64; LANES]; 8], lane: usize, [y, variance, one, other]: [f64; 4]) {
    lanes[0][lane] += y;
    lanes[1][lane] += y * y;
    lanes[2][lane] += variance;
    lanes[3][lane] += variance * y * y;
    lanes[4][lane] += one;
    lanes[5][lane] += other;
    lanes[6][lane] += one * y;
    lanes[7][lane] += other * y;
}

/// Sums over the groups of a tensor or of a window: one group for each row of the last axis, and one for each index in
/// a row. All other groups are sums of these.
pub(super) struct BiasAccumulator {
    shape: Vec<usize>,
    of: ResultWindow,
    rows: GroupSums,
    /// One group for each index inside the entries of the outermost axis. If there are too few entries for a mean, one
    /// group for each index of the last axis.
    places: GroupSums,
    /// Two numbers: the first engine's results that are not the nearest number of their type, and how many of these are
    /// expected.
    moved: [f64; 2],
}

/// A range of rows and columns of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ResultWindow {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
}

impl BiasAccumulator {
    pub(super) fn new(shape: &[usize], of: ResultWindow) -> Self {
        let rows = GroupSums::new(of.rows.len());
        let places = of.columns.len() * Self::rows_of_places(shape);
        Self { shape: shape.to_vec(), of, rows, places: GroupSums::new(places), moved: [0.0; 2] }
    }

    /// Returns the number of rows after which the groups of columns repeat. 0 if there are no such groups.
    fn rows_of_places(shape: &[usize]) -> usize {
        match shape {
            [entries, inner @ .., _] if *entries as u64 >= FEWEST => inner.iter().product(),
            [_, _, _] => 1,
            _ => 0,
        }
    }

    /// Returns the number of column groups.
    pub(super) fn places(shape: &[usize]) -> usize {
        Self::rows_of_places(shape) * shape.last().copied().unwrap_or(1)
    }

    /// Adds the errors of consecutive values of a row to the sums.
    pub(super) fn add(&mut self, row: usize, column: usize, terms: &Terms) {
        let width = self.of.columns.len();
        self.moved.iter_mut().zip(terms.moved).for_each(|(own, more)| *own += more);
        self.rows.add_all(row - self.of.rows.start, terms);
        if let Some(inside) = row.checked_rem(Self::rows_of_places(&self.shape)) {
            self.places.add_each(inside * width + column - self.of.columns.start, terms);
        }
    }

    /// Adds the sums of another window.
    pub(super) fn plus(mut self, part: &Self) -> Self {
        let rows = part.of.rows.len();
        self.rows.add(part.of.rows.start - self.of.rows.start, &part.rows, 0..rows);
        let (width, wide) = (self.of.columns.len(), part.of.columns.len());
        let column = part.of.columns.start - self.of.columns.start;
        for inside in 0..Self::rows_of_places(&self.shape) {
            self.places.add(inside * width + column, &part.places, inside * wide..(inside + 1) * wide);
        }
        self.moved.iter_mut().zip(part.moved).for_each(|(own, more)| *own += more);
        self
    }

    /// Returns true if the first engine's results are the nearest numbers far more often than the stated precision
    /// allows. They were then computed from more precise values.
    pub(super) fn is_too_sure(&self) -> bool {
        const SIGMAS: f64 = 5.0;
        let [moved, expected] = self.moved;
        // Intermediate roundings can double the expected number.
        moved < expected / 4.0 && moved < expected - SIGMAS * expected.sqrt()
    }

    /// Returns one engine's most significant bias, after allowing for `common` errors.
    pub(super) fn largest(&self, side: usize, common: SharedError) -> Option<BiasEstimate> {
        let entries = self.shape.first().copied().unwrap_or(1);
        let inner = self.of.rows.len().checked_div(entries).unwrap_or(0).max(1);
        let whole = self.rows.all().fold(BiasSums::default(), |sums, row| sums.plus(&row));
        let grouped = |groups: usize, strands: &GroupSums, group: &dyn Fn(usize) -> usize| {
            let mut sums = vec![BiasSums::default(); groups];
            strands.all().enumerate().for_each(|(at, one)| sums[group(at)] = sums[group(at)].plus(&one));
            sums.into_iter().enumerate()
        };
        let squares = |of: fn(&BiasSums) -> f64| self.rows.all().map(|row| of(&row).powi(2)).sum::<f64>();
        let of_rows = [squares(|row| row.squares), squares(|row| row.values)];
        let mut strands = vec![(BiasGroup::Whole, 0, whole)];
        // An axis of length 1 has only one group, which equals the whole tensor.
        if self.shape.len() > 1 && entries > 1 {
            let of_entries = grouped(entries, &self.rows, &|row| row / inner);
            strands.extend(of_entries.map(|(at, sums)| (BiasGroup::Axis(0), at, sums)));
        }
        if let &[_, middle, last] = self.shape.as_slice() {
            let along = grouped(middle, &self.rows, &|row| row % middle);
            strands.extend(along.filter(|_| middle > 1).map(|(at, sums)| (BiasGroup::Axis(1), at, sums)));
            let along = grouped(last, &self.places, &|place| place % last);
            strands.extend(along.map(|(at, sums)| (BiasGroup::Axis(2), at, sums)));
        }
        if entries as u64 >= FEWEST {
            strands.extend(self.places.all().enumerate().map(|(at, sums)| (BiasGroup::Channel, at, sums)));
        }
        strands
            .into_iter()
            .filter(|(.., sums)| sums.n >= FEWEST)
            .flat_map(|(group, index, sums)| {
                let rows = match group {
                    BiasGroup::Whole => of_rows,
                    _ => [sums.squares.powi(2), sums.values.powi(2)],
                };
                sums.biases(side, common, rows).map(|bias| BiasEstimate { group, index, ..bias })
            })
            .filter(|bias| bias.z.is_finite())
            .max_by(|a, b| a.z.abs().total_cmp(&b.z.abs()))
    }
}

impl BiasSums {
    /// Returns the bias as a scale and as an offset. `rows` are the squares of each row's share.
    fn biases(
        &self,
        side: usize,
        SharedError { shared, of_row, dependence }: SharedError,
        rows: [f64; 2],
    ) -> [BiasEstimate; 2] {
        let z = |error: f64, step: f64, variance: f64, common: f64, rows: f64| {
            // A total error of a few steps of a short type is not a bias, unless the variance contains all uncertainty.
            let steps = if of_row > 0.0 { 0.0 } else { LAMBDA * step };
            let beyond = (error.abs() - steps).max(0.0).copysign(error);
            if beyond == 0.0 {
                0.0
            } else {
                let alike = (shared * common).powi(2) + of_row * of_row * rows;
                beyond / (dependence * variance + alike).sqrt()
            }
        };
        let bias = |error: f64, is_scale: bool, z: f64| BiasEstimate {
            group: BiasGroup::Whole,
            index: 0,
            error,
            is_scale,
            z,
        };
        let (errors, scaled) = (self.errors[side], self.scaled[side]);
        let scale = z(scaled, self.scaled_step, self.scaled_variance, self.squares, rows[0]);
        let offset = z(errors, self.step, self.variance, self.values, rows[1]);
        [bias(scaled / self.squares, true, scale), bias(errors / self.n as f64, false, offset)]
    }
}
