//! The pipes to and from a worker.

use std::io::{Read, Write};
use std::path::Path;

use crate::dump::ArrayValues;
use crate::error::{Error, Result};
use crate::evaluator::message::{EvaluatorAnswer, EvaluatorRequest, OUTPUT, refuse};
use crate::format::{Messages, Safetensors};
use crate::view::View;

/// Key of a message in the metadata of a safetensors file.
const METADATA: &str = "xcheck-evaluator";
/// Maximum size of a message in bytes: the logits of a large vocabulary at 4096 positions, twice in `f64`.
const LARGEST: u64 = 32 << 30;

/// The pipes to and from a worker.
pub struct EvaluatorConnection<'c> {
    requests: Box<dyn Write + 'c>,
    answers: Messages,
}

/// An answer with its arrays.
pub(super) struct AnswerMessage {
    pub(super) answer: EvaluatorAnswer,
    arrays: Safetensors,
}

impl<'c> EvaluatorConnection<'c> {
    /// Connects to a worker by its standard input and output.
    pub fn new(requests: Box<dyn Write + 'c>, answers: Box<dyn Read>) -> Self {
        Self { requests, answers: Messages::new(answers, Path::new(OUTPUT), LARGEST) }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// If the worker has ended.
    pub(super) fn ask(&mut self, request: &EvaluatorRequest) -> Result<()> {
        let line = serde_json::to_string(request).expect("paths and numbers are JSON") + "\n";
        let sent = self.requests.write_all(line.as_bytes()).and_then(|()| self.requests.flush());
        sent.map_err(Error::io("write to", Path::new(OUTPUT)))
    }

    /// Reads the next message of an answer; `None` at the answer's end.
    ///
    /// # Errors
    /// If the worker ends early, sends something else, or reports an error.
    pub(super) fn take(&mut self) -> Result<Option<AnswerMessage>> {
        let Some(source) = self.answers.take()? else { return Ok(None) };
        let arrays = Safetensors::read(&source)?;
        let text = arrays.metadata.get(METADATA);
        let text = text.ok_or_else(|| refuse(format!("a message has no \"{METADATA}\" in its metadata")))?;
        let answer =
            serde_json::from_str(text).map_err(|error| refuse(format!("invalid message: {error}")))?;
        if let EvaluatorAnswer::Error { text } = answer {
            return Err(Error::Usage(text));
        }
        Ok(Some(AnswerMessage { answer, arrays }))
    }
}

impl AnswerMessage {
    /// Reads an array of the message.
    ///
    /// # Errors
    /// If the array is missing or damaged.
    pub(super) fn array(&self, name: &str) -> Result<ArrayValues> {
        let stored = self.arrays.tensors.get(name).cloned();
        let stored = stored.ok_or_else(|| refuse(format!("a message has no array '{name}'")))?;
        let view = View::stored(&stored.shape, stored.dtype, stored.data);
        let view = view.ok_or_else(|| refuse(format!("array '{name}' has an unknown type")))?;
        Ok(ArrayValues::from(&view))
    }
}
