//! bitsandbytes: `nf4` and `fp4` with one scale for each block of weights, and `int8` with one for each output.

use std::sync::Arc;

use serde::Deserialize;

use crate::error::Result;
use crate::model::dequantisation::module_tensors::{FLOATS, ModuleTensors};
use crate::model::dequantisation::weight_matrix::round_to;
use crate::model::dequantisation::{WeightFormat, WeightMatrix, WeightReading};
use crate::weight::DType;

/// Weights of 4 bits.
pub(super) struct FourBits {
    /// True for `nf4`, false for `fp4`.
    pub(crate) is_nf4: bool,
}

/// Settings of a weight, stored as JSON in a tensor.
#[derive(Deserialize)]
struct QuantState {
    shape: Vec<usize>,
    dtype: String,
    blocksize: usize,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

/// Values of the 16 codes, and the scale of each block.
struct BlockScales {
    codes: Vec<f32>,
    scales: Vec<f32>,
}

impl WeightFormat for FourBits {
    fn tensors(&self) -> &'static [&'static str] {
        match self.is_nf4 {
            true => &[
                "weight.quant_state.bitsandbytes__nf4",
                "weight",
                "weight.absmax",
                "weight.quant_map",
                "weight.nested_absmax",
                "weight.nested_quant_map",
            ],
            false => &[
                "weight.quant_state.bitsandbytes__fp4",
                "weight",
                "weight.absmax",
                "weight.quant_map",
                "weight.nested_absmax",
                "weight.nested_quant_map",
            ],
        }
    }

    fn has_few_bits(&self) -> bool {
        true
    }

    fn readings(&self) -> &'static [WeightReading] {
        &[WeightReading::OtherOrder]
    }

    fn weight<'f>(&self, module: &ModuleTensors<'f>, reading: WeightReading) -> Result<WeightMatrix<'f>> {
        let (state, dtype) = state(module)?;
        let &[rows, cols] = state.shape.as_slice() else {
            return Err(module.bad(format!("shape is {:?}, expected two sizes", state.shape)));
        };
        let types = [DType::U8, DType::I8, DType::F32, DType::F16, DType::BF16];
        let stored = module.require("weight", &types)?;
        let elements = rows.checked_mul(cols).filter(|&elements| elements > 0);
        if elements.map(|elements| elements.div_ceil(2)) != Some(stored.data.len()) || state.blocksize == 0 {
            let problem =
                format!("{} bytes of codes do not fit its shape {rows} x {cols}", stored.data.len());
            return Err(module.bad(problem));
        }
        let blocks = BlockScales::read(module, &state, (rows * cols).div_ceil(state.blocksize))?;
        let blocks = Arc::new(blocks);
        let (codes, block): (&[u8], usize) = (&stored.data, state.blocksize);
        // Both factors of an element: the value of its code, and the scale of its block.
        let factors = move |blocks: &BlockScales, row: usize, col: usize| {
            let at = row * cols + col;
            let code = codes[at / 2] >> (4 * (1 - reading.index(at) % 2)) & 15;
            (blocks.codes[usize::from(code)], blocks.scales[at / block])
        };
        let shared = blocks.clone();
        let value = move |row: usize, col: usize| {
            let (code, scale) = factors(&blocks, row, col);
            round_to(dtype, code * scale)
        };
        // The library's kernel for CPUs with AVX512-BF16 rounds both factors, and not their product.
        let of_kernels = move |row: usize, col: usize| {
            let (code, scale) = factors(&shared, row, col);
            round_to(DType::BF16, code) * round_to(DType::BF16, scale)
        };
        Ok(WeightMatrix::new(dtype, [rows, cols], value).with_kernels(Some(Box::new(of_kernels))))
    }
}

/// Returns the settings of a weight, and the type that the library decodes it to.
fn state(module: &ModuleTensors) -> Result<(QuantState, DType)> {
    let stored = module.require(module.main, &[DType::U8])?;
    let state: QuantState = serde_json::from_slice(&stored.data)
        .map_err(|error| module.bad(format!("its settings are not JSON of bitsandbytes ({error})")))?;
    let dtype = match state.dtype.as_str() {
        "float32" => DType::F32,
        "float16" => DType::F16,
        "bfloat16" => DType::BF16,
        other => {
            return Err(module.bad(format!("dtype is '{other}', expected float32, float16 or bfloat16")));
        }
    };
    Ok((state, dtype))
}

impl BlockScales {
    fn read(module: &ModuleTensors, state: &QuantState, blocks: usize) -> Result<Self> {
        let codes = module.numbers("weight.quant_map", &[DType::F32], &[16])?;
        let scales = match (state.nested_blocksize, state.nested_offset) {
            (None, None) => module.numbers("weight.absmax", FLOATS, &[blocks])?,
            (Some(size), Some(offset)) if size > 0 && offset.is_finite() => {
                let stored = module.shaped("weight.absmax", &[DType::U8], &[blocks])?;
                let map = module.numbers("weight.nested_quant_map", &[DType::F32], &[256])?;
                let outer = module.numbers("weight.nested_absmax", FLOATS, &[blocks.div_ceil(size)])?;
                let nested = |(at, &code): (usize, &u8)| map[usize::from(code)] * outer[at / size] + offset;
                stored.data.iter().enumerate().map(nested).collect()
            }
            _ => {
                return Err(module.bad("nested_blocksize and nested_offset contradict each other".to_owned()));
            }
        };
        Ok(Self { codes, scales })
    }
}

/// Weights of 8-bit integers.
pub(super) struct EightBits;

impl WeightFormat for EightBits {
    fn tensors(&self) -> &'static [&'static str] {
        &["SCB", "weight", "weight_format"]
    }

    fn readings(&self) -> &'static [WeightReading] {
        &[]
    }

    fn weight<'f>(&self, module: &ModuleTensors<'f>, _: WeightReading) -> Result<WeightMatrix<'f>> {
        let (codes, [rows, cols]) = module.matrix("weight", &[DType::I8])?;
        let largest = module.numbers("SCB", &[DType::F32], &[rows])?;
        if module.get("weight_format").is_some_and(|format| format.data.iter().any(|&byte| byte != 0)) {
            return Err(
                module.bad("weight_format is not 0 (row-major); save the checkpoint again".to_owned())
            );
        }
        let codes: &[u8] = &codes.data;
        let value = move |row: usize, col: usize| {
            f32::from(codes[row * cols + col] as i8) * largest[row] * EIGHT_BIT_STEP
        };
        Ok(WeightMatrix::new(DType::F32, [rows, cols], value))
    }
}

/// Inverse of the largest code, as the library rounds it.
const EIGHT_BIT_STEP: f32 = 1.0 / 127.0;
