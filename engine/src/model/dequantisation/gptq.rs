//! GPTQ, as AutoGPTQ and GPTQModel write it: words of codes along the inputs, a zero point and a scale for each group
//! of inputs, and `g_idx`, the group of each input.

use crate::error::Result;
use crate::model::dequantisation::codes::{PackedCodes, words_for};
use crate::model::dequantisation::module_tensors::{FLOATS, ModuleTensors};
use crate::model::dequantisation::weight_matrix::round_to;
use crate::model::dequantisation::{WeightFormat, WeightMatrix, WeightReading};
use crate::weight::{DType, StoredTensor};

/// GPTQ with 2, 3, 4 or 8 bits.
#[derive(Clone, Copy)]
pub(super) struct Gptq {
    /// Number of bits of a code.
    pub(crate) bits: usize,
    /// Number of inputs that share a scale; `None` for all.
    pub(crate) group: Option<usize>,
    /// True for `checkpoint_format` "gptq", which stores each zero point minus one.
    pub(crate) is_v1: bool,
    /// True if inputs are assigned to groups by `g_idx`, which must exist.
    pub(crate) by_activation: bool,
    /// Type that scales are rounded to before they are used.
    pub(crate) scales: Option<DType>,
}

impl WeightFormat for Gptq {
    fn tensors(&self) -> &'static [&'static str] {
        &["qweight", "qzeros", "scales", "g_idx"]
    }

    fn readings(&self) -> &'static [WeightReading] {
        &[WeightReading::ZeroAbove, WeightReading::ZeroBelow, WeightReading::WithoutIndices]
    }

    fn weight<'f>(&self, module: &ModuleTensors<'f>, reading: WeightReading) -> Result<WeightMatrix<'f>> {
        let bits = self.bits;
        let (codes, [words, rows]) = module.matrix("qweight", &[DType::I32])?;
        let cols = words.saturating_mul(32) / bits;
        if words_for(cols, bits) != Some(words) {
            return Err(
                module.bad(format!("it has {words} words for each output, expected a multiple of {bits}"))
            );
        }
        let groups = cols.div_ceil(self.group.unwrap_or(cols));
        let width = words_for(rows, bits).unwrap_or(0);
        let zeros = self.zeros(module.shaped("qzeros", &[DType::I32], &[groups, width])?, groups, rows);
        let mut scales = module.numbers("scales", FLOATS, &[groups, rows])?;
        if let Some(dtype) = self.scales {
            scales.iter_mut().for_each(|scale| *scale = round_to(dtype, *scale));
        }
        let group_of = self.groups(module, cols, groups, reading)?;
        let codes = PackedCodes::along_columns(&codes.data, rows, bits);
        let value = move |row: usize, col: usize| {
            let at = group_of[col] * rows + row;
            (codes.get(row, col) as f32 - f32::from(zeros[at]) - reading.zero()) * scales[at]
        };
        Ok(WeightMatrix::new(DType::F32, [rows, cols], value))
    }
}

impl Gptq {
    /// Returns the zero point of every group and output.
    ///
    /// Version 1 stores each zero point minus one. The programs that write it subtract 1 in all codes of a word with
    /// one subtraction, and add 1 in the same way. A borrow from one code to the next is therefore undone by the
    /// addition. Codes of 3 bits are changed one by one.
    fn zeros(&self, stored: &StoredTensor, groups: usize, rows: usize) -> Vec<u16> {
        let (bits, width) = (self.bits, stored.shape[1]);
        let mask = (1u32 << bits) - 1;
        let ones = (0..32 / bits).fold(0u32, |ones, code| ones | 1 << (code * bits));
        let adds_words = self.is_v1 && 32 % bits == 0;
        let mut data = stored.data.to_vec();
        if adds_words {
            let (words, _) = data.as_chunks_mut::<4>();
            words
                .iter_mut()
                .for_each(|word| *word = u32::from_le_bytes(*word).wrapping_add(ones).to_le_bytes());
        }
        let codes = PackedCodes::along_rows(&data, width, bits);
        let more = u32::from(self.is_v1 && !adds_words);
        let all = (0..groups).flat_map(|group| (0..rows).map(move |row| (group, row)));
        all.map(|(group, row)| (codes.get(group, row).wrapping_add(more) & mask) as u16).collect()
    }

    /// Returns the index of the quantisation group of every input.
    fn groups(
        &self,
        module: &ModuleTensors,
        cols: usize,
        groups: usize,
        reading: WeightReading,
    ) -> Result<Vec<usize>> {
        let size = self.group.unwrap_or(cols);
        let is_absent = !self.by_activation && module.get("g_idx").is_none();
        if is_absent || reading == WeightReading::WithoutIndices {
            return Ok((0..cols).map(|col| col / size).collect());
        }
        group_indices(module, "g_idx", cols, groups)
    }
}

/// Returns the group of every input from a tensor of indices.
pub(super) fn group_indices(
    module: &ModuleTensors,
    tensor: &str,
    cols: usize,
    groups: usize,
) -> Result<Vec<usize>> {
    let stored = module.shaped(tensor, &[DType::I32], &[cols])?;
    let index = |bytes: &[u8; 4]| {
        let index = i32::from_le_bytes(*bytes);
        usize::try_from(index).ok().filter(|index| *index < groups).ok_or_else(|| {
            let name = module.name(tensor);
            module.bad(format!("'{name}' contains {index}, expected a group from 0 to {}", groups - 1))
        })
    };
    stored.data.as_chunks::<4>().0.iter().map(index).collect()
}
