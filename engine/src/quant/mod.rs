//! Quantised types: decoding, ggml's quantisation of activations, and dot products.
//!
//! The arithmetic is that of ggml's CPU backend on x86-64 with AVX2, FMA and F16C, bit for bit: the value of each
//! code, the rounding of activations, and the summation order of dot products (`ggml_vec_dot_*`). The portable code
//! defines the bits; `avx2`, `avx512` and `neon` give the same bits faster.
//!
//! A type is one row of the table `TRAITS`. The layouts are those of ggml's sources, one file each. The types of
//! llama2.c are in [`llama2c`].

mod activation_codes;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod bitnet_files;
mod block;
mod exact_values;
mod floats;
mod grid_block;
mod grids;
mod group_scales;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod k_quant_search;
mod k_quants;
mod lanes;
pub mod llama2c;
mod mxfp4;
#[cfg(target_arch = "aarch64")]
mod neon;
mod nvfp4;
mod product;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod q8_1;
mod q8_k;
mod q_asymmetric;
mod q_symmetric;
mod q_symmetric_dot;
mod rounding;
mod simd;
pub mod ternary;
mod tq1_0;
mod tq2_0;
mod weight_rounding;
mod wide_block;

use half::f16;
use half::slice::HalfFloatSliceExt;

pub use self::activation_codes::{ActivationCodeType, ActivationCodes, CodeGroup, extent};
use self::block::{QuantBlock, first_unsound as unsound};
pub(crate) use self::exact_values::ActivationRow;
pub use self::exact_values::{cache_codes, known, parts};
pub(crate) use self::group_scales::round_to_small_float;
pub use self::group_scales::{LocalScales, ScaleType};
pub(crate) use self::product::Product;
pub(crate) use self::rounding::nearest_whole;
pub use self::weight_rounding::WeightRounding;
pub(crate) use self::weight_rounding::{CodeType, largest_of, round_float};
use crate::parallel;
use crate::weight::{DType, Matrix};

/// Dot product of a stored row with a quantised row of the same length.
pub type Dot = fn(weights: &[u8], activations: &[u8]) -> f32;

/// Dot products of two stored rows with four quantised rows, with the same bits as [`Dot`].
pub(crate) type DotTile = fn(weights: [&[u8]; 2], activations: [&[u8]; 4]) -> [[f32; 4]; 2];

/// Decodes a stored row.
pub(crate) type RowDecoder = fn(row: &[u8], out: &mut [f32]);

/// Quantises a row of activations.
pub(crate) type RowQuantiser = fn(row: &[f32], out: &mut [u8]);

/// Returns the sum of ternary codes times activations, from a row of weights and a token's codes.
pub(crate) type TernarySum = fn(weights: &[u8], activations: &[i8]) -> i32;

/// Quantises activations for ternary weights with a given scale, and writes the codes to `codes`.
pub(crate) type TernaryCodes = fn(row: &[f32], scale: f32, codes: &mut [i8]);

/// Operations on weights of one type.
struct TypeTraits {
    dtype: DType,
    /// Type that activations are quantised to: `vec_dot_type` in ggml's type traits.
    activation: DType,
    decode: RowDecoder,
    dot: Dot,
    /// Returns the index of the first block with an infinite or NaN scale.
    unsound: fn(row: &[u8]) -> Option<usize>,
}

macro_rules! traits {
    ($($dtype:ident $activation:ident $decode:expr, $dot:expr, $unsound:expr;)*) => {
        &[$(TypeTraits {
            dtype: DType::$dtype,
            activation: DType::$activation,
            decode: $decode,
            dot: $dot,
            unsound: $unsound,
        },)*]
    };
}

