//! GGUF files with one thing wrong: each is refused, and the message says what and where.

use xcheck::error::FormatError;

use super::builder::{F32, FIRST_KEY, GgufBuilder, Q8_0, array, describe, string, text, u32, value};
use super::{assert_refused, read_gguf};

// ---- the first bytes --------------------------------------------------------------------------------

#[test]
fn a_file_of_another_format_is_refused_by_name() {
    let bytes = b"\x02\0\0\0\0\0\0\0{}".to_vec();
    assert_refused!(
        read_gguf(bytes),
        FormatError::WrongMagic { .. },
        "a safetensors file",
        "expected a GGUF file"
    );
    let mut builder = GgufBuilder::sample();
    builder.magic = *b"XXXX";
    assert_refused!(read_gguf(builder.build()), FormatError::WrongMagic { .. }, "58 58 58 58", "byte 0");
}

#[test]
fn a_big_endian_file_is_refused_with_the_command_that_converts_it() {
    let mut builder = GgufBuilder::sample();
    builder.version = 3u32.to_be_bytes();
    assert_refused!(
        read_gguf(builder.build()),
        FormatError::BigEndian { .. },
        "byte 4",
        "gguf-convert-endian hostile.file little"
    );
}

#[test]
fn versions_other_than_2_and_3_are_refused() {
    for (version, hint) in
        [(0, "GGUF again"), (1, "GGUF again"), (4, "newer xcheck"), (70_000, "newer xcheck")]
    {
        assert_refused!(
            read_gguf(GgufBuilder::sample().version(version).build()),
            FormatError::UnsupportedVersion { .. },
            format!("version {version} at byte 4"),
            "2 or 3",
            hint
        );
    }
}

// ---- lengths and counts -----------------------------------------------------------------------------

#[test]
fn a_file_cut_anywhere_is_truncated() {
    let whole = GgufBuilder::sample().build();
    for len in 0..whole.len() {
        assert_refused!(read_gguf(&whole[..len]), FormatError::Truncated { .. }, "truncated", "byte");
    }
    read_gguf(whole).unwrap();
}

#[test]
fn counts_that_the_rest_of_the_file_cannot_hold_are_refused() {
    for count in [1000, u64::from(u32::MAX), u64::MAX] {
        let mut builder = GgufBuilder::sample();
        builder.tensor_count = Some(count);
        let list = format!("list of {count} tensors at byte 16");
        assert_refused!(read_gguf(builder.build()), FormatError::Truncated { .. }, list);

        let mut builder = GgufBuilder::sample();
        builder.key_count = Some(count);
        let list = format!("list of {count} metadata keys at byte 24");
        assert_refused!(read_gguf(builder.build()), FormatError::Truncated { .. }, list);
    }
}

#[test]
fn array_counts_that_the_rest_of_the_file_cannot_hold_are_refused() {
    let at = FIRST_KEY + 8 + 1 + 4 + 4 + 8;
    for element_type in [0, 6, 7, 8, 12] {
        let bytes = GgufBuilder::new().key("k", array(element_type, 1 << 61, &[0; 64])).build();
        let list = format!("list of 2305843009213693952 elements of 'k' at byte {at}");
        assert_refused!(read_gguf(bytes), FormatError::Truncated { .. }, list);
    }
}

#[test]
fn strings_that_end_past_the_file_are_refused() {
    let long = |len: u64| [&len.to_le_bytes(), b"abc".as_slice()].concat();
    for len in [100, u64::MAX] {
        let key = GgufBuilder::new().raw_key([long(len), vec![0; 32]].concat()).build();
        assert_refused!(
            read_gguf(key),
            FormatError::Truncated { .. },
            "metadata key 0 at byte 32",
            len.to_string()
        );
        let content = GgufBuilder::new().key("k", value(8, &long(len))).build();
        assert_refused!(
            read_gguf(content),
            FormatError::Truncated { .. },
            "value of 'k' at byte 45",
            len.to_string()
        );
        let name = GgufBuilder::new().described([long(len), vec![0; 32]].concat()).build();
        assert_refused!(
            read_gguf(name),
            FormatError::Truncated { .. },
            "name of tensor 0 at byte 32",
            len.to_string()
        );
    }
}

