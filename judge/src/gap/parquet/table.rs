//! Sequences of a Parquet file, one in a row.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::rows::{ParquetRow, ParquetRows, ParquetValue};
use super::schema::ParquetFile;
use crate::error::{Error, Result};
use crate::format::{EscapedText, FileBytes};
use crate::gap::expert_routes::ExpertRoutes;
use crate::gap::field_names::SequenceField;
use crate::gap::json_lines::SideNames;
use crate::gap::record::{FieldProblem, SequenceRecord, StatedSequence, token_count, token_id};

/// Number of column names in a message.
const MOST_NAMES: usize = 20;

/// Reader of a Parquet file.
pub(in crate::gap) struct ParquetTable {
    path: PathBuf,
    logprobs: FieldColumn<f64>,
    numbers: Vec<(SequenceField, FieldColumn<f64>)>,
    texts: Vec<(SequenceField, FieldColumn<Bytes>)>,
    row: usize,
}

/// A column, and its current row.
struct FieldColumn<V> {
    rows: ParquetRows<V>,
    row: ParquetRow<V>,
}

impl<V: ParquetValue> FieldColumn<V> {
    fn of(file: &ParquetFile, name: &str, depth: u8) -> Result<Self> {
        Ok(Self { rows: file.rows(name, depth)?, row: ParquetRow::default() })
    }

    /// Reads the next row; false after the last one.
    fn advance(&mut self) -> Result<bool> {
        self.rows.read(&mut self.row)
    }

    /// Returns the only value of the row, unless it is null.
    fn scalar(&self) -> Option<&V> {
        self.row.values.first()?.as_ref()
    }
}

impl ParquetTable {
    /// Opens a file and finds its columns by their names.
    ///
    /// # Errors
    /// If the file has no column of log-probabilities, or a column has other values than expected.
    pub(in crate::gap) fn open(path: &Path, wanted: &SideNames) -> Result<Self> {
        let file = ParquetFile::read(FileBytes::open(path)?)?;
        let best = file.names().filter_map(|name| Some((wanted.rank(name)?, name))).min();
        let (_, best) = best.ok_or_else(|| Error::dump(path, missing(&file, wanted)))?;
        let mut table = Self {
            path: path.to_owned(),
            logprobs: FieldColumn::of(&file, best, 1)?,
            numbers: Vec::new(),
            texts: Vec::new(),
            row: 0,
        };
        for field in SequenceField::ALL {
            let is_there =
                |known: &&&str| wanted.field(known).is_some() && file.names().any(|name| name == **known);
            let known = || field.names().iter().filter(is_there);
            let name = known().find(|name| wanted.is_own(name)).or_else(|| known().next());
            let Some(name) = name else { continue };
            match field {
                SequenceField::Length => {}
                SequenceField::Dtype => table.texts.push((field, FieldColumn::of(&file, name, 0)?)),
                SequenceField::Version | SequenceField::Routes | SequenceField::PromptRoutes
                    if file.has_texts(name) =>
                {
                    table.texts.push((field, FieldColumn::of(&file, name, 0)?));
                }
                _ => table.numbers.push((field, FieldColumn::of(&file, name, field.depth())?)),
            }
        }
        Ok(table)
    }

    /// Reads the next sequence; `None` after the last row.
    ///
    /// # Errors
    /// If a row has invalid values, or the columns have different numbers of rows.
    pub(in crate::gap) fn read(&mut self) -> Result<Option<SequenceRecord>> {
        let has_row = self.logprobs.advance()?;
        let numbers = self.numbers.iter_mut().map(|(field, column)| (*field, column.advance()));
        let texts = self.texts.iter_mut().map(|(field, column)| (*field, column.advance()));
        for (field, has_own) in numbers.chain(texts) {
            if has_own? != has_row {
                let name = field.names()[0];
                let problem = format!(
                    "row {}: `{name}` and the log-probabilities have different numbers of rows",
                    self.row
                );
                return Err(Error::dump(&self.path, problem));
            }
        }
        if !has_row {
            return Ok(None);
        }
        let record = self.stated().and_then(StatedSequence::aligned);
        let record = record.map_err(|FieldProblem(field, problem)| {
            Error::dump(&self.path, format!("row {}: `{field}`: {problem}", self.row))
        })?;
        self.row += 1;
        Ok(Some(record))
    }