#[rustfmt::skip]
const TRAITS: &[TypeTraits] = traits! {
    F32    F32  floats::decode::<floats::StoredF32>, floats::dot_f32, never;
    F16    F16  floats::decode_f16, floats::dot_f16, never;
    BF16   BF16 floats::decode::<floats::StoredBf16>, floats::dot_bf16, never;
    Q4_0   Q8_0 decode_blocks::<q4_0::BlockQ4_0>, q_symmetric_dot::dot::<q4_0::BlockQ4_0>, unsound::<q4_0::BlockQ4_0>;
    Q4_1   Q8_1 decode_blocks::<q4_1::BlockQ4_1>, q_asymmetric::dot::<q4_1::BlockQ4_1>, unsound::<q4_1::BlockQ4_1>;
    Q5_0   Q8_0 decode_blocks::<q5_0::BlockQ5_0>, q_symmetric_dot::dot::<q5_0::BlockQ5_0>, unsound::<q5_0::BlockQ5_0>;
    Q5_1   Q8_1 decode_blocks::<q5_1::BlockQ5_1>, q_asymmetric::dot::<q5_1::BlockQ5_1>, unsound::<q5_1::BlockQ5_1>;
    Q8_0   Q8_0 decode_blocks::<q8_0::BlockQ8_0>, q_symmetric_dot::dot::<q8_0::BlockQ8_0>, unsound::<q8_0::BlockQ8_0>;
    Q2_K   Q8_K decode_blocks::<q2_k::BlockQ2K>, k_quants::dot_with_mins::<q2_k::BlockQ2K>, unsound::<q2_k::BlockQ2K>;
    Q3_K   Q8_K decode_blocks::<q3_k::BlockQ3K>, k_quants::dot::<q3_k::BlockQ3K>, unsound::<q3_k::BlockQ3K>;
    Q4_K   Q8_K decode_blocks::<q4_k::BlockQ4K>, k_quants::dot_with_mins_in_four::<q4_k::BlockQ4K>, unsound::<q4_k::BlockQ4K>;
    Q5_K   Q8_K decode_blocks::<q5_k::BlockQ5K>, k_quants::dot_with_mins_in_one::<q5_k::BlockQ5K>, unsound::<q5_k::BlockQ5K>;
    Q6_K   Q8_K decode_blocks::<q6_k::BlockQ6K>, k_quants::dot::<q6_k::BlockQ6K>, unsound::<q6_k::BlockQ6K>;
    IQ4_NL Q8_0 decode_blocks::<iq4_nl::BlockIq4Nl>, q_symmetric_dot::dot_in_pairs::<iq4_nl::BlockIq4Nl>, unsound::<iq4_nl::BlockIq4Nl>;
    IQ4_XS Q8_K decode_blocks::<iq4_xs::BlockIq4Xs>, k_quants::dot::<iq4_xs::BlockIq4Xs>, unsound::<iq4_xs::BlockIq4Xs>;
    TQ1_0  Q8_K decode_blocks::<tq1_0::BlockTq1_0>, k_quants::dot::<tq1_0::BlockTq1_0>, unsound::<tq1_0::BlockTq1_0>;
    TQ2_0  Q8_K decode_blocks::<tq2_0::BlockTq2_0>, k_quants::dot::<tq2_0::BlockTq2_0>, unsound::<tq2_0::BlockTq2_0>;
    IQ1_S  Q8_K decode_blocks::<iq1_s::BlockIq1S>, grid_block::dot_with_shifts_in_one::<iq1_s::BlockIq1S>, unsound::<iq1_s::BlockIq1S>;
    IQ1_M  Q8_K decode_blocks::<iq1_m::BlockIq1M>, grid_block::dot_with_shifts_in_eight::<iq1_m::BlockIq1M>, unsound::<iq1_m::BlockIq1M>;
    IQ2_XXS Q8_K decode_blocks::<iq2_xxs::BlockIq2Xxs>, k_quants::dot::<iq2_xxs::BlockIq2Xxs>, unsound::<iq2_xxs::BlockIq2Xxs>;
    IQ2_XS Q8_K decode_blocks::<iq2_xs::BlockIq2Xs>, k_quants::dot::<iq2_xs::BlockIq2Xs>, unsound::<iq2_xs::BlockIq2Xs>;
    IQ2_S  Q8_K decode_blocks::<iq2_s::BlockIq2S>, k_quants::dot::<iq2_s::BlockIq2S>, unsound::<iq2_s::BlockIq2S>;
    IQ3_XXS Q8_K decode_blocks::<iq3_xxs::BlockIq3Xxs>, k_quants::dot::<iq3_xxs::BlockIq3Xxs>, unsound::<iq3_xxs::BlockIq3Xxs>;
    IQ3_S  Q8_K decode_blocks::<iq3_s::BlockIq3S>, k_quants::dot::<iq3_s::BlockIq3S>, unsound::<iq3_s::BlockIq3S>;
    Q1_0   Q8_0 decode_blocks::<q1_0::BlockQ1_0>, wide_block::dot_in_lanes::<4, q1_0::BlockQ1_0>, unsound::<q1_0::BlockQ1_0>;
    Q2_0   Q8_0 decode_blocks::<q2_0::BlockQ2_0>, wide_block::dot_in_one::<2, q2_0::BlockQ2_0>, unsound::<q2_0::BlockQ2_0>;
    NVFP4  Q8_0 decode_blocks::<nvfp4::BlockNvfp4>, nvfp4::dot, unsound::<nvfp4::BlockNvfp4>;
    MXFP4  Q8_0 decode_blocks::<mxfp4::BlockMxfp4>, q_symmetric_dot::dot_in_pairs::<mxfp4::BlockMxfp4>, unsound::<mxfp4::BlockMxfp4>;
};

