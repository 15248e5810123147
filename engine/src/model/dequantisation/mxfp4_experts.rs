//! gpt-oss's experts in MXFP4: numbers of 4 bits in groups of 32 inputs, each group with a power of two as its scale.
//!
//! Files have the outputs of an expert as rows: `_blocks` is `[experts, outputs, groups, 16]`, `_scales` is
//! `[experts, outputs, groups]`. The decoded parameter is `[experts, inputs, outputs]`, as in transformers.

use crate::error::Result;
use crate::model::dequantisation::float4::{self, e2m1};
use crate::model::dequantisation::module_tensors::ModuleTensors;
use crate::model::dequantisation::{WeightFormat, WeightMatrix, WeightReading};
use crate::weight::DType;

/// Bytes of a group.
const BYTES: usize = 16;

/// Inputs of a group.
const GROUP: usize = 2 * BYTES;

/// Experts' matrices in MXFP4.
pub(super) struct Mxfp4Experts;

impl WeightFormat for Mxfp4Experts {
    fn tensors(&self) -> &'static [&'static str] {
        &["blocks", "scales"]
    }

    fn joint(&self) -> char {
        '_'
    }

    fn has_few_bits(&self) -> bool {
        true
    }

    fn readings(&self) -> &'static [WeightReading] {
        &[WeightReading::OtherOrder]
    }

    fn weight<'f>(&self, module: &ModuleTensors<'f>, reading: WeightReading) -> Result<WeightMatrix<'f>> {
        let blocks = module.require("blocks", &[DType::U8])?;
        let &[experts, outputs, groups, BYTES] = blocks.shape.as_slice() else {
            let expected = format!("expected [experts, outputs, groups, {BYTES}]");
            return Err(module.bad(format!("it has shape {:?}, {expected}", blocks.shape)));
        };
        if blocks.elements() == 0 {
            return Err(module.bad("it is empty; get the file again".to_owned()));
        }
        let stored = module.shaped("scales", &[DType::U8], &[experts, outputs, groups])?;
        let scales = float4::powers(module, "scales", stored)?;
        let (codes, inputs): (&[u8], _) = (&blocks.data, groups * GROUP);
        let value = move |row: usize, output: usize| {
            let at = (row / inputs * outputs + output) * inputs + row % inputs;
            e2m1(codes, reading.index(at)) * scales[at / GROUP]
        };
        let (rows, experts) = (experts * inputs, Some(experts));
        Ok(WeightMatrix { dtype: DType::BF16, rows, cols: outputs, experts, value: Box::new(value) })
    }
}
