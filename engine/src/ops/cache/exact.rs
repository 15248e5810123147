//! Exact evaluation of the rows that the KV cache stores.

use crate::exact::input::InputTensor;
use crate::exact::operand::{Operand, integers};
use crate::exact::operation::by_row;
use crate::exact::{ExactValue, Float, Operation, Profile};
use crate::numerics::CACHE_CODES;
use crate::tensor::Tensor;
use crate::weight::DType;

/// New key or value rows, rounded to the cache's type.
pub(crate) struct CachedRows {
    /// The new rows.
    pub(crate) x: Tensor,
    /// Type that they are rounded to.
    pub(crate) cache: Float,
}

impl Operation for CachedRows {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        InputTensor::of(&self.x, profile).each(wanted, |x| x)
    }

    fn results(&self, _: &Profile) -> Float {
        self.cache
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }
}

/// New key or value rows, quantised to an int8 cache or a cache of blocks.
pub(crate) struct CachedCodes {
    /// The new rows, `[T, Hkv, D]`.
    pub(crate) x: Tensor,
    pub(crate) cache: DType,
}

impl Operation for CachedCodes {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let (x, width) = (InputTensor::of(&self.x, profile), self.x.row_len());
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
