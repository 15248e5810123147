//! What stored rows stand for, in `f64`: what products are made of, whatever order they are added up in.

use super::large::{Large, WithMins};
use super::stored::blocks;
use super::{affine::Affine, q2_k, q4_1, q4_k, q5_1, q5_k, q8_0, q8_1, q8_k};
use crate::weight::DType;

/// A row of activations, as a kernel reads it.
#[derive(Clone, Debug)]
pub struct Known {
    /// What each value stands for.
    pub values: Vec<f64>,
    /// What one code more would add to each value.
    pub steps: Vec<f64>,
    /// The sums of blocks of 32 values, where they are stored: rounded by themselves.
    pub sums: Option<Vec<f64>>,
}

/// What a row of quantised activations stands for; `None` for a type without codes.
///
/// # Panics
/// If the row is not whole.
pub fn known(dtype: DType, row: &[u8]) -> Option<Known> {
    let (mut values, mut steps) = (Vec::new(), Vec::new());
    let mut add = |scale: f32, codes: &[i8]| {
        let scale = f64::from(scale);
        values.extend(codes.iter().map(|&code| scale * f64::from(code)));
        steps.extend(codes.iter().map(|_| scale.abs()));
    };
    let mut sums = None;
    match dtype {
        DType::Q8_0 => blocks::<q8_0::Block>(row).iter().for_each(|b| add(b.scale.to_f32(), &b.codes)),
        DType::Q8_1 => {
            blocks::<q8_1::Block>(row).iter().for_each(|b| add(b.scale(), &b.codes));
            sums = Some(blocks::<q8_1::Block>(row).iter().map(|block| block.sum().into()).collect());
        }
        DType::Q8_K => blocks::<q8_k::Block>(row).iter().for_each(|b| add(b.scale(), &b.codes)),
        _ => return None,
    }
    Some(Known { values, steps, sums })
}

/// What is added to code times scale in each value of a row of weights; `None` for a type that has no such minimum.
///
/// # Panics
/// If the row is not whole.
pub fn minima(dtype: DType, row: &[u8]) -> Option<Vec<f64>> {
    match dtype {
        DType::Q4_1 => Some(of_affine::<q4_1::Block>(row)),
        DType::Q5_1 => Some(of_affine::<q5_1::Block>(row)),
        DType::Q2_K => Some(of_large::<q2_k::Block>(row)),
        DType::Q4_K => Some(of_large::<q4_k::Block>(row)),
        DType::Q5_K => Some(of_large::<q5_k::Block>(row)),
        _ => None,
    }
}

fn of_affine<B: Affine>(row: &[u8]) -> Vec<f64> {
    blocks::<B>(row).iter().flat_map(|block| [f64::from(block.min()); 32]).collect()
}

fn of_large<B: WithMins>(row: &[u8]) -> Vec<f64> {
    let of_block = |block: &B| {
        let scale = f64::from(block.min_scale());
        block.mins().map(|min| -scale * f64::from(min))
    };
    blocks::<B>(row).iter().flat_map(of_block).flat_map(|min| [min; 16]).collect()
}

/// The values of a row of weights in `f64`, without a minimum: codes times their scale.
///
/// # Panics
/// If the row is not whole.
pub fn scaled(dtype: DType, row: &[u8]) -> Option<Vec<f64>> {
    match dtype {
        DType::Q4_1 => Some(affine_codes::<q4_1::Block>(row)),
        DType::Q5_1 => Some(affine_codes::<q5_1::Block>(row)),
        DType::Q2_K => Some(large_codes::<q2_k::Block>(row)),
        DType::Q4_K => Some(large_codes::<q4_k::Block>(row)),
        DType::Q5_K => Some(large_codes::<q5_k::Block>(row)),
        _ => None,
    }
}

fn affine_codes<B: Affine>(row: &[u8]) -> Vec<f64> {
    let of_block = |block: &B| {
        let scale = f64::from(block.scale());
        block.codes().map(|code| scale * f64::from(code))
    };
    blocks::<B>(row).iter().flat_map(of_block).collect()
}

fn large_codes<B: Large>(row: &[u8]) -> Vec<f64> {
    let of_block = |block: &B| {
        let (scale, scales, codes) = (f64::from(block.scale()), block.scales(), block.codes());
        std::array::from_fn::<f64, 256, _>(|at| {
            scale * f64::from(scales[at / 16]) * f64::from(codes[at] - B::OFFSET)
        })
    };
    blocks::<B>(row).iter().flat_map(of_block).collect()
}
