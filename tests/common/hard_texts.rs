//! The files that `reference-scripts/vectors/hard_texts.py` writes: hard texts, and what engines make of them.

use std::path::PathBuf;

use serde_json::Value;
use sha2::{Digest, Sha256};
use xcheck::Result;

/// Texts with a column of ids per engine.
pub struct Vectors {
    name: String,
    content: Value,
}

impl Vectors {
    /// Those of `tests/data/tokenizers/<name>/vectors.json`.
    pub fn read(name: &str) -> Self {
        Self::of(name, "vectors.json")
    }

    pub fn of(name: &str, file: &str) -> Self {
        let path: PathBuf =
            [env!("CARGO_MANIFEST_DIR"), "tests/data/tokenizers", name, file].iter().collect();
        let text = std::fs::read_to_string(path).expect("it is committed");
        Self { name: name.to_owned(), content: serde_json::from_str(&text).expect("the script writes JSON") }
    }

    /// All texts but the long ones.
    pub fn texts(&self) -> Vec<String> {
        self.rows("vectors").map(|row| row["text"].as_str().expect("it is text").to_owned()).collect()
    }

    /// Holds `encode` against an engine's column, and gives back how many texts that were.
    pub fn check(&self, column: &str, encode: impl Fn(&str) -> Result<Vec<u32>>) -> usize {
        self.check_but(column, |_| false, encode)
    }

    /// [`Vectors::check`], but for texts that are known to differ; all of those must.
    pub fn check_but(
        &self,
        column: &str,
        differs: impl Fn(&str) -> bool,
        encode: impl Fn(&str) -> Result<Vec<u32>>,
    ) -> usize {
        let short = self.rows("vectors").filter(|row| row.get(column).is_some());
        let mut compared = 0;
        for row in short {
            let text = row["text"].as_str().expect("it is text");
            let theirs: Vec<u32> = serde_json::from_value(row[column].clone()).expect("they are ids");
            let ours = encode(text).unwrap();
            assert_eq!(
                ours != theirs,
                differs(text),
                "{}, {column}: {text:?}\n{ours:?}\n{theirs:?}",
                self.name
            );
            compared += 1;
        }
        for row in self.rows("long").filter(|row| row.get(column).is_some()) {
            let (text, times) = (row["repeat"].as_str().expect("it is text"), row["times"].as_u64());
            if !differs(text) {
                let ids = encode(&text.repeat(times.expect("it is a number") as usize)).unwrap();
                assert_eq!(digest(&ids), row[column], "{}, {column}: {times:?} times {text:?}", self.name);
                compared += 1;
            }
        }
        compared
    }

    fn rows(&self, list: &str) -> impl Iterator<Item = &Value> {
        self.content[list].as_array().into_iter().flatten()
    }
}

/// How many ids, and SHA-256 of them as little-endian numbers.
fn digest(ids: &[u32]) -> Value {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let sha256: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    serde_json::json!({"count": ids.len(), "sha256": sha256})
}