// ---- metadata ---------------------------------------------------------------------------------------

#[test]
fn text_that_is_not_utf_8_is_refused_at_its_first_bad_byte() {
    let bad = text(b"ab\xffd");
    let key = GgufBuilder::new().raw_key([bad.clone(), u32(1)].concat()).build();
    assert_refused!(
        read_gguf(key),
        FormatError::BadBytes { offset: 34, .. },
        "metadata key 0",
        "byte 34",
        "UTF-8"
    );
    let content = GgufBuilder::new().key("k", value(8, &bad)).build();
    assert_refused!(
        read_gguf(content),
        FormatError::BadBytes { offset: 47, .. },
        "value of 'k'",
        "byte 47",
        "UTF-8"
    );
    let element = GgufBuilder::new().key("k", array(8, 1, &bad)).build();
    assert_refused!(read_gguf(element), FormatError::BadBytes { .. }, "string 0 of 'k'", "UTF-8");
    let name = GgufBuilder::new().described([bad, vec![0; 64]].concat()).build();
    assert_refused!(read_gguf(name), FormatError::BadBytes { offset: 34, .. }, "name of tensor 0", "UTF-8");
}

#[test]
fn value_types_that_do_not_exist_are_refused() {
    for id in [13, u32::MAX] {
        let bytes = GgufBuilder::new().key("k", value(id, &[0; 8])).build();
        assert_refused!(
            read_gguf(bytes),
            FormatError::BadBytes { offset: 33, .. },
            "value type of 'k'",
            id.to_string()
        );
        let bytes = GgufBuilder::new().key("k", array(id, 0, &[])).build();
        assert_refused!(
            read_gguf(bytes),
            FormatError::BadBytes { offset: 37, .. },
            "element type",
            id.to_string()
        );
    }
}

#[test]
fn arrays_of_arrays_are_refused() {
    let inner = [&4u32.to_le_bytes()[..], &0u64.to_le_bytes()].concat();
    let bytes = GgufBuilder::new().key("k", array(9, 1, &inner)).build();
    assert_refused!(
        read_gguf(bytes),
        FormatError::BadBytes { .. },
        "element type of 'k' is 9",
        "arrays of arrays"
    );
}

#[test]
fn a_bool_that_is_neither_0_nor_1_is_refused() {
    let bytes = GgufBuilder::new().key("k", value(7, &[2])).build();
    assert_refused!(read_gguf(bytes), FormatError::BadBytes { offset: 37, .. }, "bool of 'k' is 2", "0 or 1");
    let bytes = GgufBuilder::new().key("k", array(7, 2, &[1, 255])).build();
    assert_refused!(read_gguf(bytes), FormatError::BadBytes { .. }, "bool of 'k' is 255");
}

#[test]
fn a_key_that_stands_there_twice_is_refused() {
    let bytes = GgufBuilder::new().key("k", u32(1)).key("other", u32(1)).key("k", u32(1)).build();
    let second = FIRST_KEY + (8 + 1 + 8) + (8 + 5 + 8);
    assert_refused!(
        read_gguf(bytes),
        FormatError::Duplicate { kind: "key", .. },
        format!("byte {second}"),
        "second key 'k'"
    );
}

#[test]
fn an_alignment_that_is_no_u32_or_no_power_of_two_is_refused() {
    let aligned = |value| GgufBuilder::new().key("general.alignment", value).build();
    for (value, found) in [
        (u32(0), "0 (u32)"),
        (u32(48), "48 (u32)"),
        (value(10, &32u64.to_le_bytes()), "32 (u64)"),
        (string("32"), "\"32\" (string)"),
    ] {
        let at = format!("byte {}", FIRST_KEY + 8 + "general.alignment".len());
        assert_refused!(
            read_gguf(aligned(value)),
            FormatError::BadBytes { .. },
            at,
            "general.alignment",
            found,
            "power of two"
        );
    }
}

