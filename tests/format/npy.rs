//! NumPy arrays: every plain type, and everything that is refused.

use half::{bf16, f16};
use npyz::WriterBuilder;
use xcheck::error::FormatError;
use xcheck::format::npy;
use xcheck::view::View;
use xcheck::weight::{DType, StoredTensor};

use super::{assert_refused, read_npy, source};

/// An array as `numpy.save` writes it, version 1.0.
fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    headed(&format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"), data)
}

fn values(array: &StoredTensor) -> Vec<f64> {
    View::stored(&array.shape, array.dtype, array.data.clone()).expect("plain numbers").to_vec()
}

fn headed(dict: &str, data: &[u8]) -> Vec<u8> {
    let len = (10 + dict.len() + 1).next_multiple_of(64) - 10;
    let mut bytes = b"\x93NUMPY\x01\0".to_vec();
    bytes.extend((len as u16).to_le_bytes());
    bytes.extend(format!("{dict:<width$}\n", width = len - 1).bytes());
    bytes.extend(data);
    bytes
}

/// Type, shape and values of a little-endian vector.
fn read(descr: &str, len: usize, data: &[u8]) -> (DType, Vec<f64>) {
    let array = read_npy(npy(&format!("'{descr}'"), &format!("({len},)"), data)).unwrap();
    assert_eq!(array.shape, [len]);
    (array.dtype, values(&array))
}

#[test]
fn every_plain_type_reads_back_as_written() {
    assert_eq!(read("<f8", 1, &1e-300f64.to_le_bytes()), (DType::F64, vec![1e-300]));
    assert_eq!(
        read("<f4", 2, &[0.1f32, -0.0].map(f32::to_le_bytes).concat()),
        (DType::F32, vec![f64::from(0.1f32), -0.0])
    );
    assert_eq!(read("<f2", 1, &f16::from_f32(0.1).to_le_bytes()), (DType::F16, vec![0.0999755859375]));
    assert_eq!(read("<u8", 1, &(1u64 << 53).to_le_bytes()), (DType::U64, vec![9007199254740992.0]));
    assert_eq!(read("<u4", 1, &u32::MAX.to_le_bytes()), (DType::U32, vec![4294967295.0]));
    assert_eq!(read("<u2", 1, &u16::MAX.to_le_bytes()), (DType::U16, vec![65535.0]));
    assert_eq!(read("|u1", 1, &[255]), (DType::U8, vec![255.0]));
    assert_eq!(read("<i8", 1, &(-5i64).to_le_bytes()), (DType::I64, vec![-5.0]));
    assert_eq!(read("<i4", 1, &i32::MIN.to_le_bytes()), (DType::I32, vec![-2147483648.0]));
    assert_eq!(read("<i2", 1, &i16::MIN.to_le_bytes()), (DType::I16, vec![-32768.0]));
    assert_eq!(read("|i1", 1, &[255]), (DType::I8, vec![-1.0]));
    assert_eq!(read("|b1", 2, &[0, 1]), (DType::BOOL, vec![0.0, 1.0]));
}

#[test]
fn two_byte_integers_are_bf16_where_the_caller_says_so() {
    let bytes = npy("'<u2'", "(2,)", &[bf16::from_f32(0.1), bf16::INFINITY].map(bf16::to_le_bytes).concat());
    let array = npy::read(&source(bytes), Some(DType::BF16)).unwrap();
    assert_eq!(array.dtype, DType::BF16);
    assert_eq!(values(&array), [0.10009765625, f64::INFINITY]);
}

#[test]
fn every_f16_number_widens_to_exactly_its_value() {
    for bits in 0..=u16::MAX {
        let widened =
            |dtype| View::stored(&[1], dtype, bits.to_le_bytes().to_vec()).expect("two bytes").get(0);
        let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
        let (half_value, brain_value) = (widened(DType::F16), widened(DType::BF16));
        assert!(half_value.is_nan() == half.is_nan() && (half.is_nan() || f16::from_f64(half_value) == half));
        assert!(
            brain_value.is_nan() == brain.is_nan()
                && (brain.is_nan() || bf16::from_f64(brain_value) == brain)
        );
    }
}

