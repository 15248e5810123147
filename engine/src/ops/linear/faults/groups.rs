//! Faults in the scales and zero points of a quantised weight's groups: a zero point that is off by one, and scales
//! of another group.
//!
//! GGUF's blocks store their scale. Weights of quantised Hugging Face checkpoints are decoded to plain numbers, so their
//! groups and scales are read from the numbers (`GroupSteps`).

use half::f16;

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, LinearParameters, SiteContext};
use crate::numerics::Numerics;
use crate::ops::linear::faults::block_scales::with_transposed_scales;
use crate::ops::linear::faults::group_steps::{GroupSteps, is_plain, with_numbers};
use crate::ops::linear::faults::{PRODUCTS, own, with};
use crate::quant::decode_matrix_row;
use crate::weight::{DType, Matrix, StoredTensor};

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::WeightGroups,
    at: PRODUCTS,
    takes: "zero+1|zero-1|next|previous|first|next-in-row|row-before|row-after|inverted|transposed",
    compute: |at, value| {
        let product = own(at)?;
        let w = changed(at, &product.w, value.as_word()?)?;
        with(at, &LinearParameters { w, ..product })
    },
    usual: Some(|at| match own(at).map(|product| product.w) {
        Some(w) if has_scales(w.dtype) || GroupSteps::has(&w) => WORDS.map(ChangeValue::word).into(),
        Some(w) if is_plain(w.dtype) => vec![ChangeValue::word("transposed")],
        _ => Vec::new(),
    }),
    ..CatalogueEntry::PLAIN
}];

const WORDS: [&str; 9] =
    ["zero+1", "zero-1", "next", "previous", "first", "next-in-row", "row-before", "row-after", "inverted"];

/// Returns true if a block of the type begins with an `f16` scale, which multiplies its integer codes.
fn has_scales(dtype: DType) -> bool {
    matches!(dtype, DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0)
}

/// Returns the group whose scale a group wrongly gets. A group at the end of the matrix keeps its own scale.
fn other_group(word: &str, group: usize, groups: usize, all: usize) -> Option<usize> {
    let first = group / groups * groups;
    Some(match word {
        "next" => (group + 1).min(all - 1),
        "previous" => group.saturating_sub(1),
        "first" => first,
        // The last group of a row gets the first scale.
        "next-in-row" => first + (group + 1 - first) % groups,
        "row-before" => group.checked_sub(groups).unwrap_or(group),
        "row-after" if group + groups < all => group + groups,
        "row-after" => group,
        _ => return None,
    })
}

fn changed(at: &SiteContext, w: &Matrix, word: &str) -> Option<Matrix> {
    if !has_scales(w.dtype) {
        return changed_numbers(w, word);
    }
    let groups = w.cols / w.dtype.block_len();
    let all = w.rows * groups;
    let off_by = |by: i8| match at.n.native_types().contains(&w.dtype) {
        true => with_codes_off(w, by),
        false => decoded_off(w, by.into()),
    };
    match word {
        "zero+1" => off_by(-1),
        "zero-1" => off_by(1),
        "inverted" => with_scales(w, |scale, _| f16::from_f32(scale.to_f32().recip())),
        _ => {
            other_group(word, 0, groups, all)?;
            with_scales_of(w, |group| other_group(word, group, groups, all).unwrap_or(group))
        }
    }
}

/// Changes a matrix of plain numbers that were decoded from codes and scales of groups or blocks.
fn changed_numbers(w: &Matrix, word: &str) -> Option<Matrix> {
    if word == "transposed" {
        return with_transposed_scales(w);
    }
    let steps = GroupSteps::of(w)?;
    let (groups, all) = (steps.groups(), steps.scales.len());
    other_group(word, 0, groups, all).or(["zero+1", "zero-1", "inverted"].contains(&word).then_some(0))?;
    with_numbers(w, |value, row, col| {
        let group = steps.group(row, col);
        let scale = steps.scales[group];
        match word {
            "zero+1" => value - scale,
            "zero-1" => value + scale,
            // A group of zeros has no scale.
            _ if scale == 0.0 => value,
            "inverted" => value / scale / scale,
            _ => {
                let other = other_group(word, group, groups, all).unwrap_or(group);
                value / scale * steps.scales[other]
            }
        }
    })
}