/// Summation order for products of several tokens, if it differs from the order for a single token.
struct Batch {
    dtype: DType,
    /// Minimum number of tokens.
    tokens: usize,
    /// Numbers by which the matrix's rows and columns must be divisible.
    outputs: usize,
    columns: usize,
    dot: Dot,
}

macro_rules! batches {
    ($($dtype:ident $tokens:literal $outputs:literal $columns:literal $dot:expr;)*) => {
        &[$(Batch {
            dtype: DType::$dtype,
            tokens: $tokens,
            outputs: $outputs,
            columns: $columns,
            dot: $dot,
        },)*]
    };
}

#[rustfmt::skip]
const BATCHES: &[Batch] = batches! {
    F32    2 4 8 floats::batch_dot::<floats::StoredF32>;
    F16    2 4 8 floats::batch_dot::<floats::StoredF16>;
    BF16   2 4 8 floats::batch_dot::<floats::StoredBf16>;
    IQ4_NL 2 1 1 q_symmetric_dot::dot::<iq4_nl::BlockIq4Nl>;
    Q2_K   8 1 1 k_quants::batch_dot_with_mins::<q2_k::BlockQ2K>;
    Q3_K   8 1 1 k_quants::batch_dot::<q3_k::BlockQ3K>;
    Q4_K   8 1 1 k_quants::batch_dot_with_mins::<q4_k::BlockQ4K>;
    Q5_K   8 1 1 k_quants::batch_dot_with_mins::<q5_k::BlockQ5K>;
    Q6_K   8 1 1 k_quants::batch_dot::<q6_k::BlockQ6K>;
    IQ4_XS 8 1 1 k_quants::batch_dot::<iq4_xs::BlockIq4Xs>;
    IQ1_S  8 1 1 k_quants::batch_dot::<iq1_s::BlockIq1S>;
    IQ1_M  8 1 1 k_quants::batch_dot::<iq1_m::BlockIq1M>;
    IQ2_XXS 8 1 1 k_quants::batch_dot::<iq2_xxs::BlockIq2Xxs>;
    IQ2_XS 8 1 1 k_quants::batch_dot::<iq2_xs::BlockIq2Xs>;
    IQ2_S  8 1 1 k_quants::batch_dot::<iq2_s::BlockIq2S>;
    IQ3_XXS 8 1 1 k_quants::batch_dot::<iq3_xxs::BlockIq3Xxs>;
    IQ3_S  8 1 1 k_quants::batch_dot::<iq3_s::BlockIq3S>;
};

/// Types of weights for which dot products exist.
pub const DECODABLE: &[DType] = &{
    let mut types = [DType::F32; TRAITS.len()];
    let mut index = 0;
    while index < TRAITS.len() {
        types[index] = TRAITS[index].dtype;
        index += 1;
    }
    types
};

/// Block types that a KV cache may have. If the decoded values of a block are quantised again, the result is the
/// same block.
pub const CACHES: [DType; 6] =
    [DType::Q8_0, DType::Q5_1, DType::Q5_0, DType::Q4_1, DType::Q4_0, DType::IQ4_NL];

