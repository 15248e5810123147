//! What the formats compute is what ggml computes, bit for bit.

use xcheck_engine::quant::{self, DECODABLE, Dot, DotOrder};
use xcheck_engine::weight::DType;

use super::vectors::{Rows, Vectors, activations, first_wrong_row, quantised, same, vectors};

/// What activations are quantised to.
const ACTIVATIONS: [DType; 6] = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q8_1, DType::Q8_K];

#[test]
fn q8_0_q4_k_and_all_other_types_decode_as_in_the_gguf_package() {
    for &dtype in DECODABLE {
        let golden = vectors(dtype);
        assert_eq!(first_wrong_row(dtype, &golden.weights, &golden.values), None, "{dtype}");
    }
}

#[test]
fn activations_are_quantised_to_q8_0_as_by_ggml() {
    for dtype in ACTIVATIONS {
        let (ours, theirs) = (activations(), quantised(dtype));
        for (index, (row, theirs)) in ours.iter().zip(theirs.iter()).enumerate() {
            let mut out = vec![0; theirs.len()];
            quant::quantise_row(dtype, row, &mut out);
            let block = dtype.block_bytes();
            for (at, (ours, theirs)) in out.chunks(block).zip(theirs.chunks(block)).enumerate() {
                assert_eq!(ours, theirs, "{dtype}: row {index}, block {at}");
            }
        }
    }
}

#[test]
fn q8_0_q4_k_and_all_other_dot_products_are_those_of_ggml_bit_for_bit() {
    for &dtype in DECODABLE {
        let golden = vectors(dtype);
        assert_eq!(
            wrong_dots(dtype, &golden, quant::plain_dot(dtype, DotOrder::Row)),
            Vec::<String>::new(),
            "{dtype}, plain"
        );
        assert_eq!(
            wrong_dots(dtype, &golden, quant::dot(dtype, DotOrder::Row)),
            Vec::<String>::new(),
            "{dtype}, fast"
        );
    }
}

#[test]
fn quantised_matrix_products_of_one_and_of_many_tokens_are_those_of_ggml_bit_for_bit() {
    for &dtype in DECODABLE {
        for (tokens, theirs) in &vectors(dtype).products {
            for dot in [quant::plain_dot, quant::dot] {
                let wrong = wrong_products(dtype, *tokens, theirs, dot);
                assert_eq!(wrong, Vec::<String>::new(), "{dtype}, {tokens} tokens");
            }
        }
    }
}

/// Every value of a matrix product that comes out otherwise.
fn wrong_products(
    dtype: DType,
    tokens: usize,
    theirs: &Rows<f32>,
    dot: fn(DType, DotOrder) -> Dot,
) -> Vec<String> {
    let (weights, quantised) = (vectors(dtype).weights, quantised(quant::activation_type(dtype)));
    let dot = dot(dtype, DotOrder::of(dtype, tokens, theirs.row(0).len(), 768));
    let mut wrong = Vec::new();
    for (token, theirs) in theirs.iter().enumerate() {
        for (output, (row, &theirs)) in weights.iter().zip(theirs).enumerate() {
            let ours = dot(row, quantised.row(token));
            if !same(ours, theirs) {
                wrong.push(format!("[{token}, {output}] is {ours:e}, not {theirs:e}"));
            }
        }
    }
    wrong
}

#[test]
fn products_that_ggml_does_not_batch_are_added_row_by_row() {
    let order = |dtype, tokens, outputs, columns| DotOrder::of(dtype, tokens, outputs, columns);
    assert_eq!(order(DType::F16, 2, 512, 64), DotOrder::Batch);
    assert_eq!(order(DType::F16, 1, 512, 64), DotOrder::Row);
    assert_eq!(order(DType::F16, 2, 511, 64), DotOrder::Row);
    assert_eq!(order(DType::F16, 2, 512, 60), DotOrder::Row);
    assert_eq!(order(DType::Q4_K, 7, 512, 256), DotOrder::Row);
    assert_eq!(order(DType::Q4_K, 8, 511, 256), DotOrder::Batch);
    assert_eq!(order(DType::Q8_0, 100, 512, 256), DotOrder::Row);
}

/// Every dot product of the golden file that `dot` computes otherwise.
pub fn wrong_dots(dtype: DType, golden: &Vectors, dot: Dot) -> Vec<String> {
    let activation = quant::activation_type(dtype);
    let quantised = quantised(activation);
    let mut wrong = Vec::new();
    for (length, dots) in &golden.dots {
        let weight_bytes = dtype.bytes_for(*length).expect("whole blocks");
        let activation_bytes = activation.bytes_for(*length).expect("whole blocks");
        for (i, weights) in golden.weights.iter().enumerate() {
            for (j, activations) in quantised.iter().enumerate() {
                let (ours, theirs) =
                    (dot(&weights[..weight_bytes], &activations[..activation_bytes]), dots.row(i)[j]);
                if !same(ours, theirs) {
                    wrong.push(format!("{length}: [{i}, {j}] is {ours:e}, not {theirs:e}"));
                }
            }
        }
    }
    wrong
}
