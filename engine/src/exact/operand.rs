//! Activations as they meet weights.

use crate::exact::float::Float;
use crate::exact::input::Input;
use crate::exact::profile::{Operands, Profile};
use crate::exact::value::{Exact, U};
use crate::quant::{self, known, quantise_row};
use crate::weight::DType;

/// A row of activations, rounded as its product asks for.
#[derive(Debug)]
pub(super) struct Operand {
    pub(super) row: Input,
    /// By how much the sums of blocks of 32 differ from those of their values, where a format stores them.
    pub(super) surplus: Option<Vec<f64>>,
    /// Whether the row is made of codes, which are multiplied and added as integers within a block.
    pub(super) is_coded: bool,
}

/// What activations that meet weights of a type are rounded to.
pub(super) fn operand_type(profile: &Profile, weights: DType) -> DType {
    match profile.operands {
        Operands::Ggml | Operands::GgmlButF16 => match quant::activation_type(weights) {
            DType::F16 if profile.operands == Operands::GgmlButF16 => DType::F32,
            dtype => dtype,
        },
        _ => DType::F32,
    }
}

/// What both sides of a product are rounded to by the engine's units.
pub(super) fn unit_of_products(profile: &Profile) -> Float {
    match profile.operands {
        Operands::F16 => Float::F16,
        Operands::Bf16 => Float::Bf16,
        operands => operands.tf32().unwrap_or(Float::F32),
    }
}

impl Operand {
    pub(super) fn new(row: Input, profile: &Profile, weights: DType) -> Self {
        let dtype = operand_type(profile, weights);
        if let Some(float) = Float::of(dtype) {
            let unit = if float == Float::F32 { unit_of_products(profile) } else { float };
            let row = if unit == Float::F32 { row } else { row.map(|x| x.rounded(unit)) };
            return Self { row, surplus: None, is_coded: false };
        }
        Self::coded(&row, dtype)
    }

    fn coded(row: &Input, dtype: DType) -> Self {
        let values: Vec<f32> = row.values.iter().map(|&x| x as f32).collect();
        let mut bytes = vec![0; dtype.bytes_for(values.len()).expect("a row is whole in blocks")];
        quantise_row(dtype, &values, &mut bytes);
        let known = known(dtype, &bytes).expect("what has no floats has codes");
        let block = dtype.block_len();
        let coded = Input::new(
            (0..row.len()).map(|at| code(row, at, block, known.values[at], known.steps[at], dtype)),
        );
        let surplus = known.sums.map(|sums| {
            let of_block = known.values.chunks(32).map(|values| values.iter().sum::<f64>());
            sums.iter().zip(of_block).map(|(sum, values)| sum - values).collect()
        });
        Self { row: coded, surplus, is_coded: true }
    }
}

/// One code. Where builds compute the same step in another order, or the value is not known, it may be either of two.
fn code(row: &Input, at: usize, block: usize, value: f64, step: f64, dtype: DType) -> Exact {
    let x = row.get(at);
    let block = at / block * block..(at / block + 1) * block;
    let largest = row.values[block.clone()].iter().fold(0.0f64, |most, x| most.max(x.abs()));
    if largest == 0.0 || step == 0.0 {
        return Exact::bounded(value, x.radius);
    }
    let scaled = x.value.abs() / largest * 127.0;
    let unsure =
        row.doubt.as_ref().map_or(0.0, |doubt| doubt.radius[block].iter().copied().fold(0.0, f64::max));
    let slack = scaled * (4.0 * U + unsure / largest) + x.radius / largest * 127.0;
    let (low, high) = ((scaled - slack).round_ties_even(), (scaled + slack).round_ties_even());
    // A step that is stored in f16 rounds to one number or to the next.
    let step_is_unsure = if dtype == DType::Q8_K { unsure / largest } else { f16_step(largest, unsure) };
    let about = value.abs() * step_is_unsure;
    match low == high {
        true => Exact::bounded(value, about),
        false => {
            let middle = (low + high) / 2.0 * step * x.value.signum();
            Exact::bounded(middle, (high - low) / 2.0 * step + about)
        }
    }
}

/// The relative error of a block's step, rounded to `f16` from a largest value that is unsure.
fn f16_step(largest: f64, unsure: f64) -> f64 {
    let step = |largest: f64| Float::F16.round(largest / 127.0);
    let (low, high) = (step(largest - unsure), step(largest + unsure));
    if high > 0.0 { (high - low) / high } else { 0.0 }
}