/// Types of weights that can be decoded: those of ggml, the ternary types of bitnet.cpp, and those of llama2.c.
pub const READABLE: &[DType] = &{
    let mut types = [DType::I2_S; DECODABLE.len() + 3];
    let mut index = 0;
    while index < DECODABLE.len() {
        types[index] = DECODABLE[index];
        index += 1;
    }
    types[index] = DType::TL;
    types[index + 1] = DType::INT8_GROUPS;
    types
};

fn never(_: &[u8]) -> Option<usize> {
    None
}

/// # Panics
/// If the type is not in the table; types are checked when a model is loaded.
fn traits(dtype: DType) -> &'static TypeTraits {
    let found = TRAITS.iter().find(|traits| traits.dtype == dtype);
    found.unwrap_or_else(|| panic!("no decoder for {dtype}; loading a model rejects this type"))
}

/// Decodes one row of `out.len()` elements.
///
/// # Panics
/// If `dtype` is not [`DECODABLE`] or `bytes` is not a whole row; both are checked when a model is loaded.
pub fn decode_row(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        Some(bytes.len()),
        dtype.bytes_for(out.len()),
        "the bytes and the values of a {dtype} row have different lengths"
    );
    (traits(dtype).decode)(bytes, out);
}

/// Decodes a row of a matrix.
///
/// # Panics
/// If its type is not [`READABLE`], which is checked when a run starts, or `out` has not the length of a row.
pub fn decode_matrix_row(w: &Matrix, row: usize, out: &mut [f32]) {
    if let Some(group) = w.group_len() {
        return llama2c::decode(w.row(row), w.scale_range(row..row + 1), group, out);
    }
    match ternary::is_ternary(w.dtype) {
        true => ternary::decode_row(w.row(row), out),
        false => decode_row(w.dtype, w.row(row), out),
    }
    if w.scale() != 1.0 {
        out.iter_mut().for_each(|value| *value *= w.scale());
    }
}

/// Decodes a row of blocks. The operations, and so the bits, are the same with and without special instructions.
fn decode_blocks<B: QuantBlock>(row: &[u8], out: &mut [f32]) {
    let decode: RowDecoder = simd::decoder::<B>().unwrap_or(block::decode_row::<B>);
    decode(row, out);
}

/// Returns the type that activations are quantised to before products with weights of this type.
///
/// # Panics
/// If `weights` is not [`DECODABLE`].
pub fn activation_type(weights: DType) -> DType {
    traits(weights).activation
}

/// Returns the index of the first block of `bytes` with an infinite or NaN scale; `None` if there is none, or `dtype`
/// is not [`DECODABLE`].
///
/// # Panics
/// If `bytes` is not a whole number of blocks.
pub fn first_unsound_block(dtype: DType, bytes: &[u8]) -> Option<usize> {
    let traits = TRAITS.iter().find(|traits| traits.dtype == dtype)?;
    (traits.unsound)(bytes)
}

/// Quantises one row of activations to the bytes that ggml's own buffer would have.
///
/// # Panics
/// If `dtype` is neither a type of activations nor of [`CACHES`], or `out` is not the whole row.
pub fn quantise_row(dtype: DType, row: &[f32], out: &mut [u8]) {
    assert_eq!(
        Some(out.len()),
        dtype.bytes_for(row.len()),
        "the bytes and the values of a {dtype} row have different lengths"
    );
    let quantise = fast_quantise(dtype).unwrap_or_else(|| plain_quantise(dtype));
    quantise(row, out);
}

/// Quantises rows of `len` activations in parallel.
///
/// # Panics
/// See [`quantise_row`].
pub(crate) fn quantised_rows(dtype: DType, rows: &[f32], len: usize) -> Vec<Vec<u8>> {
    let bytes = dtype.bytes_for(len).expect("the row is a whole number of blocks, as the matrix's rows are");
    parallel::map(rows.len() / len, len, |row| {
        let mut out = vec![0; bytes];
        quantise_row(dtype, &rows[row * len..][..len], &mut out);
        out
    })
}

