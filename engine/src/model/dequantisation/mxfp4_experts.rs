//! gpt-oss's experts in MXFP4: blocks of 32 numbers of 4 bits (E2M1), each with a power of two (E8M0) as its scale.
//!
//! Files store each expert as `[outputs, inputs]`: `_blocks` is `[experts, outputs, inputs / 32, 16]`, `_scales` is
//! `[experts, outputs, inputs / 32]`. The decoded parameter is `[experts, inputs, outputs]`, as in transformers.

use crate::error::Result;
use crate::model::dequantisation::float4::{self, e2m1};
use crate::model::dequantisation::module_tensors::ModuleTensors;
use crate::model::dequantisation::{WeightFormat, WeightMatrix, WeightReading};
use crate::weight::DType;

/// Bytes of a block.
const BYTES: usize = 16;

/// Values of a block.
const BLOCK: usize = 2 * BYTES;

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
        let packed = module.require("blocks", &[DType::U8])?;
        let &[experts, outputs, blocks, BYTES] = packed.shape.as_slice() else {
            let expected = format!("expected [experts, outputs, blocks, {BYTES}]");
            return Err(module.bad(format!("it has shape {:?}, {expected}", packed.shape)));
        };
        if packed.elements() == 0 {
            return Err(module.bad("it is empty; get the file again".to_owned()));
        }
        let exponents = module.shaped("scales", &[DType::U8], &[experts, outputs, blocks])?;
        let scales = float4::powers(module, "scales", exponents)?;
        let (codes, inputs): (&[u8], _) = (&packed.data, blocks * BLOCK);
        let value = move |row: usize, output: usize| {
            let at = (row / inputs * outputs + output) * inputs + row % inputs;
            e2m1(codes, reading.index(at)) * scales[at / BLOCK]
        };
        let matrix = WeightMatrix::new(DType::BF16, [experts * inputs, outputs], value);
        Ok(WeightMatrix { experts: Some(experts), ..matrix })
    }
}
