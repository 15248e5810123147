//! Streaming decoder: text in whole characters as ids arrive.

use crate::error::Result;
use crate::tokenizer::Tokenizer;

/// Decodes ids as they arrive and never splits a character: an incomplete character is delayed. The concatenated output
/// equals [`Tokenizer::decode_lossy`] of all ids.
///
/// Each id is decoded together with the ids of the previous output, since decoders treat the beginning of a text
/// differently.
pub struct TextStream<'t> {
    tokenizer: &'t dyn Tokenizer,
    /// Ids of the last output, and the ids after them.
    window: Vec<u32>,
    /// Index in `window` of the first id after the last output.
    since: usize,
    /// Number of bytes of the window's text that were returned.
    shown: usize,
}

impl<'t> TextStream<'t> {
    /// Creates a stream for the beginning of a text.
    pub fn new(tokenizer: &'t dyn Tokenizer) -> Self {
        Self { tokenizer, window: Vec::new(), since: 0, shown: 0 }
    }

    /// Creates a stream that continues a prompt. The prompt's text is not returned.
    ///
    /// # Errors
    /// If an id is outside the vocabulary.
    pub fn after(tokenizer: &'t dyn Tokenizer, prompt: &[u32]) -> Result<Self> {
        let mut stream = Self::new(tokenizer);
        prompt.iter().try_for_each(|&id| stream.push(id).map(drop))?;
        Ok(stream)
    }

    /// Returns the text that one more id completes; empty for a control token, or if the id ends inside a character.
    ///
    /// # Errors
    /// If the id is outside the vocabulary.
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.window.push(id);
        let bytes = self.tokenizer.decode(&self.window)?;
        let whole = bytes.len() - unfinished(&bytes);
        let new = self.give(&bytes[..whole]);
        if whole == bytes.len() && !new.is_empty() {
            self.forget()?;
        }
        Ok(new)
    }

    /// Returns the delayed text at the end: U+FFFD for an incomplete character.
    ///
    /// # Errors
    /// See [`TextStream::push`].
    pub fn finish(mut self) -> Result<String> {
        let bytes = self.tokenizer.decode(&self.window)?;
        Ok(self.give(&bytes))
    }

    fn give(&mut self, bytes: &[u8]) -> String {
        let text = String::from_utf8_lossy(bytes);
        let new = text.get(self.shown..).unwrap_or_default().to_owned();
        self.shown = self.shown.max(text.len());
        new
    }

    /// Keeps only the ids of the last output in the window.
    fn forget(&mut self) -> Result<()> {
        self.window.drain(..self.since);
        self.since = self.window.len();
        self.shown = self.tokenizer.decode_lossy(&self.window)?.len();
        Ok(())
    }
}

/// Returns the number of bytes of an incomplete character at the end.
fn unfinished(mut bytes: &[u8]) -> usize {
    while let Err(error) = str::from_utf8(bytes) {
        let rest = &bytes[error.valid_up_to()..];
        match error.error_len() {
            Some(len) => bytes = &rest[len..],
            None => return rest.len(),
        }
    }
    0
}
