//! Exact `f64` values of stored rows. Exact evaluation uses them as operands of products.

use super::block::blocks;
use super::grid_block::{GridBlock, ShiftedGridBlock};
use super::k_quants::{KQuantBlock, KQuantBlockWithMins};
use super::q_asymmetric::AsymmetricBlock;
use super::q_symmetric::SymmetricBlock;
use super::{
    iq1_m, iq1_s, iq4_nl, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0, q8_1, q8_k, tq1_0,
    tq2_0,
};
use crate::weight::DType;

/// A row of quantised activations, decoded exactly.
#[derive(Clone, Debug)]
pub struct ActivationRow {
    /// Exact values.
    pub(crate) values: Vec<f64>,
    /// For each value, its change if its code increases by one.
    pub(crate) steps: Vec<f64>,
    /// Stored sums of blocks of 32 values, if the type has them; each was rounded separately.
    pub(crate) sums: Option<Vec<f64>>,
}

/// Returns the exact values of a row of quantised activations, or of a quantised cache; `None` for a type without codes.
///
/// # Panics
/// If the row is not a whole number of blocks.
pub fn known(dtype: DType, row: &[u8]) -> Option<ActivationRow> {
    let (mut values, mut steps) = (Vec::new(), Vec::new());
    let mut add = |scale: f32, codes: &[i8]| {
        let scale = f64::from(scale);
        values.extend(codes.iter().map(|&code| scale * f64::from(code)));
        steps.extend(codes.iter().map(|_| scale.abs()));
    };
    let mut sums = None;
    match dtype {
        DType::Q8_0 => blocks::<q8_0::BlockQ8_0>(row).iter().for_each(|b| add(b.scale(), &b.codes)),
        DType::Q4_0 => blocks::<q4_0::BlockQ4_0>(row).iter().for_each(|b| add(b.scale(), &b.codes())),
        DType::Q5_0 => blocks::<q5_0::BlockQ5_0>(row).iter().for_each(|b| add(b.scale(), &b.codes())),
        DType::IQ4_NL => blocks::<iq4_nl::BlockIq4Nl>(row).iter().for_each(|b| add(b.scale(), &b.codes())),
        DType::Q4_1 => return Some(of_offset_codes::<q4_1::BlockQ4_1>(row)),
        DType::Q5_1 => return Some(of_offset_codes::<q5_1::BlockQ5_1>(row)),
        DType::Q8_1 => {
            blocks::<q8_1::BlockQ8_1>(row).iter().for_each(|b| add(b.scale(), &b.codes));
            sums = Some(blocks::<q8_1::BlockQ8_1>(row).iter().map(|block| block.sum().into()).collect());
        }
        DType::Q8_K => blocks::<q8_k::BlockQ8K>(row).iter().for_each(|b| add(b.scale(), &b.codes)),
        _ => return None,
    }
    Some(ActivationRow { values, steps, sums })
}

/// Returns the codes of a row of a quantised cache; `None` for types other than [`CACHES`](super::CACHES).
///
/// # Panics
/// If the row is not a whole number of blocks.
pub fn cache_codes(dtype: DType, row: &[u8]) -> Option<Vec<i8>> {
    match dtype {
        DType::Q8_0 => Some(symmetric_codes::<q8_0::BlockQ8_0>(row)),
        DType::Q5_0 => Some(symmetric_codes::<q5_0::BlockQ5_0>(row)),
        DType::Q4_0 => Some(symmetric_codes::<q4_0::BlockQ4_0>(row)),
        DType::IQ4_NL => Some(symmetric_codes::<iq4_nl::BlockIq4Nl>(row)),
        DType::Q4_1 => Some(asymmetric_codes::<q4_1::BlockQ4_1>(row)),
        DType::Q5_1 => Some(asymmetric_codes::<q5_1::BlockQ5_1>(row)),
        _ => None,
    }
}

fn asymmetric_codes<B: AsymmetricBlock>(row: &[u8]) -> Vec<i8> {
    blocks::<B>(row).iter().flat_map(|block| block.codes().map(|code| code as i8)).collect()
}

/// Returns the values of a cache whose blocks have a minimum.
fn of_offset_codes<B: AsymmetricBlock>(row: &[u8]) -> ActivationRow {
    let (mut values, mut steps) = (Vec::new(), Vec::new());
    for block in blocks::<B>(row) {
        let mut decoded = [0.0f32; 32];
        block.decode(&mut decoded);
        values.extend(decoded.map(f64::from));
        steps.extend([f64::from(block.scale().abs()); 32]);
    }
    ActivationRow { values, steps, sums: None }
}

