//! Sequences of a batch of tensors: `.npz`, `.pt`, `.safetensors`.

use std::path::{Path, PathBuf};

use super::expert_routes::ExpertRoutes;
use super::field_names::SequenceField;
use super::json_lines::SideNames;
use super::record::{FieldProblem, SequenceRecord, StatedSequence, token_count, token_id};
use crate::error::{Error, Result};
use crate::format::{Arrays, EscapedText};
use crate::view::View;

/// Reader of a batch of tensors, with one sequence per row.
pub(super) struct TensorBatch {
    path: PathBuf,
    logprobs: View<'static>,
    fields: Vec<(SequenceField, View<'static>)>,
    row: usize,
}

impl TensorBatch {
    /// Opens a file and finds its tensors by their names.
    ///
    /// # Errors
    /// If the file has no tensor of log-probabilities, or the shapes contradict each other.
    pub(super) fn open(path: &Path, wanted: &SideNames) -> Result<Self> {
        let arrays = Arrays::open(path)?;
        let (mut best, mut fields) =
            (None::<(usize, View<'static>)>, Vec::<(SequenceField, View<'static>)>::new());
        for (name, stored) in arrays.tensors.iter() {
            let last = name.rsplit(['.', '/']).next().unwrap_or(name);
            let (rank, field) = (wanted.rank(last), wanted.field(last));
            if rank.is_none() && field.is_none() {
                continue;
            }
            let view = View::stored(&stored.shape, stored.dtype, stored.data.clone());
            let problem =
                || format!("array '{}': dtype {}, expected numbers", EscapedText(name), stored.dtype);
            let view = view.ok_or_else(|| Error::dump(path, problem()))?;
            match (rank, field) {
                (Some(rank), _) if best.as_ref().is_none_or(|(known, _)| rank < *known) => {
                    best = Some((rank, view))
                }
                (None, Some(field)) => {
                    let known = fields.iter_mut().find(|(known, _)| *known == field);
                    match known {
                        None => fields.push((field, view)),
                        Some(known) if wanted.is_own(last) => known.1 = view,
                        Some(_) => {}
                    }
                }
                _ => {}
            }
        }
        let listed = || format!("no array {}; name it with --columns", wanted.listed());
        let (_, logprobs) = best.ok_or_else(|| Error::dump(path, listed()))?;
        let batch = Self { path: path.to_owned(), logprobs, fields, row: 0 };
        batch.check()?;
        Ok(batch)
    }

    fn check(&self) -> Result<()> {
        let rows = self.rows();
        if self.logprobs.shape().len() > 2 {
            let shape = self.logprobs.shape();
            return Err(self.bad(format!("logprobs: shape {shape:?}, expected [sequences, tokens]")));
        }
        for (field, view) in self.fields.iter().filter(|(field, _)| field.depth() == 3) {
            let [_, _, _, _] = view.shape() else {
                let (name, shape) = (field.names()[0], view.shape());
                let expected = "expected [sequences, tokens, layers, experts]";
                return Err(self.bad(format!("{name}: shape {shape:?}, {expected}")));
            };
        }
        let all = self.fields.iter().map(|(field, view)| (field.names()[0], view));
        for (name, view) in all.chain([("logprobs", &self.logprobs)]) {
            if view.is_empty() {
                return Err(self.bad(format!("{name}: shape {:?} has no values", view.shape())));
            }
        }
        for (field, view) in &self.fields {
            let found = match field.depth() {
                0 => view.len(),
                1 => self.rows_of(view),
                _ => view.shape()[0],
            };
            // A scalar, such as a temperature, is that of all sequences.
            if found != rows && !(field.depth() == 0 && found == 1) {
                let name = field.names()[0];
                let shape = view.shape();
                return Err(
                    self.bad(format!("{name}: shape {shape:?}, expected {rows} sequences, as logprobs has"))
                );
            }
        }
        Ok(())
    }

    fn rows(&self) -> usize {
        self.rows_of(&self.logprobs)
    }

    /// Returns the number of sequences of an array; an array with one axis is one sequence.
    fn rows_of(&self, view: &View) -> usize {
        view.shape().split_last().map_or(1, |(_, rows)| rows.iter().product())
    }

