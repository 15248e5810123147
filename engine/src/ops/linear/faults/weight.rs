//! Faults in decoding, rounding or multiplying the model's own matrices.

use bytes::Bytes;
use half::{bf16, f16};

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, LinearParameters, SiteContext};
use crate::exact::{Float, Operands, Profile};
use crate::numerics::{F32, KvType, LlamaCpp, Numerics, Transformers};
use crate::ops::linear::exact::Integers;
use crate::ops::linear::faults::group_steps::GroupSteps;
use crate::ops::linear::faults::{PRODUCTS, input, multiplied, own, with};
use crate::ops::scaling::Multiplier;
use crate::quant::ternary::{BLOCK, BLOCK_BYTES, is_ternary};
use crate::quant::{DECODABLE, activation_type, decode_matrix_row};
use crate::tensor::Tensor;
use crate::tracing::TracedNumerics;
use crate::weight::{DType, Factor, Matrix, StoredTensor};

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::WeightTransposed,
        is_local: true,
        at: PRODUCTS,
        compute: |at, _| {
            let product = own(at)?;
            let w = transposed(&product.w)?;
            with(at, &LinearParameters { w, ..product })
        },
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::WeightLayout,
        at: PRODUCTS,
        takes: "adjacent|groups-of-64|reversed|no-minimum|no-high-bits|words-reversed|neighbours",
        compute: |at, value| read_as(at, value.as_word()?),
        usual: Some(|_| {
            let words = [
                "adjacent",
                "groups-of-64",
                "reversed",
                "no-minimum",
                "no-high-bits",
                "words-reversed",
                "neighbours",
            ];
            words.map(ChangeValue::word).into()
        }),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::ActivationQuant,
        at: PRODUCTS,
        takes: "none|int8|f16|q8_0|q8_1|q8_k",
        own: |at| ChangeValue::word(rounded_to(at)),
        compute: |at, value| meeting(at, value.as_word()?),
        usual: Some(|at| {
            let ggml = own(at).filter(|product| DECODABLE.contains(&product.w.dtype));
            let ggml = ggml.map(|product| activation_type(product.w.dtype).name());
            ["none", "int8"].into_iter().chain(ggml).map(ChangeValue::word).collect()
        }),
        ..CatalogueEntry::PLAIN
    },
];

/// Reads the matrix as if the file stored it transposed.
fn transposed(w: &Matrix) -> Option<Matrix> {
    let stored = StoredTensor { dtype: w.dtype, shape: vec![w.cols, w.rows], data: elements(w).into() };
    let is_whole = w.group_len().is_none() && w.dtype.tail_bytes() == 0;
    let transposed = is_whole.then(|| Matrix::transposed(&stored))??;
    Some(transposed.with_activations_of(w).with_scale(w.scale()))
}

fn elements(w: &Matrix) -> Bytes {
    Bytes::copy_from_slice(w.row_range(0..w.rows))
}

/// Encodes a number in the file's type.
pub(crate) fn encoded(float: Float, x: f64) -> Vec<u8> {
    match float {
        Float::F16 => f16::from_f64(x).to_le_bytes().into(),
        Float::Bf16 => bf16::from_f64(x).to_le_bytes().into(),
        _ => (x as f32).to_le_bytes().into(),
    }
}

/// Offset of the minima in a block, and of the highest bits of its codes.
const MINIMA: &[(DType, usize, usize)] = &[
    (DType::Q4_1, 2, 4),
    (DType::Q5_1, 2, 4),
    (DType::Q2_K, 82, 84),
    (DType::Q4_K, 2, 4),
    (DType::Q5_K, 2, 4),
];
const HIGH_BITS: &[(DType, usize, usize)] = &[
    (DType::Q5_0, 2, 6),
    (DType::Q5_1, 4, 8),
    (DType::Q3_K, 0, 32),
    (DType::Q5_K, 16, 48),
    (DType::Q6_K, 128, 192),
];

/// Types with blocks of 32 values in which a byte stores a value of the first half of the block in its low 4 bits,
/// and a value of the second half in its high 4 bits.
const IN_HALVES: &[DType] =
    &[DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::IQ4_NL, DType::MXFP4];

