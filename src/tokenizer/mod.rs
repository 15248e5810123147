//! Text to token ids and back, behind one trait: one kind of tokenizer per file.

mod merge;
mod sentencepiece;

pub use sentencepiece::{SentencePiece, Settings, Vocabulary};

use crate::error::Result;

/// Text to token ids and back, as one model was trained to read and write it.
pub trait Tokenizer {
    /// How many ids there are.
    fn vocab_size(&self) -> usize;

    /// The ids of `text`; names of special tokens in it are text like any other. With `add_special`, between
    /// the BOS and EOS that the model's own settings ask for.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>>;

    /// What `ids` stand for, without control tokens. Bytes, because an id may stand for a part of a character.
    ///
    /// # Errors
    /// If an id is outside the vocabulary.
    fn decode(&self, ids: &[u32]) -> Result<Vec<u8>>;

    /// [`Tokenizer::decode`] for people: what is no UTF-8, an unfinished character mostly, becomes U+FFFD.
    ///
    /// # Errors
    /// If an id is outside the vocabulary.
    fn decode_lossy(&self, ids: &[u32]) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.decode(ids)?).into_owned())
    }
}