    /// Reads the next sequence; `None` after the last row.
    ///
    /// # Errors
    /// If a row has invalid values.
    pub(super) fn read(&mut self) -> Result<Option<SequenceRecord>> {
        if self.row == self.rows() {
            return Ok(None);
        }
        let stated = self.stated()?;
        let record = stated.aligned();
        let record = record.map_err(|FieldProblem(field, problem)| {
            self.bad(format!("row {}: `{field}`: {problem}", self.row))
        })?;
        self.row += 1;
        Ok(Some(record))
    }

    fn stated(&self) -> Result<StatedSequence> {
        use SequenceField as Field;
        let length = self.count(Field::Length)?;
        let mut stated = StatedSequence {
            logprobs: self.row_of(&self.logprobs).into_iter().map(Some).collect(),
            tokens: self.ids(Field::Tokens)?,
            prompt: self.ids(Field::Prompt)?,
            completion: self.ids(Field::Completion)?,
            mask: self.values(Field::Mask).map(|mask| mask.into_iter().map(|one| one != 0.0).collect()),
            prompt_length: self.count(Field::PromptLength)?,
            completion_length: self.count(Field::CompletionLength)?,
            temperature: self.scalar(Field::Temperature),
            version: self.scalar(Field::Version).map(|version| version as i64),
            dtype: None,
            routes: self.routes(Field::Routes)?,
            prompt_routes: self.routes(Field::PromptRoutes)?,
        };
        if let Some(length) = length {
            stated.cut(length).map_err(|problem| self.bad(format!("row {}: {problem}", self.row)))?;
        }
        Ok(stated)
    }

    fn view(&self, field: SequenceField) -> Option<&View<'static>> {
        self.fields.iter().find(|(known, _)| *known == field).map(|(_, view)| view)
    }

    fn row_of(&self, view: &View) -> Vec<f64> {
        let mut values = vec![0.0; view.width()];
        view.read(self.row, 0..view.width(), &mut values);
        values
    }

    fn values(&self, field: SequenceField) -> Option<Vec<f64>> {
        self.view(field).map(|view| self.row_of(view))
    }

    fn scalar(&self, field: SequenceField) -> Option<f64> {
        self.view(field).map(|view| view.get(if view.len() == 1 { 0 } else { self.row }))
    }

    fn count(&self, field: SequenceField) -> Result<Option<usize>> {
        let Some(value) = self.scalar(field) else { return Ok(None) };
        let problem = || {
            let name = field.names()[0];
            self.bad(format!("row {}: {name}: {value}, expected a number of tokens", self.row))
        };
        token_count(value).map(Some).ok_or_else(problem)
    }

    fn ids(&self, field: SequenceField) -> Result<Option<Vec<u32>>> {
        let Some(values) = self.values(field) else { return Ok(None) };
        let problem = |value: f64| {
            self.bad(format!("row {}: {}: invalid token id {value}", self.row, field.names()[0]))
        };
        let id = |value: f64| token_id(value).ok_or_else(|| problem(value));
        values.into_iter().map(id).collect::<Result<_>>().map(Some)
    }

    fn routes(&self, field: SequenceField) -> Result<Option<ExpertRoutes>> {
        let Some(view) = self.view(field) else { return Ok(None) };
        let &[_, tokens, layers, used] = view.shape() else { return Ok(None) };
        let mut ids = vec![0.0; tokens * layers * used];
        view.read_rows(self.row * tokens * layers..(self.row + 1) * tokens * layers, &mut ids);
        let routes = ExpertRoutes::of([tokens, layers, used], ids);
        routes
            .map(Some)
            .map_err(|problem| self.bad(format!("row {}: {}: {problem}", self.row, field.names()[0])))
    }

    fn bad(&self, problem: String) -> Error {
        Error::dump(&self.path, problem)
    }
}

impl StatedSequence {
    /// Shortens a sequence to `length` tokens, which removes right padding.
    fn cut(&mut self, length: usize) -> Result<(), String> {
        let tokens = self.tokens.as_ref().map_or(self.logprobs.len(), Vec::len);
        let Some(padding) = tokens.checked_sub(length) else {
            return Err(format!("length {length}, expected at most {tokens}"));
        };
        if let Some(tokens) = &mut self.tokens {
            tokens.truncate(length);
        }
        let left = |len: usize| len.saturating_sub(padding);
        self.logprobs.truncate(left(self.logprobs.len()));
        if let Some(mask) = &mut self.mask {
            mask.truncate(left(mask.len()));
        }
        if let Some(routes) = &mut self.routes {
            routes.truncate(left(routes.tokens()));
        }
        Ok(())
    }
}
