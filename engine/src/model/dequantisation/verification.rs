//! Comparison of quantised weights with the weights that they were made of.

use std::slice;

use crate::error::Result;
use crate::format::TensorFile;
use crate::model::dequantisation::module_filter::Conversion;
use crate::model::dequantisation::module_tensors::ModuleTensors;
use crate::model::dequantisation::{
    Dequantisation, WeightFormat, WeightMatrix, WeightReading, input_factors,
};
use crate::view::View;
use crate::weight::StoredTensor;

/// Maximum number of rows on which alternative readings of the codes are tried. The rows are spread over the
/// matrix.
const ROWS: usize = 256;

/// Ratio of errors above which another reading of the codes is the better fit.
const BETTER: f64 = 2.0;

/// Largest error of a correct weight, as a multiple of the error from rounding to the nearest code. GPTQ's error is
/// larger than that of rounding.
const CODES: f64 = 2.5;

/// Largest relative error of a correct weight in a format with unequal steps (floats): 2.5 times the error of rounding,
/// which is 0.04 for 8 bits and 0.12 for 4 bits.
const FLOATS: f64 = 0.1;
const FEW_BITS: f64 = 0.3;

/// Smallest distance from 1 of a factor that rounding of scales cannot cause: twice the largest rounding error of
/// bf16.
const SCALE: f64 = 1.0 / 128.0;

/// Minimum number of inputs for a row's factor to be significant.
const FEW_INPUTS: usize = 128;

/// Two sets of factors count as different if the largest factor is more than this many times the smallest.
const ALIKE: f64 = 1.1;

/// Number of rounds in which factors of inputs and of outputs are fitted in turn.
const ROUNDS: usize = 4;

/// Relative error above which a weight is unrelated to the original. A weight of zeros has the error 1.
const LOST: f64 = 0.9;

/// Result for one quantised weight.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightFit {
    /// Name of the module.
    pub module: String,
    /// Root mean square of the difference, relative to the original.
    pub error: f64,
    /// Largest error that the rounding of the format explains.
    pub largest: f64,
    /// Conclusion.
    pub finding: WeightFinding,
}

/// Conclusion about one quantised weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WeightFinding {
    /// The weight equals the original, up to the error of its format.
    Fits,
    /// The weight equals the original times a factor for each input or output. AWQ and SmoothQuant move such factors to
    /// another layer.
    FitsWithFactors,
    /// The weight equals the original times this factor.
    Scaled(f64),
    /// The weight fits the original much better under this other reading of its codes. The number is the relative error
    /// under that reading.
    FitsIn(WeightReading, f64),
    /// The weight does not match the original.
    Differs,
    /// The weight is unlike the original, but may be correct, since its codes have very few bits.
    TooCoarse,
    /// The original has no weight of this name, or one of another shape.
    HasNoOriginal,
}

impl WeightFinding {
    /// Returns true if the weight is correct.
    pub fn is_right(self) -> bool {
        matches!(self, WeightFinding::Fits | WeightFinding::FitsWithFactors)
    }
}

impl Dequantisation {
    /// Compares every quantised weight of a file with the weight of the same name in the original.
    ///
    /// # Errors
    /// See `Dequantisation::weights`.
    pub fn compare(&self, file: &TensorFile, original: &TensorFile) -> Result<Vec<WeightFit>> {
        let this = self.for_file(file);
        let weights = this.weights(file)?;
        this.check_input_factors(file, &weights)?;
        let compared = |(module, weight): (&&str, &WeightMatrix)| {
            let unknown = || WeightFit {
                module: (*module).to_owned(),
                error: f64::NAN,
                largest: f64::NAN,
                finding: WeightFinding::HasNoOriginal,
            };
            let group = match this.filter.conversion(module) {
                Conversion::Group(group) | Conversion::Either(group) => &this.groups[group],
                Conversion::Excluded(_) => return Ok(unknown()),
            };
            let (joint, main) = (group.format.joint(), group.format.tensors()[0]);
            let tensors = ModuleTensors { file, module, joint, main };
            let factors = input_factors::of_module(&tensors, weight)?;
            let rows = |tensor| rows_of(tensor, weight, factors.as_deref());
            match original.get(&weight.name(module)).and_then(rows) {
                Some(original) => fit(&*group.format, &tensors, weight, &original),
                None => Ok(unknown()),
            }
        };
        weights.iter().map(compared).collect()
    }
}

