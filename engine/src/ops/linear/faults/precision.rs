//! Weights that are rounded to a shorter type: to a float type, or to integers with a scale for each tensor, row or group.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, LinearParameters, SiteContext, distance};
use crate::checkpoint::Point;
use crate::exact::Float;
use crate::numerics::Numerics;
use crate::ops::embedding::exact::EmbeddingLookup;
use crate::ops::linear::faults::{IN_LAYERS, MATRICES, input, multiplied, own, with};
use crate::quant::{CodeType, WeightRounding, decode_matrix_row, largest_of, quantise_row};
use crate::tensor::Tensor;
use crate::weight::{DType, Matrix};

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    // A file in a shorter float type has all its matrices in that type.
    CatalogueEntry {
        kind: CauseKind::WeightPrecision,
        at: MATRICES,
        takes: "f16|bf16",
        compute: |at, value| {
            let rounding = named(value.as_word()?)?;
            match at.stage() {
                _ if !is_of_file(rounding) => None,
                Some(EmbeddingLookup { table, tokens }) => {
                    Some(at.n.embed(&rounded(table, rounding)?, tokens))
                }
                None => rounded_product(at, rounding),
            }
        },
        usual: Some(|_| ["bf16", "f16"].map(ChangeValue::word).into()),
        ..CatalogueEntry::PLAIN
    },
    // Quantisers leave the embeddings and the output matrix as they are.
    CatalogueEntry {
        kind: CauseKind::WeightPrecision,
        at: IN_LAYERS,
        takes: "f8_e4m3|f8_e5m2|f8_e4m3-tensor|f8_e4m3-row|int8-tensor|int8-row|q8_0",
        usual: Some(|_| vec![ChangeValue::word("int8-row")]),
        ..QUANTISED
    },
    CatalogueEntry {
        kind: CauseKind::WeightPrecision,
        at: &[Point::Logits],
        takes: "head:int8-row",
        compute: |at, value| quantised(at, value.as_word()?.strip_prefix("head:")?),
        read: |at, theirs| {
            let words = nearest_roundings(at, theirs).into_iter();
            words.map(|word| ChangeValue::Word(format!("head:{word}"))).collect()
        },
        usual: Some(|_| Vec::new()),
        ..CatalogueEntry::PLAIN
    },
];

const QUANTISED: CatalogueEntry = CatalogueEntry {
    compute: |at, value| quantised(at, value.as_word()?),
    read: |at, theirs| nearest_roundings(at, theirs).into_iter().map(ChangeValue::word).collect(),
    ..CatalogueEntry::PLAIN
};

/// Roundings of weights that are tried if they bring a product's first outputs nearer to the dump's.
const READ: [&str; 7] =
    ["f8_e4m3", "f8_e5m2", "f8_e4m3-tensor", "f8_e4m3-row", "int8-tensor", "int8-row", "q8_0"];

/// Returns the rounding with this name in the catalogue.
fn named(word: &str) -> Option<WeightRounding> {
    Some(match word {
        "f16" => WeightRounding::Float(DType::F16),
        "bf16" => WeightRounding::Float(DType::BF16),
        "f8_e4m3" => WeightRounding::Float(DType::F8_E4M3),
        "f8_e5m2" => WeightRounding::Float(DType::F8_E5M2),
        "f8_e4m3-tensor" => WeightRounding::Tensor(CodeType::E4m3),
        "f8_e4m3-row" => WeightRounding::Row(CodeType::E4m3),
        "int8-tensor" => WeightRounding::Tensor(CodeType::Int8),
        "int8-row" => WeightRounding::Row(CodeType::Int8),
        "q8_0" => WeightRounding::Blocks(DType::Q8_0),
        _ => return None,
    })
}

/// Returns true if all weights of a file may be stored in this type.
fn is_of_file(rounding: WeightRounding) -> bool {
    matches!(rounding, WeightRounding::Float(DType::F16 | DType::BF16))
}

/// Returns true if the rounding changes a matrix and can be computed for it.
fn applies_to(rounding: WeightRounding, w: &Matrix) -> bool {
    match rounding {
        WeightRounding::Float(float) => w.dtype != float,
        WeightRounding::Blocks(dtype) => w.cols.is_multiple_of(dtype.block_len()),
        _ => true,
    }
}

