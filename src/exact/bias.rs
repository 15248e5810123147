//! Systematic errors: too small for every element, and the same in many.
//!
//! Roundings to nearest have no direction, so that over N results their mean is √N times smaller than one of them. A scale
//! (error ∝ result) and an offset are looked for in the whole tensor, and in each of its rows, heads and channels.

use crate::exact::profile::Float;
use crate::exact::value::{Exact, LAMBDA};

/// Fewer results have no mean to speak of.
const FEWEST: u64 = 32;

/// What a step of a short type is moved over, as often as its sigma is a part of it: E|x| of a Gaussian.
const CROSSES: f64 = 0.8;

/// Which results of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strand {
    /// All of them.
    Whole,
    /// Those at one index of an axis.
    Axis(usize),
    /// Those at one place of each entry of the outermost axis: an output channel.
    Channel,
}

/// A systematic error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bias {
    /// Of which results.
    pub strand: Strand,
    /// Which of such strands it is.
    pub index: usize,
    /// The error: a part of the results, or the same in all.
    pub error: f64,
    /// Whether it is a part of the results.
    pub is_scale: bool,
    /// The error in sigmas of what rounding comes to.
    pub z: f64,
}

impl Bias {
    /// Whether rounding without a direction cannot make it.
    pub fn is_systematic(&self) -> bool {
        !(self.z.abs() <= LAMBDA)
    }
}

/// What the errors of results have in common, so that their mean is no surer than one of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Common {
    /// An error that all results of a row share, relative to these.
    pub(super) shared: f64,
    /// An error that all results of a row share, and those of another row have another, relative to these.
    pub(super) of_row: f64,
    /// How many results count once.
    pub(super) dependence: f64,
}

/// Sums over one strand. Of the errors there is one for each of two engines, which share all the rest.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
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

/// One result, as it is added.
#[derive(Clone, Copy)]
pub(super) struct Term {
    value: f64,
    variance: f64,
    step: f64,
    errors: [f64; 2],
    /// How often such a result is another number of its type than the nearest.
    moves: f64,
}

impl Term {
    /// What two engines have made of a result that is rounded to a type in the end, under a scale.
    pub(super) fn new(values: [f64; 2], exact: &Exact, float: Float, scale: f64) -> Self {
        let y = exact.value;
        if float == Float::F32 {
            let errors = values.map(|value| value - y);
            return Self { value: y, variance: exact.sigma * exact.sigma, step: 0.0, errors, moves: 0.0 };
        }
        // What is rounded to a short type is the same number nearly everywhere, or the next.
        let rounded = float.round(y / scale);
        let (low, high) = float.cell(rounded);
        let (rounded, step) = (rounded * scale, (high - low) * scale);
        let errors = values.map(|value| value - rounded);
        // More than a step is moved over where sigma is no part of it.
        let moves = if step > 0.0 { (CROSSES * exact.sigma / step).min(1.0) } else { 0.0 };
        Self { value: y, variance: exact.sigma * (CROSSES * step + exact.sigma), step, errors, moves }
    }
}

impl Sums {
    fn add(&mut self, term: &Term) {
        let Term { value, variance, step, errors, .. } = *term;
        let square = value * value;
        self.n += 1;
        self.values += value;
        self.squares += square;
        self.variance += variance;
        self.scaled_variance += variance * square;
        self.step = self.step.max(step);
        self.scaled_step = self.scaled_step.max(step * value.abs());
        for (side, error) in errors.into_iter().enumerate() {
            self.errors[side] += error;
            self.scaled[side] += error * value;
        }
    }

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

/// Sums over the strands of a tensor: those at each index of the outermost axis, and at each place inside its entries. All
/// others are sums of these.
pub(super) struct Biases {
    shape: Vec<usize>,
    entries: Vec<Sums>,
    places: Vec<Sums>,
    /// How many of the first engine's results are other numbers than the nearest, and how many are to be expected.
    moved: [f64; 2],
}

impl Biases {
    pub(super) fn new(shape: &[usize]) -> Self {
        let places = shape.iter().skip(1).product();
        let entries = shape.first().copied().unwrap_or(1);
        Self {
            shape: shape.to_vec(),
            entries: vec![Sums::default(); entries],
            places: vec![Sums::default(); places],
            moved: [0.0; 2],
        }
    }