/// Rows of the original, with their indices.
struct OriginalRows {
    rows: Vec<(usize, Vec<f32>)>,
}

/// Reads the rows of the original. `None` if its shape differs from the weight's, or its type cannot be read. If
/// the file stores factors of inputs, divides the rows by them, since the quantised weight is the original divided
/// by them.
fn rows_of(tensor: &StoredTensor, weight: &WeightMatrix, factors: Option<&[f32]>) -> Option<OriginalRows> {
    let view = View::stored(&[weight.rows, weight.cols], tensor.dtype, tensor.data.clone())?;
    if tensor.shape != weight.shape() {
        return None;
    }
    let row = |row: usize| {
        let mut values = vec![0.0; weight.cols];
        view.read_rounded(row, 0..weight.cols, &mut values);
        let factors = factors.unwrap_or_default();
        values.iter_mut().zip(factors).for_each(|(value, factor)| *value /= factor);
        (row, values)
    };
    Some(OriginalRows { rows: (0..weight.rows).map(row).collect() })
}

impl OriginalRows {
    /// Returns some rows, spread over the matrix. The step is odd, so the rows cover every position in a word of packed
    /// codes.
    fn some(&self) -> Self {
        Self { rows: self.rows.iter().step_by(self.rows.len().div_ceil(ROWS) | 1).cloned().collect() }
    }

    /// Returns the relative error of a weight that is multiplied by a factor for each input.
    fn error(&self, weight: &WeightMatrix, factor: impl Fn(usize) -> f64) -> f64 {
        let (mut difference, mut size) = (0.0, 0.0);
        for (row, values) in &self.rows {
            for (col, &value) in values.iter().enumerate() {
                let (found, value) = (f64::from((weight.value)(*row, col)) * factor(col), f64::from(value));
                difference += (found - value).powi(2);
                size += value * value;
            }
        }
        if difference == 0.0 { 0.0 } else { (difference / size).sqrt() }
    }

    /// Returns true if a row of usual size is lost: its error is as large as the row.
    fn has_lost_row(&self, weight: &WeightMatrix) -> bool {
        let square = |values: &[f32]| values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
        let mean =
            self.rows.iter().map(|(_, values)| square(values)).sum::<f64>() / self.rows.len().max(1) as f64;
        self.rows.iter().any(|(row, values)| {
            let errors = values.iter().enumerate();
            let error: f64 =
                errors.map(|(col, &value)| f64::from((weight.value)(*row, col) - value).powi(2)).sum();
            16.0 * square(values) >= mean && error > LOST * LOST * square(values)
        })
    }

    /// Returns true if a row is the original row times a factor. The row's small values must have the factor too,
    /// because a format that clips changes only the largest values.
    fn has_scaled_row(&self, weight: &WeightMatrix) -> bool {
        let is_scaled = |row: &(usize, Vec<f32>)| {
            let squares: f64 = row.1.iter().map(|&value| f64::from(value).powi(2)).sum();
            let usual = (squares / row.1.len() as f64).sqrt();
            let factors = [f64::INFINITY, usual]
                .map(|most| Sums::of(slice::from_ref(row), weight, most).common_factor());
            matches!(factors, [Some(all), Some(small)] if (all > 1.0) == (small > 1.0))
        };
        weight.cols >= FEW_INPUTS && self.rows.iter().any(is_scaled)
    }

    /// Returns true if the input columns or the output rows have different factors.
    fn is_spread(&self, weight: &WeightMatrix) -> bool {
        let factor = |row| Sums::of(slice::from_ref(row), weight, f64::INFINITY).factor();
        let of_rows = self.rows.iter().map(factor).collect();
        [self.factors(weight), of_rows].iter().any(|factors| !are_alike(factors))
    }

