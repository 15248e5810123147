//! Exact evaluation of the rows that the KV cache stores.

use crate::exact::input::InputTensor;
use crate::exact::operand::{CodeRange, Operand, integers};
use crate::exact::operation::{by_row, rows_around};
use crate::exact::{ExactValue, Float, Operation, Profile};
use crate::numerics::CACHE_CODES;
use crate::ops::cache::{cache_input, scaled_codes};
use crate::ops::linear::exact::short_type;
use crate::quant::ScaleType;
use crate::tensor::Tensor;
use crate::weight::DType;

/// New key or value rows, rounded to the cache's type.
pub(crate) struct CachedRows {
    /// The new rows.
    pub(crate) x: Tensor,
    /// Type of the cache, to which the rows are rounded.
    pub(crate) cache: Float,
}

impl Operation for CachedRows {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        InputTensor::of_part(&self.x, profile, rows_around(wanted, 1)).each(wanted, |x| x)
    }

    fn results(&self, _: &Profile) -> Float {
        self.cache
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }
}

/// New key or value rows, quantised as an int8 cache or a cache of quantised blocks stores them.
pub(crate) struct CachedCodes {
    /// The new rows, `[T, Hkv, D]`.
    pub(crate) x: Tensor,
    pub(crate) cache: DType,
}

impl Operation for CachedCodes {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let x = InputTensor::of(&self.x, profile);
        let width = match self.cache {
            DType::I8 => self.x.shape()[2],
            _ => self.x.row_len(),
        };
        let of_head = |flats: &[usize]| {
            let head = x.part(flats[0] / width * width, width);
            let head = match self.cache {
                DType::I8 => integers(&head, &CACHE_CODES, None),
                blocks => Operand::coded(&head, blocks).row,
            };
            flats.iter().map(|flat| head.get(flat % width)).collect::<Vec<_>>()
        };
        by_row(wanted, width).flat_map(of_head).collect()
    }

    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }
}

/// New key or value rows, as an FP8 cache stores them: codes times stored scales.
pub(crate) struct ScaledRows {
    /// The new rows, `[T, Hkv, D]`.
    pub(crate) x: Tensor,
    /// One scale, or one for each head.
    pub(crate) scales: Vec<f32>,
}

impl Operation for ScaledRows {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let (x, width) = (InputTensor::of(&self.x, profile), *self.x.shape().last().unwrap_or(&1));
        let short = short_type(profile.results).unwrap_or(ScaleType::F32);
        // Kernels round quotients and products to the type of the model, or not.
        let types = [ScaleType::F32, short]
            .map(|quotients| [ScaleType::F32, short].map(|values| (quotients, values)));
        let of_head = |flats: &[usize]| {
            let first = flats[0] / width;
            let head = x.part(first * width, width);
            let input = cache_input(&self.scales, first);
            let with = |&(quotients, values): &(ScaleType, ScaleType)| {
                integers(&head, &scaled_codes(quotients, values), Some(CodeRange::Stored(input)))
            };
            let all: Vec<_> = types.iter().flatten().map(with).collect();
            let any = |flat: &usize| all.iter().map(|row| row.get(flat % width)).reduce(ExactValue::or);
            flats.iter().map(|flat| any(flat).unwrap_or_default()).collect::<Vec<_>>()
        };
        by_row(wanted, width).flat_map(of_head).collect()
    }

    /// Cached values are codes times a scale, up to two roundings: of the scale, and of the product.
    fn excludes(&self, flat: usize, value: f64, step: f64) -> bool {
        const LARGEST: f64 = 448.0;
        let width = *self.x.shape().last().unwrap_or(&1);
        let scale = f64::from(cache_input(&self.scales, flat / width).number);
        let code = Float::E4m3.round((value / scale).clamp(-LARGEST, LARGEST));
        !((value - code * scale).abs() <= 2.0 * step)
    }

    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }
}