    fn stated(&self) -> Result<StatedSequence, FieldProblem> {
        use SequenceField as Field;
        if self.logprobs.row.is_null {
            return Err(FieldProblem("logprobs", "null, expected a list of numbers".to_owned()));
        }
        let mut stated =
            StatedSequence { logprobs: self.logprobs.row.values.clone(), ..StatedSequence::default() };
        for (field, column) in self.numbers.iter().filter(|(_, column)| !column.row.is_null) {
            match field {
                Field::Tokens => stated.tokens = Some(ids(*field, &column.row)?),
                Field::Prompt => stated.prompt = Some(ids(*field, &column.row)?),
                Field::Completion => stated.completion = Some(ids(*field, &column.row)?),
                Field::PromptLength => stated.prompt_length = Some(count(*field, &column.row)?),
                Field::CompletionLength => stated.completion_length = Some(count(*field, &column.row)?),
                Field::Temperature => stated.temperature = number(column),
                Field::Version => stated.version = number(column).map(|version| version as i64),
                Field::Mask => {
                    let is_set = |flag: &Option<f64>| flag.is_some_and(|flag| flag != 0.0);
                    stated.mask = Some(column.row.values.iter().map(is_set).collect());
                }
                Field::Routes => stated.routes = Some(routes(*field, &column.row)?),
                Field::PromptRoutes => stated.prompt_routes = Some(routes(*field, &column.row)?),
                Field::Length | Field::Dtype => {}
            }
        }
        for (field, column) in &self.texts {
            let text = column.scalar().and_then(|bytes| str::from_utf8(bytes).ok());
            let routes = || {
                let problem = |problem| FieldProblem(field.names()[0], problem);
                text.map(|text| ExpertRoutes::of_text(text).map_err(problem)).transpose()
            };
            match field {
                Field::Dtype => stated.dtype = text.map(str::to_owned),
                Field::Routes => stated.routes = routes()?,
                Field::PromptRoutes => stated.prompt_routes = routes()?,
                _ => stated.version = text.and_then(|text| text.parse().ok()),
            }
        }
        Ok(stated)
    }
}

/// Returns a number unless it is NaN, with which pandas marks missing numbers.
fn number(column: &FieldColumn<f64>) -> Option<f64> {
    column.scalar().copied().filter(|number| !number.is_nan())
}

fn ids(field: SequenceField, row: &ParquetRow<f64>) -> Result<Vec<u32>, FieldProblem> {
    let id = |value: &Option<f64>| {
        let problem = |found: String| FieldProblem(field.names()[0], format!("{found}, expected a token id"));
        let value = value.ok_or_else(|| problem("null".to_owned()))?;
        token_id(value).ok_or_else(|| problem(value.to_string()))
    };
    row.values.iter().map(id).collect()
}

fn routes(field: SequenceField, row: &ParquetRow<f64>) -> Result<ExpertRoutes, FieldProblem> {
    let problem = |problem: String| FieldProblem(field.names()[0], problem);
    let lengths = row.lengths();
    let lengths = lengths.ok_or_else(|| problem("lists of different lengths".to_owned()))?;
    ExpertRoutes::of(lengths, row.values.iter().map(|id| id.unwrap_or(-1.0))).map_err(problem)
}

fn count(field: SequenceField, row: &ParquetRow<f64>) -> Result<usize, FieldProblem> {
    let value = row.values.first().copied().flatten().unwrap_or(f64::NAN);
    let problem = || FieldProblem(field.names()[0], format!("{value}, expected a number of tokens"));
    token_count(value).ok_or_else(problem)
}

/// Lists the column names that were searched, and those that the file has.
fn missing(file: &ParquetFile, wanted: &SideNames) -> String {
    let mut names: Vec<_> = file.names().map(|name| format!("`{}`", EscapedText(name))).collect();
    names.dedup();
    let more = names.len().saturating_sub(MOST_NAMES);
    names.truncate(MOST_NAMES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "no column {}; the file has {}{more}: name the column with --columns",
        wanted.listed(),
        names.join(", ")
    )
}
