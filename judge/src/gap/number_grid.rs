//! Recognises log-probabilities that are stored with few digits.

use super::finding::GapFinding;
use super::logprob_error::StorageError;
use super::rounding_scales::LogOddsScale;

/// Maximum number of values that are examined.
const MOST: usize = 200_000;
/// Minimum number of different values that prove a grid.
const LEAST: usize = 16;

/// The set of numbers that a side's log-probabilities are rounded to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum NumberGrid {
    /// Multiples of a power of ten.
    Decimals(u32),
    /// The numbers of bf16, with the smallest nonzero value.
    Bf16(f64),
    /// The numbers of f16, with the smallest nonzero value.
    F16(f64),
}

impl NumberGrid {
    /// Returns the coarsest grid that contains all values. `None` if the values have the precision of f32.
    pub(crate) fn of(values: impl Iterator<Item = f32>) -> Option<Self> {
        let mut values: Vec<f32> = values.filter(|value| *value != 0.0).take(MOST).collect();
        values.sort_by(f32::total_cmp);
        values.dedup();
        if values.len() < LEAST {
            return None;
        }
        let all = |is_on: &dyn Fn(f32) -> bool| values.iter().all(|&value| is_on(value));
        let least = || values.iter().map(|value| f64::from(value.abs())).fold(f64::INFINITY, f64::min);
        if all(&|value| value.to_bits() & 0xffff == 0) {
            return Some(Self::Bf16(least()));
        }
        if all(&|value| half::f16::from_f32(value).to_f32() == value) {
            return Some(Self::F16(least()));
        }
        let decimals = (1..=4).find(|&digits| all(&|value| has_decimals(value, digits)))?;
        Some(Self::Decimals(decimals))
    }

    /// Returns the error of rounding to the grid.
    pub(crate) fn error(self) -> StorageError {
        match self {
            Self::Decimals(digits) => {
                StorageError { absolute: 0.29 * 10f64.powi(-(digits as i32)), relative: 0.0 }
            }
            Self::Bf16(least) => StorageError { absolute: absolute(least), relative: 2f64.powi(-9) },
            Self::F16(least) => StorageError { absolute: absolute(least), relative: 2f64.powi(-12) },
        }
    }

    /// Returns the name of the grid for messages.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Decimals(1) => "1 decimal".to_owned(),
            Self::Decimals(digits) => format!("{digits} decimals"),
            Self::Bf16(_) => "bf16".to_owned(),
            Self::F16(_) => "f16".to_owned(),
        }
    }
}

/// Returns the absolute error of a difference z - lse that is computed in a short type. Its smallest possible
/// nonzero result is one step of the smaller operand.
fn absolute(least: f64) -> f64 {
    if least > 1e-4 { 2.0 * least } else { 0.0 }
}

fn has_decimals(value: f32, digits: u32) -> bool {
    let scaled = f64::from(value) * 10f64.powi(digits as i32);
    // An f32 is within half a step of the decimal number that it stands for.
    (scaled - scaled.round()).abs() <= scaled.abs() * 1e-7
}

/// Finds values of a shorter type than stated, or with few decimals.
pub(super) fn coarse(dtypes: &[Option<String>; 2], grids: [Option<NumberGrid>; 2]) -> Option<GapFinding> {
    for (side, grid) in grids.into_iter().enumerate() {
        let name = ["rollout", "trainer"][side];
        let stated = dtypes[side].as_deref().and_then(LogOddsScale::named);
        let Some(grid) = grid else { continue };
        let stored = match grid {
            NumberGrid::Decimals(digits) if digits <= 3 => 0.3 * 10f64.powi(-(digits as i32)),
            NumberGrid::Decimals(_) => continue,
            NumberGrid::Bf16(_) => LogOddsScale::named("bf16")?.largest,
            NumberGrid::F16(_) => LogOddsScale::named("f16")?.largest,
        };
        if stated.is_some_and(|stated| stored > 1.1 * stated.largest) {
            let text = format!(
                "coarse numbers: all log-probabilities of the {name} are numbers of {}, but the stated type is {}",
                grid.name(),
                dtypes[side].as_deref().unwrap_or_default()
            );
            return Some(match grid {
                NumberGrid::Decimals(_) => GapFinding::doubt("coarse-numbers", text),
                _ => GapFinding::fault("coarse-numbers", text),
            });
        }
    }
    None
}
