//! The distribution of the errors of an array: by the size of the values, by row, and as probabilities of a softmax.
//!
//! The largest relative error says little about the values that decide. The top logits of a row may be off by several times the
//! rounding error of any value in the row, and the error relative to their own size is still small. Errors are therefore grouped
//! into classes of values of similar size, and by row.

use crate::measure::array_pair::ColumnSelection;
use crate::measure::precision::ValuePrecision;
use crate::measure::sums::larger;
use crate::measure::top_tokens::PredictionDivergence;
use crate::parallel;
use crate::view::View;

/// Classes of values: powers of two of |x| in units of the root mean square of its row, from 2⁻⁸ to 2⁷.
const CLASSES: usize = 16;
const SMALLEST: i32 = -8;

/// The errors of the values of one class, in units of the root mean square of their rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SizeClass {
    /// The number of values.
    pub count: usize,
    /// The largest error that is further off than the value's neighbour in the type in which it was computed.
    pub max: f64,
    /// The sum of the squares of all errors.
    pub squares: f64,
}

impl SizeClass {
    /// The values of both.
    pub fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            max: larger(self.max, other.max),
            squares: self.squares + other.squares,
        }
    }

    /// The root mean square of the errors.
    pub fn rms(&self) -> f64 {
        (self.squares / self.count.max(1) as f64).sqrt()
    }
}

/// The distribution of errors. All figures are NaN where a NaN was met, so that no check passes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Classes by the size of the values, from the smallest.
    pub classes: [SizeClass; CLASSES],
    /// The root mean square of the errors of each long row, in the values' own units. A short one tells too little by itself.
    pub rows: Vec<f64>,
    /// KL(own‖theirs) of each row of logits; empty for other values.
    pub divergences: Vec<f64>,
    /// The largest lead in `own` of its likeliest token over that of `theirs`, of all rows of logits; 0 where each row agrees.
    pub lost_lead: f64,
    /// The factor by which all values together are too large, less 1: Σ e·x / Σ x².
    pub scale: f64,
}

/// Rows of fewer values are short.
const LONG: usize = 32;

/// Errors of one row, without those that storing may have caused.
struct RowErrors {
    classes: [SizeClass; CLASSES],
    rms: Option<f64>,
    divergence: Option<PredictionDivergence>,
    /// Σ e·x and Σ x².
    products: [f64; 2],
}

impl Distribution {
    /// The errors of `theirs` against `own`, of one shape, in the entries of each row that `columns` names. `grain` has `theirs` as
    /// the candidate. Rows of logits are compared as probabilities, too.
    pub fn of(
        theirs: &View,
        own: &View,
        grain: ValuePrecision,
        columns: impl Fn(usize) -> ColumnSelection + Sync,
        are_logits: bool,
    ) -> Self {
        let row = |row: usize| row_of([theirs, own], row, grain, &columns(row), are_logits);
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
    grain: ValuePrecision,
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
        let slack = grain.slack([x, own], [scales.as_ref().map_or(1.0, |scales| scales[at]), 1.0]);
        let apart = (x - own).abs();
        let error = if apart <= slack { 0.0 } else { apart - slack };
        squares += error * error;
        nearest[at] = own + error.copysign(x - own);
        found.products[0] += error.copysign(x - own) * own;
        let past = if error <= grain.step(own) { 0.0 } else { error };
        let class = SizeClass { count: 1, max: past / unit, squares: error * error / (unit * unit) };
        let of = &mut found.classes[class_of(own / unit)];
        *of = of.and(class);
    }
    found.rms = (count >= LONG as f64).then(|| (squares / count).sqrt());
    found.divergence = are_logits.then(|| PredictionDivergence::of(&nearest, &own_values));
    Some(found)
}

/// The class of a value in units of its row.
fn class_of(value: f64) -> usize {
    let power = value.abs().log2().floor();
    if power.is_nan() {
        0
    } else {
        (power.clamp(-1e3, 1e3) as i32 - SMALLEST).clamp(0, CLASSES as i32 - 1) as usize
    }
}