#[test]
fn names_with_control_characters_make_a_message_of_one_line() {
    let bytes = GgufBuilder::new().key("a\n\x1b[31m", value(13, &[])).build();
    assert_refused!(read_gguf(bytes), FormatError::BadBytes { .. }, "'a\\n\\u{1b}[31m'");
}

// ---- tensor descriptions ----------------------------------------------------------------------------

/// A file with room for data and one tensor "w", described like this.
fn described(description: Vec<u8>) -> Vec<u8> {
    let mut bytes = GgufBuilder::new().described(description).build();
    bytes.extend([0; 256]);
    bytes
}

/// Where the fields of that tensor start.
const DIMENSION_COUNT: usize = FIRST_KEY + 8 + 1;
const DIMENSIONS: usize = DIMENSION_COUNT + 4;

#[test]
fn a_tensor_without_dimensions_or_with_more_than_four_is_refused() {
    for dimensions in [vec![], vec![1; 5]] {
        assert_refused!(
            read_gguf(described(describe("w", &dimensions, F32, 0))),
            FormatError::BadTensor { .. },
            "tensor 'w'",
            format!("byte {DIMENSION_COUNT}"),
            format!("dimension count is {}", dimensions.len()),
            "1 to 4"
        );
    }
}

#[test]
fn a_dimension_of_zero_is_refused() {
    let bytes = described(describe("w", &[8, 0, 2], F32, 0));
    let at = format!("byte {}", DIMENSIONS + 8);
    assert_refused!(read_gguf(bytes), FormatError::BadTensor { .. }, "tensor 'w'", at, "dimension is 0");
}

#[test]
fn shapes_whose_size_overflows_are_refused() {
    for (dimensions, type_id) in [([1 << 32, 1 << 32], F32), ([1 << 62, 1], F32), ([1 << 60, 32], Q8_0)] {
        assert_refused!(
            read_gguf(described(describe("w", &dimensions, type_id, 0))),
            FormatError::BadTensor { .. },
            "tensor 'w'",
            format!("byte {DIMENSION_COUNT}"),
            "memory"
        );
    }
}

#[test]
fn a_row_that_ends_inside_a_block_is_refused() {
    let bytes = described(describe("w", &[16, 2], Q8_0, 0));
    assert_refused!(
        read_gguf(bytes),
        FormatError::BadTensor { .. },
        "tensor 'w'",
        format!("byte {DIMENSION_COUNT}"),
        "row length is 16",
        "multiple of 32",
        "q8_0"
    );
}

#[test]
fn types_that_ggml_removed_or_that_are_too_new_are_refused_by_name() {
    for (id, name, hint) in [
        (4, "Q4_2", "quantize"),
        (5, "Q4_3", "quantize"),
        (31, "Q4_0_4_4", "quantize"),
        (32, "Q4_0_4_8", "quantize"),
        (33, "Q4_0_8_8", "quantize"),
        (36, "IQ4_NL_4_4", "quantize"),
        (37, "IQ4_NL_4_8", "quantize"),
        (38, "IQ4_NL_8_8", "quantize"),
    ] {
        assert_refused!(
            read_gguf(described(describe("w", &[256], id, 0))),
            FormatError::RefusedTensorType { .. },
            "tensor 'w'",
            format!("byte {}", DIMENSIONS + 8),
            name,
            hint
        );
    }
}

#[test]
fn type_ids_that_ggml_never_gave_out_are_refused() {
    for id in [43, 1000, u32::MAX] {
        assert_refused!(
            read_gguf(described(describe("w", &[256], id, 0))),
            FormatError::UnknownTensorType { .. },
            "tensor 'w'",
            format!("byte {}", DIMENSIONS + 8),
            id.to_string()
        );
    }
}

