//! Distribution of an array's errors: by the size of the values, by row, and as probabilities of a softmax.
//!
//! The largest relative error says little about the values that decide. The top logits of a row may differ by
//! several times the rounding error of any other value in the row, and still have a small relative error. Errors
//! are therefore grouped by row, and by the size of the values.

use crate::measure::array_pair::ColumnSelection;
use crate::measure::precision::ValuePrecision;
use crate::measure::sums::larger;
use crate::measure::top_tokens::PredictionDivergence;
use crate::parallel;
use crate::view::View;

/// Number of size classes. A class is a power of two of |x| relative to the root mean square of its row, from 2⁻⁸
/// to 2⁷.
const CLASSES: usize = 16;
const SMALLEST: i32 = -8;

/// Errors of one class of values, relative to the root mean square of their rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SizeClass {
    /// Number of values.
    pub count: usize,
    /// Largest error in the class. Errors of at most the distance to the value's neighbour in the computed type do not
    /// count.
    pub max: f64,
    /// Sum of the squares of all errors.
    pub(crate) squares: f64,
}

impl SizeClass {
    /// Merges the errors of two sets of values.
    pub fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            max: larger(self.max, other.max),
            squares: self.squares + other.squares,
        }
    }

    /// Returns the root mean square of the errors.
    pub fn rms(&self) -> f64 {
        (self.squares / self.count.max(1) as f64).sqrt()
    }
}

/// Distribution of errors. All numbers are NaN if a value is NaN, so that no check passes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Classes by the size of the values, smallest first.
    pub classes: [SizeClass; CLASSES],
    /// Root mean square of the errors of each long row, in absolute units. Short rows are too noisy.
    pub rows: Vec<f64>,
    /// KL(own‖theirs) of each row of logits; empty for other values.
    pub divergences: Vec<f64>,
    /// Over all rows of logits, the largest difference in `own` between its likeliest token and the likeliest token of
    /// `theirs`. 0 if all rows agree.
    pub lost_lead: f64,
    /// Relative scale error of all values together: Σ e·x / Σ x².
    pub scale: f64,
}

/// Minimum number of values for a row to be long.
const LONG: usize = 32;

/// Errors of one row, without errors that storing may have caused.
struct RowErrors {
    classes: [SizeClass; CLASSES],
    rms: Option<f64>,
    divergence: Option<PredictionDivergence>,
    /// Σ e·x and Σ x².
    products: [f64; 2],
}

impl Distribution {
    /// Returns the errors of `theirs` against `own`, which have the same shape, in the selected columns. `precision`
    /// describes `theirs` as the candidate. Rows of logits are also compared as probabilities.
    pub fn of(
        theirs: &View,
        own: &View,
        precision: ValuePrecision,
        columns: impl Fn(usize) -> ColumnSelection + Sync,
        are_logits: bool,
    ) -> Self {
        let row = |row: usize| row_of([theirs, own], row, precision, &columns(row), are_logits);
        let rows = parallel::map(own.rows(), 8 * own.width(), row);
        let rows: Vec<RowErrors> = rows.into_iter().flatten().collect();
        let mut classes = [SizeClass::default(); CLASSES];
        for row in &rows {
            classes.iter_mut().zip(row.classes).for_each(|(all, of_row)| *all = all.and(of_row));
        }
        let product = |at: usize| rows.iter().map(|row| row.products[at]).sum::<f64>();
        let of_logits = || rows.iter().filter_map(|row| row.divergence);
        let scale = if product(1) == 0.0 { 0.0 } else { product(0) / product(1) };
        Self {
            classes,
            rows: rows.iter().filter_map(|row| row.rms).collect(),
            divergences: of_logits().map(|found| found.kl).collect(),
            lost_lead: of_logits().map(|found| found.lost_lead).fold(0.0, larger),
            scale,
        }
    }
}

fn row_of(
    [theirs, own]: [&View; 2],
    row: usize,
    precision: ValuePrecision,
    columns: &ColumnSelection,
    are_logits: bool,
) -> Option<RowErrors> {
    let width = own.width();
    let read = |view: &View| {
        let mut values = vec![0.0; width];
        view.read(row, 0..width, &mut values);
        values
    };
    let (their_values, own_values) = (read(theirs), read(own));
    let scales = theirs.scales().map(read);
    let entries: Vec<usize> = match columns {
        ColumnSelection::These(columns) => columns.clone(),
        others => others.range(width).collect(),
    };
    if entries.is_empty() {
        return None;
    }
    let count = entries.len() as f64;
    let square = entries.iter().map(|&at| own_values[at] * own_values[at]).sum::<f64>();
    let size = (square / count).sqrt();
    let unit = if size > 0.0 { size } else { 1.0 };
    let mut found =
        RowErrors { classes: Default::default(), rms: None, divergence: None, products: [0.0, square] };
    let mut squares = 0.0;
    let mut nearest = own_values.clone();
    for at in entries {
        let (x, own) = (their_values[at], own_values[at]);
        let slack = precision.slack([x, own], [scales.as_ref().map_or(1.0, |scales| scales[at]), 1.0]);
        let apart = (x - own).abs();
        let error = if apart <= slack { 0.0 } else { apart - slack };
        squares += error * error;
        nearest[at] = own + error.copysign(x - own);
        found.products[0] += error.copysign(x - own) * own;
        let past = if error <= precision.step(own) { 0.0 } else { error };
        let class = SizeClass { count: 1, max: past / unit, squares: error * error / (unit * unit) };
        let of = &mut found.classes[class_of(own / unit)];
        *of = of.and(class);
    }
    found.rms = (count >= LONG as f64).then(|| (squares / count).sqrt());
    found.divergence = are_logits.then(|| PredictionDivergence::of(&nearest, &own_values));
    Some(found)
}

/// Returns the class of a value, given relative to its row.
fn class_of(value: f64) -> usize {
    let power = value.abs().log2().floor();
    if power.is_nan() {
        0
    } else {
        (power.clamp(-1e3, 1e3) as i32 - SMALLEST).clamp(0, CLASSES as i32 - 1) as usize
    }
}
