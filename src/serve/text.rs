//! Text of a token sequence, in whole characters, up to a stop string.

use std::sync::Arc;

use crate::engine::TokenScore;
use crate::error::Result;
use crate::tokenizer::{SpecialTokens, TextStream, Tokenizer};

/// A token with its text and log-probability.
#[derive(Clone, Debug)]
pub(crate) struct TokenPiece {
    /// Token id.
    pub(crate) id: u32,
    /// Text that can be sent with this token.
    pub(crate) text: String,
    /// Number of characters of text before the token.
    pub(crate) offset: usize,
    /// Log-probabilities of the token, if the request asks for them.
    pub(crate) scored: Option<TokenScore>,
}

/// The text of one sequence. Without a tokenizer it is empty.
pub(crate) struct SequenceText<'t> {
    stream: Option<TextStream<'t>>,
    stops: Vec<String>,
    /// Text that is held back because a stop string may start in it.
    held: String,
    /// Number of characters so far, including held-back text.
    length: usize,
    has_stopped: bool,
}

impl<'t> SequenceText<'t> {
    /// Starts an empty text.
    pub(crate) fn new(tokenizer: Option<&'t dyn Tokenizer>, stops: Vec<String>) -> Self {
        let stream = tokenizer.map(TextStream::new);
        Self { stream, stops, held: String::new(), length: 0, has_stopped: false }
    }

    /// Adds a prompt token, in which stop strings are ignored.
    ///
    /// # Errors
    /// If the id is outside the vocabulary.
    pub(crate) fn read(&mut self, id: u32, scored: Option<TokenScore>) -> Result<TokenPiece> {
        let offset = self.length;
        let text = self.grown(id)?;
        Ok(TokenPiece { id, text, offset, scored })
    }

    /// Restarts the character count after the prompt, if the answer does not contain the prompt.
    pub(crate) fn restart(&mut self) {
        self.length = 0;
    }

    /// Adds a generated token.
    ///
    /// # Errors
    /// If the id is outside the vocabulary.
    pub(crate) fn push(&mut self, id: u32, scored: Option<TokenScore>) -> Result<TokenPiece> {
        let offset = self.length;
        let new = self.grown(id)?;
        let text = self.released(&new);
        Ok(TokenPiece { id, text, offset, scored })
    }

    /// Returns a token that ends the text and has no text of its own.
    pub(crate) fn silent(&self, id: u32, scored: Option<TokenScore>) -> TokenPiece {
        TokenPiece { id, text: String::new(), offset: self.length, scored }
    }

    /// Returns true if a stop string has occurred.
    pub(crate) fn has_stopped(&self) -> bool {
        self.has_stopped
    }

    /// Returns the text that was held back, at the end of the sequence.
    ///
    /// # Errors
    /// If an id is outside the vocabulary.
    pub(crate) fn finish(&mut self) -> Result<String> {
        if self.has_stopped {
            return Ok(String::new());
        }
        let rest = self.stream.take().map_or(Ok(String::new()), TextStream::finish)?;
        let text = self.released(&rest);
        Ok(if self.has_stopped { text } else { text + &std::mem::take(&mut self.held) })
    }

    fn grown(&mut self, id: u32) -> Result<String> {
        let text = self.stream.as_mut().map_or(Ok(String::new()), |stream| stream.push(id))?;
        self.length += text.chars().count();
        Ok(text)
    }

    /// Appends `new` to the held text and returns the part that cannot belong to a stop string.
    fn released(&mut self, new: &str) -> String {
        let mut text = std::mem::take(&mut self.held) + new;
        if let Some(end) = self.stops.iter().filter_map(|stop| text.find(stop.as_str())).min() {
            self.has_stopped = true;
            text.truncate(end);
            return text;
        }
        let begins_stop = |&start: &usize| self.stops.iter().any(|stop| stop.starts_with(&text[start..]));
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let starts = text.char_indices().map(|(start, _)| start);
        let held = starts.filter(|start| start + longest > text.len()).find(begins_stop);
        self.held = text.split_off(held.unwrap_or(text.len()));
        text
    }
}

/// Names of tokens in lists of log-probabilities. Each id has one name, independent of its position.
pub(crate) struct TokenNames {
    tokenizer: Option<Arc<dyn Tokenizer>>,
    /// A token of plain text, and the length of its text. Other tokens are decoded after it, so that they are decoded
    /// as in the middle of a text.
    anchor: Option<(u32, usize)>,
}

impl TokenNames {
    /// Creates names from a tokenizer, or from ids without one.
    pub(crate) fn new(tokenizer: Option<Arc<dyn Tokenizer>>) -> Self {
        let plain = SpecialTokens { add: false, parse: false };
        let anchor = tokenizer.as_ref().and_then(|tokenizer| {
            let id = *tokenizer.encode_with("a", plain).ok()?.last()?;
            Some((id, tokenizer.decode(&[id]).ok()?.len()))
        });
        Self { tokenizer, anchor }
    }

    /// Returns the bytes of a token in the middle of a text; for a control token, those of its name.
    pub(crate) fn bytes(&self, id: u32) -> Vec<u8> {
        let Some(tokenizer) = &self.tokenizer else { return Vec::new() };
        let (before, length) = self.anchor.map_or((None, 0), |(id, length)| (Some(id), length));
        let ids: Vec<u32> = before.into_iter().chain([id]).collect();
        let mut bytes = tokenizer.decode(&ids).unwrap_or_default();
        let bytes = bytes.split_off(length.min(bytes.len()));
        match bytes.is_empty() {
            true => tokenizer.piece(id).unwrap_or_default().into_bytes(),
            false => bytes,
        }
    }

    /// Returns the name of a token: its text, its bytes in OpenAI's notation for a part of a character, or
    /// `token_id:7`.
    pub(crate) fn name(&self, id: u32, by_id: bool) -> String {
        if by_id || self.tokenizer.is_none() {
            return format!("token_id:{id}");
        }
        String::from_utf8(self.bytes(id)).unwrap_or_else(|error| {
            let bytes = error.as_bytes().iter();
            "bytes:".to_owned() + &bytes.map(|byte| format!("\\x{byte:02x}")).collect::<String>()
        })
    }
}
