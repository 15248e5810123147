//! Types of bitnet.cpp's fork: known by the architecture and the file type, never by the number alone.

use xcheck::error::{FormatError, Result};
use xcheck::format::Gguf;
use xcheck::weight::DType;

use super::builder::{GgufBuilder, describe, string, u32};
use super::{assert_refused, read_gguf};

const I2_S: u32 = 36;
const I8_S: u32 = 37;
const TL1: u32 = 38;
/// Or MXFP4.
const TL2: u32 = 39;

fn file(architecture: &str, file_type: Option<u32>) -> GgufBuilder {
    let builder = GgufBuilder::new().key("general.architecture", string(architecture));
    match file_type {
        Some(file_type) => builder.key("general.file_type", u32(file_type)),
        None => builder,
    }
}

/// The type and bytes of a matrix of 64 × 384 in a file with room for any.
fn read(architecture: &str, file_type: Option<u32>, id: u32) -> Result<(DType, usize)> {
    let bytes = file(architecture, file_type).tensor("w", &[384, 64], id, 1 << 15).build();
    let file: Gguf = read_gguf(bytes)?;
    let tensor = file.tensors.get("w").expect("it is in the file");
    Ok((tensor.dtype, tensor.data.len()))
}

#[test]
fn types_of_the_fork_are_known_in_files_of_its_architectures() {
    for architecture in ["bitnet", "bitnet-25", "bitnet-b1.58"] {
        let codes = 64 * 384 / 4 + 32;
        assert_eq!(read(architecture, None, I2_S).expect("it is sound"), (DType::I2_S, codes));
        assert_eq!(read(architecture, Some(38), TL1).expect("it is sound"), (DType::TL1, codes));
        // (384 − 256) · 64 / 3 · 5 / 8 + 256 · 64 / 2 · 4 / 8, up to a multiple of 32, and 32.
        assert_eq!(read(architecture, Some(39), TL2).expect("it is sound"), (DType::TL2, 5824 + 32));
    }
}

#[test]
fn other_files_have_them_by_their_file_type() {
    assert_eq!(read("llama", Some(40), I2_S).expect("it is sound").0, DType::I2_S);
    assert_eq!(read("llama", Some(38), TL1).expect("it is sound").0, DType::TL1);
    assert_refused!(read("llama", None, I2_S), FormatError::RefusedTensorType { .. }, "IQ4_NL_4_4");
    assert_refused!(read("llama", Some(1), TL1), FormatError::RefusedTensorType { .. }, "IQ4_NL_8_8");
}

#[test]
fn what_may_be_tl2_or_mxfp4_is_decided_by_the_file_type_or_refused() {
    assert_eq!(read("llama", None, TL2).expect("it is sound").0, DType::MXFP4);
    assert_eq!(read("bitnet", Some(38), TL2).expect("it is sound").0, DType::MXFP4);
    for (architecture, file_type) in [("bitnet", None), ("bitnet-b1.58", Some(1)), ("llama", Some(39))] {
        let refused = read(architecture, file_type, TL2);
        assert_refused!(
            refused,
            FormatError::RefusedTensorType { .. },
            "tensor 'w'",
            "TL2 or MXFP4",
            "general.file_type"
        );
    }
}

#[test]
fn activations_of_the_fork_are_no_weights() {
    assert_refused!(read("bitnet", None, I8_S), FormatError::RefusedTensorType { .. }, "tensor 'w'", "I8_S");
}

#[test]
fn rows_that_end_inside_a_block_are_refused() {
    let bytes = file("bitnet", None).described(describe("w", &[192, 4], I2_S, 0)).build();
    assert_refused!(read_gguf(bytes), FormatError::BadTensor { .. }, "tensor 'w'", "multiple of 128");
}

#[test]
fn a_matrix_whose_scale_does_not_fit_the_file_is_refused() {
    for (id, file_type, whole) in [(I2_S, 40, 128 * 16 / 4 + 32), (TL1, 38, 128 * 16 / 4 + 32)] {
        let cut = file("bitnet", Some(file_type)).tensor("w", &[128, 16], id, whole - 32).build();
        assert_refused!(read_gguf(cut), FormatError::Truncated { .. }, "tensor 'w'");
    }
}

#[test]
fn sizes_that_overflow_are_refused_before_anything_is_allocated() {
    for (id, file_type) in [(I2_S, 40), (TL1, 38), (TL2, 39)] {
        for dimensions in [[1u64 << 60, 1 << 60], [1 << 60, 24], [384, 1 << 60], [128 * 3, u64::MAX >> 1]] {
            let bytes = file("bitnet", Some(file_type)).described(describe("w", &dimensions, id, 0)).build();
            let message = read_gguf(bytes).expect_err("no file is as large").to_string();
            assert!(message.contains("tensor 'w'"), "{message}");
        }
    }
}

#[test]
fn tl2_has_two_dimensions() {
    let bytes = file("bitnet", Some(39)).described(describe("w", &[384, 8, 8], TL2, 0)).build();
    assert_refused!(read_gguf(bytes), FormatError::BadTensor { .. }, "tensor 'w'", "shape");
}
