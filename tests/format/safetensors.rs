//! safetensors files: what the library writes is read, and everything that is refused.

use std::collections::HashMap;

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use xcheck::error::{Error, FormatError};
use xcheck::weight::DType;

use super::{assert_refused, assert_refused_as, read_safetensors};

/// A file with this header and data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// The header entry of a tensor.
fn entry(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

/// A file with one tensor "w" of four bytes, described like this.
fn one(dtype: &str, shape: &str, start: u64, end: u64) -> Vec<u8> {
    file(&format!("{{{}}}", entry("w", dtype, shape, start, end)), &[0; 4])
}

#[test]
fn what_the_library_writes_is_read() {
    let (a, b) = ([1u8, 2, 3, 4], [5u8; 12]);
    let tensors = [
        ("a", TensorView::new(Dtype::F32, vec![1], &a).unwrap()),
        ("b", TensorView::new(Dtype::BF16, vec![2, 3], &b).unwrap()),
    ];
    let metadata = HashMap::from([("xcheck".to_owned(), "{}".to_owned())]);
    let read = read_safetensors(serialize(tensors, Some(metadata)).unwrap()).unwrap();
    assert_eq!(read.metadata["xcheck"], "{}");
    assert_eq!(read.tensors.len(), 2);
    let b_read = read.tensors.get("b").unwrap();
    assert_eq!((b_read.dtype, b_read.shape.as_slice(), &b_read.data[..]), (DType::BF16, &[2, 3][..], &b[..]));
    assert!(read.tensors.get("__metadata__").is_none());
}

#[test]
fn every_plain_type_is_known() {
    for (name, dtype) in [
        ("F64", DType::F64),
        ("F32", DType::F32),
        ("F16", DType::F16),
        ("BF16", DType::BF16),
        ("I64", DType::I64),
        ("I32", DType::I32),
        ("I16", DType::I16),
        ("I8", DType::I8),
        ("U64", DType::U64),
        ("U32", DType::U32),
        ("U16", DType::U16),
        ("U8", DType::U8),
        ("BOOL", DType::BOOL),
        ("F8_E4M3", DType::F8_E4M3),
        ("F8_E5M2", DType::F8_E5M2),
    ] {
        let bytes = dtype.block_bytes();
        let header = format!("{{{}}}", entry("w", name, "[]", 0, bytes as u64));
        let read = read_safetensors(file(&header, &vec![0; bytes])).unwrap();
        assert_eq!(read.tensors.get("w").unwrap().dtype, dtype);
    }
}

#[test]
fn tensors_come_in_the_order_of_their_data() {
    let header = format!(
        "{{{},{},{}}}",
        entry("b", "U8", "[2]", 1, 3),
        entry("a", "U8", "[1]", 0, 1),
        entry("e", "U8", "[0]", 1, 1)
    );
    let read = read_safetensors(file(&header, &[7, 8, 9])).unwrap();
    let names: Vec<&str> = read.tensors.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "e", "b"]);
    assert_eq!(read.tensors.get("b").unwrap().data[..], [8, 9]);
}

#[test]
fn a_file_without_tensors_is_read() {
    assert!(read_safetensors(file("{}", &[])).unwrap().tensors.is_empty());
}

#[test]
fn types_that_have_no_place_here_are_refused_by_name() {
    for dtype in ["F8_E8M0", "F4", "C64"] {
        assert_refused!(
            read_safetensors(one(dtype, "[4]", 0, 4)),
            FormatError::RefusedTensorType { .. },
            "tensor 'w'",
            dtype,
            "byte",
            "F32"
        );
    }
}

#[test]
fn a_type_that_does_not_exist_is_refused_at_its_byte() {
    let bytes = one("F31", "[1]", 0, 4);
    let after = 8 + r#"{"w":{"dtype":"F31""#.len() - 1;
    assert_refused_as!(read_safetensors(bytes), Error::BadContainer { .. }, "F31", format!("byte {after}"));
}

#[test]
fn a_header_that_is_not_json_is_refused_at_its_byte() {
    let header = "{\n\"w\": nothing}";
    assert_refused_as!(
        read_safetensors(file(header, &[])),
        Error::BadContainer { .. },
        "header at byte 16",
        "expected"
    );
    let utf8 = [&11u64.to_le_bytes()[..], b"{\"w\xff\":null}"].concat();
    assert_refused_as!(read_safetensors(utf8), Error::BadContainer { .. }, "header at byte");
    let deep = file(&format!("{{\"w\":{}", "[".repeat(100_000)), &[]);
    assert_refused_as!(read_safetensors(deep), Error::BadContainer { .. }, "header at byte");
}

