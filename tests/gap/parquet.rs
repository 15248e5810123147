//! Parquet files of real writers have the values of JSONL; others are refused.
//!
//! `tests/data/gap/parquet` is made by `reference-scripts/gap/make_parquet.py`, with pyarrow, pandas, polars and DuckDB.

use std::fs;
use std::path::Path;

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
    let cases: [(&str, &[&str]); 6] = [
        ("refused-nested", &["column 'logprobs'", "a structure", "expected lists of numbers"]),
        (
            "refused-brotli",
            &["column 'logprobs'", "compressed with Brotli", "expected snappy, gzip, zstd, lz4"],
        ),
        ("refused-missing", &["no column", "`rollout_logprobs`", "has `tokens`, `scores`", "--columns"]),
        ("refused-texts", &["column 'logprobs'", "lists of texts", "expected lists of numbers"]),
        ("refused-zeros", &["column 'logprobs'", "a row of more than 8388608 values"]),
        ("refused-encrypted", &["encrypted", "without encryption"]),
    ];
    for (name, expected) in cases {
        terminal.run(&["gap", &parquet(name), &parquet("pandas")]).refused(expected);
    }
}

#[test]
fn damaged_parquet_files_are_refused_or_have_the_same_values() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("damaged.parquet");
    for name in ["pyarrow-lz4-pages", "pyarrow-zstd-v2", "duckdb-v2", "pandas"] {
        let whole = fs::read(parquet(name)).expect("it ships");
        for at in (0..whole.len()).step_by(61) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&path, &bytes).expect("written");
            let Ok(mut source) = RecordSource::open(&path, PolicySide::Rollout, None) else { continue };
            while let Ok(Some(_)) = source.read() {}
        }
        for len in (0..whole.len()).step_by(97) {
            fs::write(&path, &whole[..len]).expect("written");
            assert!(RecordSource::open(&path, PolicySide::Rollout, None).is_err(), "{name}: {len} bytes");
        }
    }
}
