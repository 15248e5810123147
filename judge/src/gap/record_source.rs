//! The sequences of one side, read from a file in any supported form.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::field_names::PolicySide;
use super::json_lines::{JsonLines, SideNames};
use super::parquet::{ParquetFile, ParquetTable};
use super::record::SequenceRecord;
use super::tensor_batch::TensorBatch;
use crate::error::{Error, Result};
use crate::input;

/// The sequences of one side, read one after the other.
pub struct RecordSource(RecordReader);

enum RecordReader {
    Lines(Box<JsonLines>),
    Batch(Box<TensorBatch>),
    Table(Box<ParquetTable>),
}

impl RecordSource {
    /// Opens the file of a side: JSONL, Parquet, or a batch of tensors. `column` names the log-probabilities, if they have no
    /// usual name.
    ///
    /// # Errors
    /// If the file has another form.
    pub fn open(path: &Path, side: PolicySide, column: Option<&str>) -> Result<Self> {
        Self::named(path, SideNames::of(side, column, false))
    }

    /// Opens a side of a file that has both.
    ///
    /// # Errors
    /// See [`RecordSource::open`].
    pub fn of_both(path: &Path, side: PolicySide, column: Option<&str>) -> Result<Self> {
        Self::named(path, SideNames::of(side, column, true))
    }

    fn named(path: &Path, wanted: SideNames) -> Result<Self> {
        Ok(Self(match SequenceForm::of(path)? {
            SequenceForm::Json => RecordReader::Lines(Box::new(JsonLines::open(path, wanted)?)),
            SequenceForm::Parquet => RecordReader::Table(Box::new(ParquetTable::open(path, &wanted)?)),
            SequenceForm::Tensors => RecordReader::Batch(Box::new(TensorBatch::open(path, &wanted)?)),
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
            RecordReader::Table(table) => table.read(),
        }
    }
}

/// Form of a file of sequences.
enum SequenceForm {
    Json,
    Parquet,
    Tensors,
}

impl SequenceForm {
    /// Recognises the form by the first bytes.
    fn of(path: &Path) -> Result<Self> {
        input::regular(path)?;
        let mut start = Vec::new();
        let file = File::open(path).map_err(Error::io("open", path))?;
        file.take(4096).read_to_end(&mut start).map_err(Error::io("read", path))?;
        let first = start.iter().copied().find(|byte| !byte.is_ascii_whitespace());
        match first {
            None => Err(Error::dump(path, "no sequences, expected JSONL, Parquet, .npz or .pt")),
            Some(_) if ParquetFile::is_start(&start) => Ok(Self::Parquet),
            Some(b'[') => {
                Err(Error::dump(path, "a JSON list, expected JSONL: one object in a line (jq -c '.[]')"))
            }
            Some(b'{') => Ok(Self::Json),
            Some(_) => Ok(Self::Tensors),
        }
    }
}