fn read_as(at: &SiteContext, layout: &str) -> Option<Tensor> {
    let product = own(at)?;
    let dtype = product.w.dtype;
    let without = |parts: &[(DType, usize, usize)]| {
        let &(_, start, end) = parts.iter().find(|(known, ..)| *known == dtype)?;
        let mut data = elements(&product.w).to_vec();
        data.chunks_mut(dtype.block_bytes()).for_each(|block| block[start..end].fill(0));
        with(at, &LinearParameters { w: product.w.with_elements(data)?, ..product.clone() })
    };
    match layout {
        // Codes of a quantised checkpoint that are packed along the inputs: 8 in a word, or 2 in a byte.
        "words-reversed" if GroupSteps::has(&product.w) => in_order(at, &product, 8, |value| 7 - value),
        "neighbours" if GroupSteps::has(&product.w) => in_order(at, &product, 2, |value| 1 - value),
        "no-minimum" => without(MINIMA),
        "no-high-bits" => without(HIGH_BITS),
        "adjacent" if IN_HALVES.contains(&dtype) => {
            in_order(at, &product, 32, |value| value % 16 * 2 + value / 16)
        }
        _ if is_ternary(dtype) && product.w.cols.is_multiple_of(BLOCK) => {
            let (byte, part) = (|value: usize| value % BLOCK_BYTES, |value: usize| value / BLOCK_BYTES);
            match layout {
                "adjacent" => in_order(at, &product, BLOCK, |value| 4 * byte(value) + part(value)),
                // Layout of bitnet.cpp on Arm: 16 bytes for each 64 values.
                "groups-of-64" => in_order(at, &product, BLOCK, |value| {
                    byte(value) / 16 * 64 + part(value) * 16 + byte(value) % 16
                }),
                "reversed" => in_order(at, &product, BLOCK, |value| (3 - part(value)) * 32 + byte(value)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Permutes the values within each block of weights, so that each value is multiplied by another column's
/// activation. The block's largest value stays the same, and so do its codes.
fn in_order(
    at: &SiteContext,
    product: &LinearParameters,
    block: usize,
    column: impl Fn(usize) -> usize,
) -> Option<Tensor> {
    let x = input(at).filter(|x| x.row_len().is_multiple_of(block))?;
    let moved = at.n.gathered(&[x], x.shape(), |flat| (0, flat / block * block + column(flat % block)));
    multiplied(at, &moved, product)
}

/// Returns the type that activations are rounded to before the product with the matrix.
fn rounded_to(at: &SiteContext) -> &'static str {
    if at.stage::<Integers>().is_some() {
        return "int8";
    }
    let Some(LinearParameters { w, .. }) = own(at) else { return "none" };
    match Profile::of(at.n.numerics()).operands {
        Operands::GgmlButF16 if w.dtype == DType::F16 && at.positions.len() > 1 => "none",
        Operands::Ggml | Operands::GgmlButF16 if activation_type(w.dtype) != DType::F32 => {
            activation_type(w.dtype).name()
        }
        _ => "none",
    }
}

/// Computes the product with activations rounded to another type.
fn meeting(at: &SiteContext, rounded: &str) -> Option<Tensor> {
    let (x, product) = (input(at)?, own(at)?);
    let LinearParameters { w, bias, .. } = &product;
    let by = |n: &'static dyn Numerics| TracedNumerics::new(n, Profile::of(n));
    let product_of = |n: TracedNumerics| n.linear_of_pass(x, w, bias.as_deref(), at.positions.len());
    let is_short = at.n.numerics().activation_type() != DType::F32;
    match rounded {
        "none" if at.stage::<Integers>().is_some() => of_whole(at, x, &product),
        "none" if !is_short => Some(product_of(by(&F32))),
        // Numerics without result rounding cannot compute the change for engines that round results.
        _ if is_short || at.stage::<Integers>().is_some() => None,
        "int8" if is_ternary(w.dtype) => Some(by(&Transformers::F32).bit_linear(x, w, None)),
        name if DECODABLE.contains(&w.dtype) && activation_type(w.dtype).name() == name => {
            (name != "f32").then(|| product_of(by(&LlamaCpp { kv: KvType::F16 })))
        }
        _ => None,
    }
}

/// Multiplies the integer weight codes with unrounded activations, then applies the scale.
fn of_whole(at: &SiteContext, x: &Tensor, product: &LinearParameters) -> Option<Tensor> {
    let LinearParameters { w, factor, .. } = product;
    let in_weights = matches!(factor, Some(Factor::InWeights(_)));
    let scale = match factor {
        Some(Factor::Multiplies(factor) | Factor::InWeights(factor)) => *factor,
        Some(Factor::Divides(factor)) => 1.0 / factor,
        None => w.scale(),
    };
    let codes = w.clone().with_scale(if in_weights { scale } else { 1.0 });
    let mut data = Vec::with_capacity(4 * w.rows * w.cols);
    let mut row = vec![0.0f32; w.cols];
    for index in 0..w.rows {
        decode_matrix_row(&codes, index, &mut row);
        row.iter().for_each(|x| data.extend(x.to_le_bytes()));
    }
    let stored = StoredTensor { dtype: DType::F32, shape: vec![w.rows, w.cols], data: data.into() };
    let products = at.n.linear_of_pass(x, &Matrix::from_stored(&stored)?, None, at.positions.len());
    Some(if in_weights { products } else { at.n.scale(&products, Multiplier::Element(scale)) })
}