/// Replaces the scale of each group. `scale` gets the group's own scale and its index.
fn with_scales(w: &Matrix, scale: impl Fn(f16, usize) -> f16) -> Option<Matrix> {
    let mut data = w.row_range(0..w.rows).to_vec();
    for (group, block) in data.chunks_mut(w.dtype.block_bytes()).enumerate() {
        let scale = scale(f16::from_le_bytes([block[0], block[1]]), group);
        block[..2].copy_from_slice(&scale.to_le_bytes());
    }
    w.with_elements(data)
}

/// Gives each group the scale of another group.
fn with_scales_of(w: &Matrix, other: impl Fn(usize) -> usize) -> Option<Matrix> {
    let (bytes, size) = (w.row_range(0..w.rows), w.dtype.block_bytes());
    with_scales(w, |_, group| {
        let at = other(group) * size;
        f16::from_le_bytes([bytes[at], bytes[at + 1]])
    })
}

/// Decodes the weights and adds a multiple of each group's scale to the group's weights.
fn decoded_off(w: &Matrix, by: f32) -> Option<Matrix> {
    let (size, len) = (w.dtype.block_bytes(), w.dtype.block_len());
    let mut data = Vec::with_capacity(4 * w.rows * w.cols);
    let mut row = vec![0.0f32; w.cols];
    for index in 0..w.rows {
        decode_matrix_row(w, index, &mut row);
        for (values, block) in row.chunks(len).zip(w.row(index).chunks(size)) {
            let off = by * f16::from_le_bytes([block[0], block[1]]).to_f32() * w.scale();
            values.iter().for_each(|value| data.extend((value + off).to_le_bytes()));
        }
    }
    let stored = StoredTensor { dtype: DType::F32, shape: vec![w.rows, w.cols], data: data.into() };
    Some(Matrix::from_stored(&stored)?.with_activations_of(w))
}

/// Adds a number to each code and stores the codes in a type that products can read. Codes of 4 bits need a type
/// with 5 bits. `None` if a code would overflow, or if the type stores a minimum in place of a zero point.
fn with_codes_off(w: &Matrix, by: i8) -> Option<Matrix> {
    let bytes = w.row_range(0..w.rows);
    let blocks = bytes.chunks(w.dtype.block_bytes());
    let mut data = Vec::new();
    match w.dtype {
        DType::Q8_0 => {
            for block in blocks {
                data.extend(&block[..2]);
                for &code in &block[2..] {
                    data.push((code as i8).checked_add(by)? as u8);
                }
            }
            w.with_elements(data)
        }
        DType::Q4_0 => {
            blocks.for_each(|block| data.extend(of_five_bits(block, by)));
            let (dtype, shape) = (DType::Q5_0, vec![w.rows, w.cols]);
            let changed = Matrix::from_stored(&StoredTensor { dtype, shape, data: data.into() })?;
            Some(changed.with_activations_of(w).with_scale(w.scale()))
        }
        _ => None,
    }
}

/// Converts a block of Q4_0 to Q5_0, with a number added to each code.
fn of_five_bits(block: &[u8], by: i8) -> Vec<u8> {
    let (scale, nibbles) = block.split_at(2);
    let code = |value: usize| {
        let nibble = nibbles[value % 16] >> (value / 16 * 4) & 0x0F;
        (i16::from(nibble) + 8 + i16::from(by)) as u8
    };
    let high = (0..32).fold(0u32, |high, value| high | u32::from(code(value) >> 4) << value);
    let low = (0..16).map(|value| code(value) & 0x0F | (code(value + 16) & 0x0F) << 4);
    scale.iter().copied().chain(high.to_le_bytes()).chain(low).collect()
}