/// Returns the portable quantisation that [`quantise_row`] must match bit for bit.
///
/// # Panics
/// If `dtype` is neither a type of activations nor of [`CACHES`].
pub fn plain_quantise(dtype: DType) -> RowQuantiser {
    match dtype {
        DType::F32 => floats::to_f32,
        DType::F16 => floats::to_f16,
        DType::BF16 => floats::to_bf16,
        DType::Q8_0 => q8_0::quantise,
        DType::Q8_1 => q8_1::quantise,
        DType::Q8_K => q8_k::quantise,
        DType::Q4_0 => q4_0::quantise,
        DType::Q5_0 => q5_0::quantise,
        DType::Q4_1 => q4_1::quantise,
        DType::Q5_1 => q5_1::quantise,
        DType::IQ4_NL => iq4_nl::quantise,
        other => panic!("{other} is not a type of activations or caches"),
    }
}

/// Returns the quantisation with special instructions; `None` if the machine lacks them, or they are no faster for
/// the type.
pub fn fast_quantise(dtype: DType) -> Option<RowQuantiser> {
    simd::quantise(dtype)
}

/// Summation order. ggml chooses its dot product by the shape of the matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DotOrder {
    /// Order of `ggml_vec_dot_*`.
    Row,
    /// Order for several tokens: llamafile's `tinyBLAS`, or ggml's tiled product.
    Batch,
}

impl DotOrder {
    /// Returns the order for `tokens` rows of activations and a matrix of `outputs` rows and `columns` columns.
    pub fn of(weights: DType, tokens: usize, outputs: usize, columns: usize) -> Self {
        let fits = |batch: &&Batch| {
            tokens >= batch.tokens
                && outputs.is_multiple_of(batch.outputs)
                && columns.is_multiple_of(batch.columns)
        };
        batch(weights).filter(fits).map_or(DotOrder::Row, |_| DotOrder::Batch)
    }
}

/// Returns the fastest dot product of this machine for weights of a type.
///
/// Its arguments are a row of the matrix, and a row that [`quantise_row`] quantised to the [`activation_type`].
///
/// # Panics
/// If `weights` is not [`DECODABLE`]; when called, if a row ends inside a block.
pub fn dot(weights: DType, order: DotOrder) -> Dot {
    fast_dot(weights, order).unwrap_or_else(|| plain_dot(weights, order))
}

/// Returns the portable dot product, which defines the bits.
///
/// # Panics
/// See [`dot`].
pub fn plain_dot(weights: DType, order: DotOrder) -> Dot {
    match (order, batch(weights)) {
        (DotOrder::Batch, Some(batch)) => batch.dot,
        _ => traits(weights).dot,
    }
}

/// Returns the dot product with special instructions; `None` if the machine lacks them.
pub fn fast_dot(weights: DType, order: DotOrder) -> Option<Dot> {
    match (order, batch(weights)) {
        (DotOrder::Batch, Some(_)) => simd::batch_dot(weights),
        _ => simd::dot(weights),
    }
}

/// Returns the portable dot product of F16 weights with unrounded F32 activations, which defines the bits.
/// llamafile's `tinyBLAS` of 2024 computes it for several tokens.
pub fn plain_mixed_dot() -> Dot {
    floats::batch_dot_of::<floats::StoredF16, floats::StoredF32>
}

/// Returns the mixed dot product with special instructions, for rows whose length is a multiple of 8; `None` if the
/// machine lacks the instructions.
pub fn fast_mixed_dot() -> Option<Dot> {
    simd::mixed_dot()
}

/// Returns the fastest tile of eight dot products; `None` if this machine or the type has no tile.
pub(crate) fn fast_tile(weights: DType, order: DotOrder) -> Option<DotTile> {
    tiles(weights, order).next()
}

/// Returns all tiles of this machine, fastest first.
pub fn tiles(weights: DType, order: DotOrder) -> impl Iterator<Item = DotTile> {
    let is_other_order = order == DotOrder::Row && batch(weights).is_some();
    simd::tiles(weights).filter(move |_| !is_other_order)
}

fn batch(weights: DType) -> Option<&'static Batch> {
    BATCHES.iter().find(|batch| batch.dtype == weights)
}

/// Rounds each value to the nearest `f16`, ties to even, and widens it again.
pub(crate) fn round_to_f16(values: &[f32]) -> Vec<f32> {
    let mut rounded = vec![f16::ZERO; values.len()];
    rounded.convert_from_f32_slice(values);
    let mut widened = vec![0.0; values.len()];
    rounded.convert_to_f32_slice(&mut widened);
    widened
}