    pub(super) fn add(&mut self, flat: usize, term: &Term) {
        let places = self.places.len();
        self.moved[0] += f64::from(u8::from(term.errors[0] != 0.0));
        self.moved[1] += term.moves;
        self.entries[flat / places].add(term);
        self.places[flat % places].add(term);
    }

    /// With what was added to others of the same tensor.
    pub(super) fn plus(mut self, other: &Self) -> Self {
        for (own, others) in [(&mut self.entries, &other.entries), (&mut self.places, &other.places)] {
            own.iter_mut().zip(others).for_each(|(own, other)| *own = own.plus(other));
        }
        self.moved.iter_mut().zip(other.moved).for_each(|(own, other)| *own += other);
        self
    }

    /// Whether the first engine's results are the nearest numbers far more often than they would be if all were as unsure as is
    /// said: then they were made of surer ones.
    pub(super) fn is_too_sure(&self) -> bool {
        const SIGMAS: f64 = 5.0;
        let [moved, expected] = self.moved;
        // Intermediate roundings make what is expected up to twice as many.
        moved < expected / 4.0 && moved < expected - SIGMAS * expected.sqrt()
    }

    /// The one of a side that stands out most from what results may have in common.
    pub(super) fn largest(&self, side: usize, common: Common) -> Option<Bias> {
        let whole = self.entries.iter().fold(Sums::default(), Sums::plus);
        let mut strands = vec![(Strand::Whole, 0, whole)];
        strands.extend(self.entries.iter().enumerate().map(|(at, sums)| (Strand::Axis(0), at, *sums)));
        if let &[_, middle, last] = self.shape.as_slice() {
            let grouped = |groups: usize, group: &dyn Fn(usize) -> usize| {
                let mut sums = vec![Sums::default(); groups];
                self.places.iter().enumerate().for_each(|(at, place)| {
                    sums[group(at)] = sums[group(at)].plus(place);
                });
                sums.into_iter().enumerate()
            };
            strands.extend(grouped(middle, &|at| at / last).map(|(at, sums)| (Strand::Axis(1), at, sums)));
            strands.extend(grouped(last, &|at| at % last).map(|(at, sums)| (Strand::Axis(2), at, sums)));
        }
        strands.extend(self.places.iter().enumerate().map(|(at, sums)| (Strand::Channel, at, *sums)));
        strands
            .into_iter()
            .filter(|(.., sums)| sums.n >= FEWEST)
            .flat_map(|(strand, index, sums)| {
                // Entries are one row each, or have several.
                let rows = match strand {
                    Strand::Whole => &self.entries[..],
                    _ => std::slice::from_ref(&sums),
                };
                let squares = |of: fn(&Sums) -> f64| rows.iter().map(|row| of(row).powi(2)).sum::<f64>();
                let rows = [squares(|sums| sums.squares), squares(|sums| sums.values)];
                sums.biases(side, common, rows).map(|bias| Bias { strand, index, ..bias })
            })
            .filter(|bias| bias.z.is_finite())
            .max_by(|a, b| a.z.abs().total_cmp(&b.z.abs()))
    }
}

impl Sums {
    /// As a scale, and as an offset; `rows` are the squares of what each row has of either.
    fn biases(
        &self,
        side: usize,
        Common { shared, of_row, dependence }: Common,
        rows: [f64; 2],
    ) -> [Bias; 2] {
        let z = |error: f64, step: f64, variance: f64, common: f64, rows: f64| {
            // A few steps of a short type are no direction, unless all that is not known is in the variance.
            let steps = if of_row > 0.0 { 0.0 } else { LAMBDA * step };
            let beyond = (error.abs() - steps).max(0.0).copysign(error);
            if beyond == 0.0 {
                0.0
            } else {
                let alike = (shared * common).powi(2) + of_row * of_row * rows;
                beyond / (dependence * variance + alike).sqrt()
            }
        };
        let bias =
            |error: f64, is_scale: bool, z: f64| Bias { strand: Strand::Whole, index: 0, error, is_scale, z };
        let (errors, scaled) = (self.errors[side], self.scaled[side]);
        let scale = z(scaled, self.scaled_step, self.scaled_variance, self.squares, rows[0]);
        let offset = z(errors, self.step, self.variance, self.values, rows[1]);
        [bias(scaled / self.squares, true, scale), bias(errors / self.n as f64, false, offset)]
    }
}
