//! Text as its ids come, one by one, in whole characters.

use crate::error::Result;
use crate::tokenizer::Tokenizer;

/// Decodes ids as they come and never splits a character: what is not whole yet is held back. All that was given out
/// together is what [`Tokenizer::decode_lossy`] makes of all ids.
///
/// Each id is decoded behind those before it that gave the last text, since decoders treat the beginning of a text
/// otherwise.
pub struct TextStream<'t> {
    tokenizer: &'t dyn Tokenizer,
    /// The ids that gave the last text, and those that came since.
    window: Vec<u32>,
    /// Index of the first of these.
    since: usize,
    /// Number of bytes of the window's text that were returned.
    shown: usize,
}

impl<'t> TextStream<'t> {
    /// A stream that begins with the text.
    pub fn new(tokenizer: &'t dyn Tokenizer) -> Self {
        Self { tokenizer, window: Vec::new(), since: 0, shown: 0 }
    }

    /// A stream that goes on after a prompt, whose own text it does not give out again.
    ///
    /// # Errors
    /// If an id is outside the vocabulary.
    pub fn after(tokenizer: &'t dyn Tokenizer, prompt: &[u32]) -> Result<Self> {
        let mut stream = Self::new(tokenizer);
        prompt.iter().try_for_each(|&id| stream.push(id).map(drop))?;
        Ok(stream)
    }

    /// The text that is whole with one more id: none, if it is a control token or ends inside a character.
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

    /// Returns the text that was held back, at the end: U+FFFD for an incomplete character.
    ///
    /// # Errors
    /// Errors of [`TextStream::push`].
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

    /// Leaves only the ids in the window that have just become text.
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