#[test]
fn shapes_may_have_any_number_of_axes() {
    let shape =
        |shape: &str, elements: usize| read_npy(npy("'|u1'", shape, &vec![0; elements])).unwrap().shape;
    assert!(shape("()", 1).is_empty());
    assert_eq!(shape("(3,)", 3), [3]);
    assert_eq!(shape("(2, 3)", 6), [2, 3]);
    assert_eq!(shape("(1, 2, 3, 4)", 24), [1, 2, 3, 4]);
    assert_eq!(shape("(0, 7)", 0), [0, 7]);
}

#[test]
fn what_npyz_writes_is_read() {
    let mut bytes = Vec::new();
    let options = npyz::WriteOptions::new().default_dtype().shape(&[3, 1]).writer(&mut bytes);
    let mut writer = options.begin_nd().unwrap();
    writer.extend([1.5f32, 2.5, -1.0]).unwrap();
    writer.finish().unwrap();
    let array = read_npy(bytes).unwrap();
    assert_eq!((array.dtype, &array.shape[..]), (DType::F32, &[3, 1][..]));
    assert_eq!(values(&array), [1.5, 2.5, -1.0]);
}

/// What NumPy's own format document says, read by another's code.
#[test]
fn what_is_written_is_read_by_npyz() {
    for (shape, elements) in [(&[][..], 1), (&[3], 3), (&[2, 3], 6), (&[1, 2, 3], 6)] {
        let data: Vec<f32> = (0..elements).map(|value| value as f32 / 3.0).collect();
        let lengths: Vec<u64> = shape.iter().map(|&length| length as u64).collect();
        let mut theirs = Vec::new();
        let mut writer =
            npyz::WriteOptions::new().default_dtype().shape(&lengths).writer(&mut theirs).begin_nd().unwrap();
        writer.extend(data.iter().copied()).unwrap();
        writer.finish().unwrap();
        let mut ours = npy::header(DType::F32, shape).unwrap();
        ours.extend(data.iter().flat_map(|value| value.to_le_bytes()));
        assert_eq!(ours.len() % 64, (elements * 4) % 64);
        let read = npyz::NpyFile::new(&ours[..]).unwrap();
        assert_eq!(read.shape(), lengths);
        assert_eq!(read.into_vec::<f32>().unwrap(), data);
        assert_eq!(values(&read_npy(ours).unwrap()), values(&read_npy(theirs).unwrap()));
    }
    assert!(npy::header(DType::BF16, &[1]).is_none());
}

#[test]
fn all_three_header_versions_are_read() {
    let bytes = npy("'|u1'", "(3,)", &[1, 2, 3]);
    for major in [2, 3] {
        let mut long = bytes[..6].to_vec();
        long.extend([major, 0, bytes[8], bytes[9], 0, 0]);
        long.extend(&bytes[10..]);
        assert_eq!(read_npy(long).unwrap().data[..], [1, 2, 3]);
    }
}

/// Asserts that some bytes of the file were refused, in a message with these parts.
fn refuses(bytes: Vec<u8>, parts: [&str; 2]) {
    assert_refused!(read_npy(bytes), FormatError::BadBytes { .. }, "byte", parts[0], parts[1]);
}

#[test]
fn python_objects_are_refused_because_loading_them_would_run_code() {
    refuses(npy("'|O'", "(1,)", b"\x80\x04cos\nsystem\n."), ["'|O' (Python objects", "pickle"]);
}

#[test]
fn types_that_are_no_plain_numbers_are_refused() {
    refuses(npy("[('x', '<f4'), ('y', '<f4')]", "(1,)", &[0; 8]), ["a structured type", "astype"]);
    refuses(
        npy("[('shape', '<f4'), ('fortran_order', '<f4')]", "(1,)", &[0; 8]),
        ["a structured type", "astype"],
    );
    refuses(npy("'<U3'", "(1,)", &[0; 12]), ["'<U3' (text)", "astype"]);
    refuses(npy("'|S3'", "(1,)", &[0; 3]), ["'|S3' (text)", "astype"]);
    refuses(npy("'<c8'", "(1,)", &[0; 8]), ["'<c8'", "astype"]);
    refuses(npy("'<M8[s]'", "(1,)", &[0; 8]), ["'<M8[s]'", "astype"]);
    refuses(npy("'<f16'", "(1,)", &[0; 16]), ["'<f16'", "astype"]);
    refuses(npy("'|V2'", "(1,)", &[0; 2]), ["'|V2'", "view('<u2')"]);
    refuses(npy("'float'", "(1,)", &[0; 8]), ["an unknown type", "astype"]);
}