    /// Returns true if the weight is the original times a factor for each input and a factor for each output, and the
    /// factors of inputs differ. AWQ moves the factors of inputs to the layer before, whose outputs then have factors.
    fn has_factors_of_both(&self, weight: &WeightMatrix, largest: f64) -> bool {
        let (mut of_rows, mut of_cols) = (vec![1.0; self.rows.len()], vec![None; weight.cols]);
        for _ in 0..ROUNDS {
            let mut cols = vec![FactorSums::default(); weight.cols];
            for ((row, values), &of_row) in self.rows.iter().zip(&of_rows) {
                for (col, &value) in values.iter().enumerate() {
                    cols[col].add(f64::from((weight.value)(*row, col)) * of_row, value.into());
                }
            }
            of_cols = cols.iter().map(FactorSums::factor).collect();
            let row = |(row, values): &(usize, Vec<f32>)| {
                let mut sums = FactorSums::default();
                for (col, &value) in values.iter().enumerate() {
                    let of_col = of_cols[col].unwrap_or(1.0);
                    sums.add(f64::from((weight.value)(*row, col)) * of_col, value.into());
                }
                sums.factor().unwrap_or(0.0)
            };
            of_rows = self.rows.iter().map(row).collect();
        }
        let is_positive = of_cols.iter().flatten().chain(&of_rows).all(|&factor| factor > 0.0);
        let errors = self.rows.iter().zip(&of_rows).map(|(row, &of_row)| {
            let one = Self { rows: vec![row.clone()] };
            one.error(weight, |col| of_row * of_cols[col].unwrap_or(1.0))
        });
        let errors: Vec<f64> = errors.collect();
        let mean = errors.iter().map(|error| error * error).sum::<f64>() / errors.len() as f64;
        let has_lost_row = errors.iter().any(|&error| error > LOST);
        is_positive && !are_alike(&of_cols) && mean.sqrt() <= largest && !has_lost_row
    }

    /// Returns the factor of each input that brings a weight nearest to the original; `None` for an input whose weights
    /// are all 0.
    fn factors(&self, weight: &WeightMatrix) -> Vec<Option<f64>> {
        let factor = |col: usize| {
            let mut sums = FactorSums::default();
            let values = self.rows.iter().map(|(row, values)| ((weight.value)(*row, col), values[col]));
            values.for_each(|(found, value)| sums.add(found.into(), value.into()));
            sums.factor()
        };
        (0..weight.cols).map(factor).collect()
    }
}

/// Compares one weight with its original.
fn fit(
    format: &dyn WeightFormat,
    module: &ModuleTensors,
    weight: &WeightMatrix,
    original: &OriginalRows,
) -> Result<WeightFit> {
    let error = original.error(weight, |_| 1.0);
    let some = original.some();
    let error_of_some = some.error(weight, |_| 1.0);
    let (mut best, mut largest) = (None, if format.has_few_bits() { FEW_BITS } else { FLOATS });
    for &reading in format.readings() {
        let other = format.weight(module, reading)?;
        if reading == WeightReading::ZeroAbove {
            largest = LOST.min(CODES * step(&some, weight, &other) / 12f64.sqrt());
        }
        let error = some.error(&other, |_| 1.0);
        if !error.is_nan() && best.is_none_or(|(_, least)| error < least) {
            best = Some((reading, error));
        }
    }
    let different = if format.is_coarse(module) { WeightFinding::TooCoarse } else { WeightFinding::Differs };
    let finding = match best {
        Some((reading, least)) if BETTER * least < error_of_some && least <= largest => {
            WeightFinding::FitsIn(reading, least)
        }
        _ if error > largest && original.has_factors_of_both(weight, largest) => {
            WeightFinding::FitsWithFactors
        }
        _ if original.has_lost_row(weight) => different,
        _ if let Some(factor) = Sums::of(&original.rows, weight, f64::INFINITY).common_factor() => {
            match original.is_spread(weight) {
                true => WeightFinding::FitsWithFactors,
                false => WeightFinding::Scaled(factor),
            }
        }
        _ if error <= largest && original.has_scaled_row(weight) => WeightFinding::FitsWithFactors,
        _ if error <= largest => WeightFinding::Fits,
        _ if has_factors(&some, weight, largest) => WeightFinding::FitsWithFactors,
        _ => different,
    };
    Ok(WeightFit { module: module.module.to_owned(), error, largest, finding })
}

