//! What the formats compute is what ggml computes, bit for bit.

use xcheck::quant::{self, DECODABLE, Dot};
use xcheck::weight::DType;

use crate::vectors::{Vectors, activations, first_wrong_row, quantised, same, vectors};

/// What activations are quantised to.
const ACTIVATIONS: [DType; 6] = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q8_1, DType::Q8_K];

#[test]
fn every_type_decodes_as_the_gguf_package_does() {
    for &dtype in DECODABLE {
        let golden = vectors(dtype);
        assert_eq!(first_wrong_row(dtype, &golden.weights, &golden.values), None, "{dtype}");
    }
}

#[test]
fn activations_are_quantised_as_ggml_does() {
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
fn dot_products_are_those_of_ggml_bit_for_bit() {
    for &dtype in DECODABLE {
        let golden = vectors(dtype);
        assert_eq!(
            wrong_dots(dtype, &golden, quant::plain_dot(dtype)),
            Vec::<String>::new(),
            "{dtype}, plain"
        );
        assert_eq!(wrong_dots(dtype, &golden, quant::dot(dtype)), Vec::<String>::new(), "{dtype}, fast");
    }
}

/// Every dot product of the golden file that `dot` computes otherwise.
pub fn wrong_dots(dtype: DType, golden: &Vectors, dot: Dot) -> Vec<String> {
    let activation = quant::activation_type(dtype);
    let quantised = quantised(activation);
    assert!(golden.dots.len() > 1, "{dtype}: nothing to compare with");
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
