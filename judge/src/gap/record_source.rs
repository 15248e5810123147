//! The sequences of one side, whatever the form of its file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::field_names::PolicySide;
use super::json_lines::{JsonLines, LogprobNames};
use super::record::SequenceRecord;
use super::tensor_batch::TensorBatch;
use crate::error::{Error, Result};
use crate::input;

/// The sequences of one side, read one after the other.
pub struct RecordSource(RecordReader);

enum RecordReader {
    Lines(Box<JsonLines>),
    Batch(Box<TensorBatch>),
}

impl RecordSource {
    /// Opens a file: JSONL, or a batch of tensors. `column` names the log-probabilities, if they have no usual name.
    ///
    /// # Errors
    /// If the file has another form.
    pub fn open(path: &Path, side: PolicySide, column: Option<&str>) -> Result<Self> {
        let wanted = LogprobNames::of(side, column);
        Ok(Self(match is_json(path)? {
            true => RecordReader::Lines(Box::new(JsonLines::open(path, wanted)?)),
            false => RecordReader::Batch(Box::new(TensorBatch::open(path, &wanted)?)),
        }))
    }

    /// Reads the next sequence; `None` at the end.
    ///
    /// # Errors
    /// If the sequence is invalid; the message names the line and the field.
    pub fn read(&mut self) -> Result<Option<SequenceRecord>> {
        match &mut self.0 {
            RecordReader::Lines(lines) => lines.read(),
            RecordReader::Batch(batch) => batch.read(),
        }
    }
}

/// First bytes of a Parquet file.
const PARQUET: &[u8] = b"PAR1";
/// Ways to compare a Parquet file.
const PARQUET_ADVICE: &str = "a Parquet file, expected JSONL, .npz or .pt; in Python: xcheck.gap(pandas.read_parquet(\"rollout.parquet\"), \
     pandas.read_parquet(\"trainer.parquet\"), dtype=\"bf16\")";

/// Returns true if a file starts as an object of JSON.
fn is_json(path: &Path) -> Result<bool> {
    input::regular(path)?;
    let mut start = Vec::new();
    let file = File::open(path).map_err(Error::io("open", path))?;
    file.take(4096).read_to_end(&mut start).map_err(Error::io("read", path))?;
    let first = start.iter().copied().find(|byte| !byte.is_ascii_whitespace());
    match first {
        None => Err(Error::dump(path, "no sequences, expected JSONL, .npz or .pt")),
        Some(_) if start.starts_with(PARQUET) => Err(Error::dump(path, PARQUET_ADVICE)),
        Some(b'[') => {
            Err(Error::dump(path, "a JSON list, expected JSONL: one object in a line (jq -c '.[]')"))
        }
        Some(first) => Ok(first == b'{'),
    }
}
