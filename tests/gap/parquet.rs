//! Parquet files of real writers are read like JSONL files with the same values; others are refused.
//!
//! `tests/data/gap/parquet` is made by `reference-scripts/gap/make_parquet.py`, with pyarrow, pandas, polars and DuckDB.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use xcheck::gap::{PolicySide, RecordSource};

use super::data;
use crate::common::terminal::Terminal;

const PARQUET_FILES: [&str; 9] = [
    "pandas",
    "pyarrow-snappy",
    "pyarrow-zstd-v2",
    "pyarrow-gzip-plain",
    "pyarrow-lz4-pages",
    "pyarrow-none-v2",
    "polars",
    "polars-lz4-pages",
    "duckdb-v2",
];

/// All sequences of a file, as text.
fn sequences(path: &Path, side: PolicySide) -> Vec<String> {
    let mut source = RecordSource::open(path, side, None).expect("it opens");
    let next = || source.read().expect("it is read").map(|record| format!("{record:?}"));
    std::iter::from_fn(next).collect()
}

#[test]
fn parquet_files_of_all_writers_have_the_sequences_of_jsonl() {
    for side in [PolicySide::Rollout, PolicySide::Trainer] {
        let wanted = sequences(&data("parquet/same.jsonl"), side);
        assert_eq!(wanted.len(), 6);
        for name in PARQUET_FILES.into_iter().chain(["duckdb"]) {
            let found = sequences(&data(&format!("parquet/{name}.parquet")), side);
            assert_eq!(found, wanted, "{name}");
        }
    }
}

/// A Parquet file of the committed ones.
pub(super) fn parquet(name: &str) -> String {
    data(&format!("parquet/{name}.parquet")).display().to_string()
}

#[test]
fn parquet_files_are_compared_by_the_command() {
    let terminal = Terminal::new();
    let judged = |words: &[&str]| terminal.json(&[&["gap"], words].concat());
    let (pandas, polars, shifted) = (parquet("pandas"), parquet("polars"), parquet("shifted"));
    let (code, both) = judged(&[&pandas, &polars]);
    assert_eq!((code, both["verdict"].as_str()), (0, Some("pass")), "{both}");
    assert_eq!(both["values"]["compared"], 239);
    let (code, one) = judged(&[&parquet("duckdb-v2")]);
    assert_eq!((code, &one["scale"]), (0, &both["scale"]), "{one}");
    let (code, wrong) = judged(&[&shifted, &polars]);
    assert_eq!((code, wrong["findings"][0]["cause"].as_str()), (1, Some("shifted")), "{wrong}");
    let columns = ["--columns", "trainer_logprobs,rollout_logprobs"];
    let (_, swapped) = judged(&[&[pandas.as_str()][..], &columns].concat());
    assert_eq!(swapped["scale"], both["scale"]);
}

#[test]
fn parquet_files_that_cannot_be_compared_are_refused() {
    let terminal = Terminal::new();
    let cases: [(&str, &[&str]); 8] = [
        ("refused-nested", &["column 'logprobs'", "a structure", "expected lists of numbers"]),
        (
            "refused-brotli",
            &["column 'logprobs'", "compressed with Brotli", "expected snappy, gzip, zstd, lz4"],
        ),
        ("refused-missing", &["no column", "`rollout_logprobs`", "has `tokens`, `scores`", "--columns"]),
        ("refused-texts", &["column 'logprobs'", "lists of texts", "expected lists of numbers"]),
        ("refused-zeros", &["column 'logprobs'", "a row of more than 8388608 values"]),
        ("refused-page", &["column 'logprobs'", "a page of more than", "bytes, ", "compressed"]),
        ("refused-values", &["column 'logprobs'", "in pages of more than 67108864 values"]),
        ("refused-encrypted", &["encrypted", "without encryption"]),
    ];
    for (name, expected) in cases {
        terminal.run(&["gap", &parquet(name), &parquet("pandas")]).refused(expected);
    }
}

/// Returns copies of a file with one damaged byte each: every 61st byte gets a flipped bit, or is 0, or 255.
fn damaged(whole: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let changes: [fn(u8, usize) -> u8; 3] = [|byte, at| byte ^ 1 << (at % 8), |_, _| 0, |_, _| 255];
    let places = (0..whole.len()).step_by(61).flat_map(move |at| changes.map(|change| (at, change)));
    places.map(|(at, change)| {
        let mut bytes = whole.to_vec();
        bytes[at] = change(bytes[at], at);
        bytes
    })
}

#[test]
fn damaged_parquet_files_are_refused_or_read_without_panic() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("damaged.parquet");
    let began = Instant::now();
    for name in PARQUET_FILES.into_iter().chain(["routes"]) {
        let whole = fs::read(parquet(name)).expect("it ships");
        for bytes in damaged(&whole) {
            fs::write(&path, &bytes).expect("written");
            let Ok(mut source) = RecordSource::open(&path, PolicySide::Rollout, None) else { continue };
            while let Ok(Some(_)) = source.read() {}
        }
        for len in (0..whole.len()).step_by(97) {
            fs::write(&path, &whole[..len]).expect("written");
            assert!(RecordSource::open(&path, PolicySide::Rollout, None).is_err(), "{name}: {len} bytes");
        }
    }
    assert!(began.elapsed() < Duration::from_secs(120), "{:?}", began.elapsed());
}

#[test]
fn schemas_that_state_too_many_children_or_levels_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("schema.parquet");
    // Thrift: the version 1, and a list of 16384 elements with the name "a" and a number of children.
    let element = |children: &[u8]| [&[0x48, 1, b'a', 0x15], children, &[0]].concat();
    let file = |elements: Vec<u8>| {
        let footer = [&[0x15, 2, 0x19, 0xFC, 128, 128, 1], &elements[..], &[0]].concat();
        let len = u32::try_from(footer.len()).expect("it is short").to_le_bytes();
        [b"PAR1", &footer[..], &len, b"PAR1"].concat()
    };
    let few = element(&[2]).repeat(16384);
    let many = [element(&[0xFE, 0xFF, 0xFF, 0xFF, 0x0F]), element(&[0]).repeat(16383)].concat();
    for elements in [few, many] {
        fs::write(&path, file(elements)).expect("written");
        let problem = RecordSource::open(&path, PolicySide::Rollout, None).err().expect("it is refused");
        assert!(problem.to_string().contains("the footer is damaged"), "{problem}");
    }
}