/// Rounds the stored weights of a plain type and keeps the original type, so activations are rounded as before. The
/// matrix keeps its own scale.
fn rounded(w: &Matrix, rounding: WeightRounding) -> Option<Matrix> {
    rounded_by(w, rounding, largest_in(w, rounding))
}

fn rounded_by(w: &Matrix, rounding: WeightRounding, largest: f32) -> Option<Matrix> {
    let is_plain = matches!(w.dtype, DType::F32 | DType::F16 | DType::BF16);
    if !is_plain || !applies_to(rounding, w) {
        return None;
    }
    let mut data = vec![0; w.dtype.bytes_for(w.cols * w.rows)?];
    let (unscaled, mut row) = (w.clone().with_scale(1.0), vec![0.0; w.cols]);
    for (index, stored) in data.chunks_mut(w.dtype.bytes_for(w.cols)?).enumerate() {
        decode_matrix_row(&unscaled, index, &mut row);
        rounding.round(&mut row, largest);
        quantise_row(w.dtype, &row, stored);
    }
    w.with_elements(data)
}

/// Returns the largest absolute stored weight, if the rounding needs it.
fn largest_in(w: &Matrix, rounding: WeightRounding) -> f32 {
    let WeightRounding::Tensor(_) = rounding else { return 0.0 };
    let (unscaled, mut row) = (w.clone().with_scale(1.0), vec![0.0; w.cols]);
    (0..w.rows).fold(0.0f32, |most, index| {
        decode_matrix_row(&unscaled, index, &mut row);
        most.max(largest_of(&row))
    })
}

/// Computes the product with quantised weights.
fn quantised(at: &SiteContext, word: &str) -> Option<Tensor> {
    let rounding = named(word).filter(|&rounding| !is_of_file(rounding))?;
    rounded_product(at, rounding)
}

/// Computes the product with rounded weights. A file in a float type also stores its biases in that type, so these
/// are rounded too.
fn rounded_product(at: &SiteContext, rounding: WeightRounding) -> Option<Tensor> {
    let product = own(at)?;
    let w = rounded(&product.w, rounding)?;
    let bias = product.bias.map(|mut bias| {
        if is_of_file(rounding) {
            rounding.round(&mut bias, 0.0);
        }
        bias
    });
    with(at, &LinearParameters { w, bias, ..product })
}

/// Returns the roundings that bring the first outputs nearer to the dump's values, nearest first.
fn nearest_roundings(at: &SiteContext, theirs: &[f64]) -> Vec<&'static str> {
    const OUTPUTS: usize = 16;
    let (Some(x), Some(product)) = (input(at), own(at)) else { return Vec::new() };
    let (rows, few) = (product.w.rows, OUTPUTS.min(product.w.rows));
    let first = |flat: usize| flat / few * rows + flat % few;
    let wanted: Vec<f64> = (0..x.rows() * few).map(|flat| theirs[first(flat)]).collect();
    let ours = at.n.gathered(&[at.value], &[wanted.len()], |flat| (0, first(flat)));
    let before = distance(&ours, &wanted);
    if Float::of(product.w.dtype).is_none() || !(before > 0.0 && before < 0.5) {
        return Vec::new();
    }
    let x = Tensor::new(x.shape(), x.data().to_vec());
    let off = |word: &'static str| {
        let rounding = named(word)?;
        let w = rounded_by(&product.w.rows_from(0, few), rounding, largest_in(&product.w, rounding))?;
        let bias = product.bias.as_ref().map(|bias| bias[..few].to_vec());
        let off = distance(&multiplied(at, &x, &LinearParameters { w, bias, ..product.clone() })?, &wanted);
        (off < before / 1.5).then_some((word, off))
    };
    let mut near: Vec<(&str, f64)> = READ.into_iter().filter_map(off).collect();
    near.sort_by(|a, b| a.1.total_cmp(&b.1));
    near.into_iter().map(|(word, _)| word).collect()
}