/// Returns the root mean square of the distance between neighbouring codes, relative to the original.
fn step(original: &OriginalRows, weight: &WeightMatrix, above: &WeightMatrix) -> f64 {
    let rows = original.rows.iter().map(|(row, _)| {
        let stated = (0..weight.cols).map(|col| (weight.value)(*row, col)).collect();
        (*row, stated)
    });
    let stated = OriginalRows { rows: rows.collect() };
    let size = |rows: &OriginalRows| -> f64 {
        rows.rows.iter().flat_map(|(_, values)| values).map(|&value| f64::from(value).powi(2)).sum()
    };
    stated.error(above, |_| 1.0) * (size(&stated) / size(original)).sqrt()
}

/// Returns true if each input column of a weight is the original's column times a factor, and the factors differ.
fn has_factors(original: &OriginalRows, weight: &WeightMatrix, largest: f64) -> bool {
    let factors = original.factors(weight);
    let is_positive = factors.iter().flatten().all(|factor| *factor > 0.0);
    let error = || original.error(weight, |col| factors[col].unwrap_or(1.0));
    is_positive && !are_alike(&factors) && error() <= largest
}

/// Returns true if all known factors are nearly equal. Rows and columns of zeros have no factor.
fn are_alike(factors: &[Option<f64>]) -> bool {
    let fold = |(low, high): (f64, f64), &factor: &f64| (low.min(factor), high.max(factor));
    let (low, high) = factors.iter().flatten().fold((f64::INFINITY, f64::NEG_INFINITY), fold);
    low > 0.0 && high <= ALIKE * low
}

/// Sums for a least-squares fit of `original = factor · weight`.
#[derive(Clone, Copy, Default)]
struct FactorSums {
    products: f64,
    squares: f64,
}

impl FactorSums {
    fn add(&mut self, found: f64, value: f64) {
        self.products += found * value;
        self.squares += found * found;
    }

    /// Returns the factor; `None` if the weight is 0.
    fn factor(&self) -> Option<f64> {
        (self.squares > 0.0).then(|| self.products / self.squares)
    }
}

/// Sums over some rows: of the original's squares, of its products with the weight, and of the squared differences.
#[derive(Default)]
struct Sums {
    squares: f64,
    products: f64,
    differences: f64,
}

impl Sums {
    /// Adds up the values that are at most as large as `most`.
    fn of(rows: &[(usize, Vec<f32>)], weight: &WeightMatrix, most: f64) -> Self {
        let pairs = rows.iter().flat_map(|(row, values)| {
            values
                .iter()
                .enumerate()
                .map(|(col, &value)| (f64::from((weight.value)(*row, col)), f64::from(value)))
        });
        pairs.filter(|(_, value)| value.abs() <= most).fold(Self::default(), |sums, (found, value)| Self {
            squares: sums.squares + value * value,
            products: sums.products + found * value,
            differences: sums.differences + (found - value).powi(2),
        })
    }

    /// Returns the factor by which the original is nearest to the weight (least squares); `None` if the original is
    /// zero.
    fn factor(&self) -> Option<f64> {
        (self.squares > 0.0).then(|| self.products / self.squares)
    }

    /// Fits `weight = factor · original` by least squares. Returns the factor if it differs from 1 and explains more
    /// than half of the squared error. Errors of rounding to the nearest code hardly correlate with the original, so
    /// rounding alone gives no such factor.
    fn common_factor(&self) -> Option<f64> {
        let factor = self.factor()?;
        let off = factor - 1.0;
        (off.abs() > SCALE && 2.0 * off * off * self.squares > self.differences).then_some(factor)
    }
}
