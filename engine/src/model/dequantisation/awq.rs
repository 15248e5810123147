//! AWQ, as AutoAWQ writes it for its GEMM kernels: words of eight 4-bit codes along the outputs, in an interleaved
//! order; a zero point and a scale for each group of inputs.

use crate::error::Result;
use crate::model::dequantisation::codes::word_at;
use crate::model::dequantisation::module_tensors::{FLOATS, ModuleTensors};
use crate::model::dequantisation::weight_matrix::round_to;
use crate::model::dequantisation::{WeightFormat, WeightMatrix, WeightReading};
use crate::weight::DType;

/// Codes in a word.
const CODES: usize = 8;

/// Position in its word of each of eight neighbouring outputs.
const ORDER: [u32; CODES] = [0, 4, 1, 5, 2, 6, 3, 7];

/// AWQ format with 4-bit codes, in the layout of AutoAWQ's GEMM kernels.
pub(super) struct Awq {
    /// Number of inputs that share a scale; `None` for all.
    pub(crate) group: Option<usize>,
    /// Type that scales are rounded to before they are used.
    pub(crate) scales: Option<DType>,
}

impl WeightFormat for Awq {
    fn tensors(&self) -> &'static [&'static str] {
        &["qweight", "qzeros", "scales"]
    }

    fn readings(&self) -> &'static [WeightReading] {
        &[WeightReading::ZeroAbove, WeightReading::ZeroBelow, WeightReading::OtherOrder]
    }

    fn weight<'f>(&self, module: &ModuleTensors<'f>, reading: WeightReading) -> Result<WeightMatrix<'f>> {
        let (codes, [cols, words]) = module.matrix("qweight", &[DType::I32])?;
        let group = self.group.unwrap_or(cols);
        let groups = cols.div_ceil(group);
        let rows = words.saturating_mul(CODES);
        let zeros = module.shaped("qzeros", &[DType::I32], &[groups, words])?;
        let mut scales = module.numbers("scales", FLOATS, &[groups, rows])?;
        if let Some(dtype) = self.scales {
            scales.iter_mut().for_each(|scale| *scale = round_to(dtype, *scale));
        }
        let (codes, zeros): (&[u8], &[u8]) = (&codes.data, &zeros.data);
        let order = if reading == WeightReading::OtherOrder { [0, 1, 2, 3, 4, 5, 6, 7] } else { ORDER };
        let code = move |bytes: &[u8], line: usize, row: usize| {
            word_at(bytes, line * words + row / CODES) >> (4 * order[row % CODES]) & 15
        };
        let value = move |row: usize, col: usize| {
            let group = col / group;
            let code = code(codes, col, row) as f32 - code(zeros, group, row) as f32 - reading.zero();
            code * scales[group * rows + row]
        };
        Ok(WeightMatrix::new(DType::F32, [rows, cols], value))
    }
}