#[test]
fn another_format_is_refused_by_name() {
    let html = b"<!DOCTYPE html><html></html>";
    assert_refused!(
        read_safetensors(*html),
        FormatError::WrongMagic { .. },
        "a web page",
        "a safetensors file"
    );
}

#[test]
fn a_file_cut_anywhere_is_truncated() {
    let whole = one("F32", "[1]", 0, 4);
    for len in 0..whole.len() {
        assert_refused!(read_safetensors(&whole[..len]), FormatError::Truncated { .. }, "truncated", "byte");
    }
    read_safetensors(whole).unwrap();
}

#[test]
fn a_header_length_past_the_file_is_truncated() {
    for len in [100u64, u64::MAX] {
        let bytes = [&len.to_le_bytes(), b"{}".as_slice()].concat();
        assert_refused!(
            read_safetensors(bytes),
            FormatError::Truncated { .. },
            "the header at byte 8",
            len.to_string()
        );
    }
}

#[test]
fn data_of_another_length_than_shape_and_type_ask_for_is_refused() {
    for (shape, start, end) in [("[2]", 0, 4), ("[]", 0, 3), ("[1]", 0, 0)] {
        let refused = read_safetensors(one("F32", shape, start, end));
        let found = format!("{start} to {end}");
        assert_refused!(
            refused,
            FormatError::BadTensor { .. },
            "tensor 'w'",
            "byte",
            found,
            "bytes, the size of its shape"
        );
    }
}

#[test]
fn shapes_whose_size_overflows_are_refused() {
    for shape in ["[4294967296,4294967296]", "[4611686018427387904]"] {
        let refused = read_safetensors(one("F32", shape, 0, 4));
        assert_refused!(refused, FormatError::BadTensor { .. }, "tensor 'w'", "byte", "too large");
    }
}

#[test]
fn holes_and_overlaps_between_tensors_are_refused() {
    for start in [1, 3] {
        let header =
            format!("{{{},{}}}", entry("v", "U8", "[2]", 0, 2), entry("w", "U8", "[2]", start, start + 2));
        let refused = read_safetensors(file(&header, &[0; 5]));
        let at = format!("byte {}", 8 + header.len() as u64 + start);
        assert_refused!(
            refused,
            FormatError::BadTensor { .. },
            "tensor 'w'",
            at,
            "the end of the previous tensor"
        );
    }
    let backwards = read_safetensors(one("F32", "[1]", 4, 0));
    assert_refused!(backwards, FormatError::BadTensor { .. }, "tensor 'w'");
}

#[test]
fn a_tensor_that_reaches_past_the_file_is_refused() {
    let refused = read_safetensors(one("F32", "[2]", 0, 8));
    assert_refused!(refused, FormatError::Truncated { .. }, "tensor 'w'", "needs 8 bytes", "4 left");
}

#[test]
fn ranges_that_together_overflow_are_refused() {
    let step = (1u64 << 61) - 1;
    let entries: Vec<String> = (0..8)
        .map(|i| entry(&format!("w{i}"), "U8", &format!("[{step}]"), i * step, (i + 1) * step))
        .collect();
    let refused = read_safetensors(file(&format!("{{{}}}", entries.join(",")), &[]));
    assert_refused!(refused, FormatError::Truncated { .. }, "tensor 'w0'");
}

#[test]
fn a_name_that_two_tensors_have_is_refused() {
    let header = format!("{{{},{}}}", entry("w", "U8", "[2]", 0, 2), entry("w", "U8", "[2]", 2, 4));
    let at = format!("byte {}", 8 + header.len() + 2);
    assert_refused!(
        read_safetensors(file(&header, &[0; 4])),
        FormatError::Duplicate { .. },
        "second tensor 'w'",
        at
    );
    let twice = r#"{"__metadata__":{},"__metadata__":{}}"#;
    assert_refused_as!(read_safetensors(file(twice, &[])), Error::BadContainer { .. }, "__metadata__");
}

#[test]
fn bytes_after_the_last_tensor_are_refused() {
    let mut bytes = one("F32", "[1]", 0, 4);
    let end = format!("byte {}", bytes.len());
    bytes.extend(b"tail");
    assert_refused!(read_safetensors(bytes), FormatError::BadBytes { .. }, end, "4 more bytes");
}