fn symmetric_codes<B: SymmetricBlock>(row: &[u8]) -> Vec<i8> {
    blocks::<B>(row).iter().flat_map(SymmetricBlock::codes).collect()
}

/// Returns a row of weights as products use it: codes times their scale, and the number that is added to each value
/// (a minimum, or the codes' offset). Kernels may multiply that number with the activations in a separate sum.
/// `None` for a type in which nothing is added.
///
/// # Panics
/// If the row is not a whole number of blocks.
pub fn parts(dtype: DType, row: &[u8]) -> Option<[Vec<f64>; 2]> {
    match dtype {
        DType::Q4_1 => Some(of_affine::<q4_1::BlockQ4_1>(row)),
        DType::Q5_1 => Some(of_affine::<q5_1::BlockQ5_1>(row)),
        DType::Q2_K => Some(with_mins::<q2_k::BlockQ2K>(row)),
        DType::Q4_K => Some(with_mins::<q4_k::BlockQ4K>(row)),
        DType::Q5_K => Some(with_mins::<q5_k::BlockQ5K>(row)),
        DType::Q3_K => Some(with_offset::<q3_k::BlockQ3K>(row)),
        DType::Q6_K => Some(with_offset::<q6_k::BlockQ6K>(row)),
        DType::TQ1_0 => Some(with_offset::<tq1_0::BlockTq1_0>(row)),
        DType::TQ2_0 => Some(with_offset::<tq2_0::BlockTq2_0>(row)),
        DType::IQ1_S => Some(with_shifts::<iq1_s::BlockIq1S>(row)),
        DType::IQ1_M => Some(with_shifts::<iq1_m::BlockIq1M>(row)),
        _ => None,
    }
}

fn of_affine<B: AsymmetricBlock>(row: &[u8]) -> [Vec<f64>; 2] {
    let codes = |block: &B| block.codes().map(|code| f64::from(block.scale()) * f64::from(code));
    let minima = |block: &B| [f64::from(block.min()); 32];
    [blocks::<B>(row).iter().flat_map(codes).collect(), blocks::<B>(row).iter().flat_map(minima).collect()]
}

fn with_mins<B: KQuantBlockWithMins>(row: &[u8]) -> [Vec<f64>; 2] {
    let minima = |block: &B| {
        let scale = f64::from(block.min_scale());
        block.mins().map(|min| -scale * f64::from(min))
    };
    let minima = blocks::<B>(row).iter().flat_map(minima);
    [codes::<B>(row), minima.flat_map(|min| [min; 16]).collect()]
}

fn with_offset<B: KQuantBlock>(row: &[u8]) -> [Vec<f64>; 2] {
    let offsets = |block: &B| {
        let scale = f64::from(block.scale()) * f64::from(B::OFFSET);
        block.scales().map(|of_group| -scale * f64::from(of_group))
    };
    let offsets = blocks::<B>(row).iter().flat_map(offsets);
    [codes::<B>(row), offsets.flat_map(|offset| [offset; 16]).collect()]
}

fn with_shifts<B: ShiftedGridBlock>(row: &[u8]) -> [Vec<f64>; 2] {
    let factor = f64::from(<B as GridBlock>::FACTOR);
    [(1.0, B::entries as fn(&B, usize) -> [i8; 32]), (factor, B::shift_row)].map(|(factor, codes)| {
        let of_block = |block: &B| {
            let (scale, scales) = (factor * f64::from(block.scale()), block.group_scales());
            let scaled = |(at, code)| scale * f64::from(scales[at / 16]) * f64::from(code);
            let codes = (0..8).flat_map(|row| codes(block, row)).enumerate();
            codes.map(scaled).collect::<Vec<_>>()
        };
        blocks::<B>(row).iter().flat_map(of_block).collect()
    })
}

fn codes<B: KQuantBlock>(row: &[u8]) -> Vec<f64> {
    let of_block = |block: &B| {
        let (scale, scales, codes) = (f64::from(block.scale() * B::FACTOR), block.scales(), block.codes());
        std::array::from_fn::<f64, 256, _>(|at| scale * f64::from(scales[at / 16]) * f64::from(codes[at]))
    };
    blocks::<B>(row).iter().flat_map(of_block).collect()
}