#[test]
fn big_endian_numbers_are_refused() {
    refuses(npy("'>f4'", "(1,)", &[0; 4]), ["'>f4' (big-endian)", "astype('<f4')"]);
}

#[test]
fn fortran_order_is_refused_with_the_way_out() {
    let dict = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }";
    refuses(headed(dict, &[0; 16]), ["fortran_order", "np.ascontiguousarray"]);
}

#[test]
fn headers_that_are_no_dict_of_the_three_entries_are_refused() {
    for dict in [
        "",
        "(1, 2)",
        "{'descr': '<f4'}",
        "{'fortran_order': False, 'shape': (1,), }",
        "{'descr' '<f4', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), ",
        "{'descr': '\u{e9}', 'fortran_order': False, 'shape': (1,), }\n}}x",
    ] {
        refuses(headed(dict, &[0; 4]), ["byte 10", "numpy.save"]);
    }
}

#[test]
fn a_header_of_nested_brackets_is_refused_at_once() {
    refuses(npy(&"[".repeat(50_000), "(1,)", &[]), ["a structured type", "astype"]);
    refuses(npy("'<f4'", &"(".repeat(50_000), &[]), ["shape", "tuple"]);
}

#[test]
fn shapes_that_are_none_or_overflow_are_refused() {
    for shape in ["3", "(3", "(3,,)", "(-1,)", "(1.5,)", "(,)", "[3]"] {
        refuses(npy("'<f4'", shape, &[0; 12]), ["byte 10", "shape"]);
    }
    refuses(npy("'|u1'", &format!("({})", "1,".repeat(65)), &[0]), ["shape", "at most 64"]);
    let large = ["(4294967296, 4294967296)", "(18446744073709551616,)", "(4611686018427387904,)"];
    for shape in large {
        refuses(npy("'<f4'", shape, &[]), ["shape", "memory"]);
    }
}

#[test]
fn a_shape_that_asks_for_more_than_the_file_has_is_truncated() {
    let bytes = npy("'<f4'", "(1000, 1000)", &[0; 16]);
    let at = format!("at byte {}", bytes.len() - 16);
    assert_refused!(
        read_npy(bytes),
        FormatError::Truncated { .. },
        "[1000, 1000] of f32",
        at,
        "4000000",
        "16 left"
    );
}

#[test]
fn an_array_cut_anywhere_is_refused() {
    let whole = npy("'<f4'", "(4,)", &[0; 16]);
    for len in 0..whole.len() {
        assert_refused!(read_npy(&whole[..len]), FormatError::Truncated { .. }, "truncated", "byte");
    }
}

#[test]
fn bytes_after_the_array_are_refused() {
    let mut bytes = npy("'<f4'", "(4,)", &[0; 16]);
    let end = format!("byte {}", bytes.len());
    bytes.extend(b"tail");
    refuses(bytes, [&end, "4 more bytes"]);
}

#[test]
fn another_format_and_an_unknown_version_are_refused() {
    assert_refused!(
        read_npy(*b"GGUF\x03\0\0\0"),
        FormatError::WrongMagic { .. },
        "a GGUF file",
        "a NumPy array"
    );
    refuses(b"\x93NUMPY\x04\0\x10\0".to_vec(), ["byte 6", "4.0"]);
}

#[test]
fn a_header_length_of_four_gigabytes_allocates_nothing() {
    let bytes = source(*b"\x93NUMPY\x02\0\xff\xff\xff\xff{");
    let (result, peak) = super::memory::peak_of(|| npy::read(&bytes, None));
    assert_refused!(result, FormatError::Truncated { .. }, "the header", "4294967295");
    assert!(peak < 1000, "{peak}");
}
