//! llama2.c's headers: what is read, and what is refused before anything is allocated.

use std::path::Path;

use xcheck::error::{FormatError, Result};
use xcheck::format::{FileBytes, Format, Llama2cFile};
use xcheck::weight::DType;

use super::memory::peak_of;
use super::{assert_refused, detect_format, source};

const MAGIC: u32 = 0x616b_3432;

/// dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len
const SIZES: [i32; 7] = [8, 12, 2, 2, 1, 5, 3];
const FIELDS: [&str; 7] = ["dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len"];
/// Elements of all matrices with the embedding, and of all norms.
const MATRICES: usize = 5 * 8 + 2 * (8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 8 * 12);
const NORMS: usize = 5 * 8;

fn read(bytes: Vec<u8>) -> Result<Llama2cFile> {
    Llama2cFile::read(&source(bytes))
}

fn numbers(sizes: [i32; 7]) -> Vec<u8> {
    sizes.iter().flat_map(|size| size.to_le_bytes()).collect()
}

fn version_0(sizes: [i32; 7], floats: usize) -> Vec<u8> {
    [numbers(sizes), vec![0; 4 * floats]].concat()
}

fn later(version: u32, sizes: [i32; 7], shared: u8, group: i32, weights: usize) -> Vec<u8> {
    let start = [&MAGIC.to_le_bytes()[..], &version.to_le_bytes(), &numbers(sizes), &[shared]].concat();
    let mut bytes = [start, group.to_le_bytes().to_vec()].concat();
    bytes.resize(256 + weights, 0);
    bytes
}

fn with(index: usize, value: i32) -> [i32; 7] {
    let mut sizes = SIZES;
    sizes[index] = value;
    sizes
}

#[test]
fn all_versions_are_read_and_told_by_their_content() {
    let tables = 3 * 4;
    let files = [
        version_0(SIZES, MATRICES + NORMS + tables),
        version_0(with(5, -5), MATRICES + NORMS + tables + 40),
        later(1, SIZES, 1, 0, 4 * (MATRICES + NORMS)),
        later(1, SIZES, 0, 0, 4 * (MATRICES + NORMS + 40)),
        later(2, SIZES, 1, 4, 4 * NORMS + MATRICES + MATRICES),
        later(2, SIZES, 0, 2, 4 * NORMS + (MATRICES + 40) * 3),
    ];
    let expected = [(0, true), (0, false), (1, true), (1, false), (2, true), (2, false)];
    for (bytes, (version, shared)) in files.into_iter().zip(expected) {
        assert_eq!(detect_format(bytes.clone()).unwrap(), Format::Llama2c);
        let file = read(bytes).unwrap();
        assert_eq!((file.header.version, file.header.shared_classifier), (version, shared));
        assert_eq!(file.tensors.get("output.weight").is_some(), !shared);
        assert_eq!(file.tensors.get("blk.1.attn_k.weight").unwrap().shape, [4, 8]);
        let dtype = if version == 2 { DType::INT8_GROUPS } else { DType::F32 };
        assert_eq!(file.tensors.get("blk.0.ffn_down.weight").unwrap().dtype, dtype);
    }
}

#[test]
fn a_file_that_is_not_exactly_as_long_as_its_header_says_is_refused() {
    let whole = version_0(SIZES, MATRICES + NORMS + 12);
    assert_refused!(
        read(whole[..whole.len() - 1].to_vec()),
        FormatError::Truncated { .. },
        "version 0",
        "byte 28",
        "dim 8"
    );
    let longer = [whole, vec![0; 3]].concat();
    assert_refused!(
        read(longer),
        FormatError::BadBytes { .. },
        "followed by 3 more bytes",
        "the end of the file"
    );
}

#[test]
fn a_file_without_the_rope_tables_is_told_so() {
    let bytes = version_0(SIZES, MATRICES + NORMS);
    assert_refused!(read(bytes), FormatError::Truncated { .. }, "without the two RoPE tables");
}

#[test]
fn sizes_that_no_model_has_are_refused_by_name_and_byte() {
    for (index, field) in FIELDS.into_iter().enumerate() {
        for value in [0, -1, i32::MIN, i32::MAX] {
            let bytes = later(1, with(index, value), 1, 0, 100);
            assert_refused!(
                read(bytes),
                FormatError::BadBytes { .. },
                field,
                format!("byte {}", 8 + 4 * index),
                "1 to"
            );
        }
    }
    assert_refused!(
        read(later(1, with(3, 3), 1, 0, 100)),
        FormatError::BadBytes { .. },
        "n_heads",
        "divisor of dim, 8"
    );
    assert_refused!(read(later(1, with(3, 8), 1, 0, 100)), FormatError::BadBytes { .. }, "n_heads", "pairs");
    assert_refused!(
        read(later(1, with(4, 3), 1, 0, 100)),
        FormatError::BadBytes { .. },
        "n_kv_heads",
        "divisor of n_heads"
    );
    assert_refused!(
        read(version_0(with(5, i32::MIN), 100)),
        FormatError::BadBytes { .. },
        "vocab_size",
        "byte 20"
    );
}

#[test]
fn flags_groups_and_versions_that_are_not_known_are_refused() {
    assert_refused!(
        read(later(1, SIZES, 2, 0, 100)),
        FormatError::BadBytes { .. },
        "shared_classifier",
        "byte 36",
        "0 or 1"
    );
    for group in [0, -4, 3, 8, 24, i32::MAX] {
        let bytes = later(2, SIZES, 1, group, 100);
        assert_refused!(
            read(bytes),
            FormatError::BadBytes { .. },
            "group_size",
            "byte 37",
            "hidden_dim (12)",
            "runq.c"
        );
    }
    for version in [0, 3, u32::MAX] {
        assert_refused!(
            read(later(version, SIZES, 1, 4, 100)),
            FormatError::UnsupportedVersion { .. },
            "version",
            "0, 1 or 2"
        );
    }
}

#[test]
fn a_header_cut_short_is_refused() {
    let whole = later(2, SIZES, 1, 4, 0);
    for len in [4, 7, 20, 35, 36, 40] {
        assert_refused!(read(whole[..len].to_vec()), FormatError::Truncated { .. }, "truncated");
    }
    assert_refused!(read(whole[..100].to_vec()), FormatError::Truncated { .. }, "truncated");
    assert!(detect_format(numbers(SIZES)[..27].to_vec()).is_err(), "too short to be told");
}

#[test]
fn a_hostile_header_allocates_nothing() {
    let largest = 1 << 24;
    let sizes = [largest, largest, largest, largest / 2, 1, largest, largest];
    for bytes in [version_0(sizes, 10), later(1, sizes, 0, 0, 40), later(2, sizes, 0, 1, 40)] {
        let file = source(bytes);
        let (result, peak) = peak_of(|| Llama2cFile::read(&file));
        assert_refused!(result, FormatError::BadBytes { .. }, "n_layers", "1 to 4096");
        assert!(peak < 10_000, "{peak} bytes");
    }
}

#[test]
fn files_of_every_version_are_told_by_their_content() {
    for file in [
        "checkpoints/tiny-llama2c/tiny-llama2c-v0",
        "tests/data/llama2c/tiny-llama2c-v1",
        "checkpoints/tiny-llama2c/tiny-llama2c-v2",
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file).with_extension("bin");
        assert_eq!(Format::detect(&FileBytes::open(&path).unwrap()).unwrap(), Format::Llama2c);
    }
}