#[test]
fn a_name_that_two_tensors_have_is_refused() {
    let twins =
        GgufBuilder::new().tensor("w", &[1], F32, 4).tensor("x", &[1], F32, 4).tensor("w", &[1], F32, 4);
    let second = FIRST_KEY + 2 * describe("w", &[1], F32, 0).len();
    assert_refused!(
        read_gguf(twins.build()),
        FormatError::Duplicate { kind: "tensor", .. },
        format!("byte {second}"),
        "second tensor 'w'"
    );
}

// ---- tensor data ------------------------------------------------------------------------------------

#[test]
fn an_offset_that_is_not_aligned_is_refused() {
    let offset_at = |first_key: usize| format!("byte {}", first_key + 8 + 1 + 4 + 8 + 4);
    let bytes = described(describe("w", &[1], F32, 4));
    let at = offset_at(FIRST_KEY);
    assert_refused!(
        read_gguf(bytes),
        FormatError::BadTensor { .. },
        "tensor 'w'",
        at,
        "data offset is 4",
        "alignment, 32"
    );

    let aligned = GgufBuilder::new().aligned(64);
    let at = offset_at(aligned.header().len());
    let bytes = aligned.described(describe("w", &[1], F32, 32)).build();
    assert_refused!(
        read_gguf(bytes),
        FormatError::BadTensor { .. },
        "tensor 'w'",
        at,
        "data offset is 32",
        "64"
    );
}

#[test]
fn a_tensor_that_reaches_past_the_file_is_refused() {
    let data_start = described(describe("w", &[8], F32, 0)).len() - 256;
    let at = |offset| format!("tensor 'w' at byte {}", data_start + offset);
    let inside = read_gguf(described(describe("w", &[64], F32, 0))).unwrap();
    assert_eq!(inside.tensors.len(), 1);
    let too_long = read_gguf(described(describe("w", &[65], F32, 0)));
    assert_refused!(too_long, FormatError::Truncated { .. }, at(0), "needs 260 bytes", "256 left");
    let too_late = read_gguf(described(describe("w", &[8], F32, 256)));
    assert_refused!(too_late, FormatError::Truncated { .. }, at(256), "0 left");
}

#[test]
fn offsets_that_overflow_are_refused() {
    let largest = u64::MAX - 31;
    for dimensions in [vec![8], vec![1 << 61]] {
        let bytes = described(describe("w", &dimensions, F32, largest));
        assert_refused!(read_gguf(bytes), FormatError::Truncated { .. }, "tensor 'w'", "0 left");
    }
}

#[test]
fn tensors_that_overlap_are_refused() {
    let first = describe("first", &[16], F32, 0);
    let second = describe("second", &[8], F32, 32);
    for descriptions in [[&first, &second], [&second, &first]] {
        let builder =
            GgufBuilder::new().described(descriptions[0].clone()).described(descriptions[1].clone());
        let at = builder.data_start() + 32;
        let mut bytes = builder.build();
        bytes.extend([0; 64]);
        assert_refused!(
            read_gguf(bytes),
            FormatError::OverlappingTensors { .. },
            "tensor 'second' overlaps tensor 'first'",
            format!("byte {at}")
        );
    }
}

#[test]
fn a_tensor_inside_another_is_refused_even_if_a_third_lies_between_their_starts() {
    let builder = GgufBuilder::new()
        .described(describe("large", &[32], F32, 0))
        .described(describe("inner", &[8], F32, 96))
        .described(describe("after", &[8], F32, 128));
    let mut bytes = builder.build();
    bytes.extend([0; 160]);
    assert_refused!(
        read_gguf(bytes),
        FormatError::OverlappingTensors { .. },
        "'inner' overlaps tensor 'large'"
    );
}
