//! Text to token ids and back, behind one trait: one kind of tokenizer per file.

mod byte_level;
mod gguf;
mod hugging_face;
mod library;
mod merge;
mod sentencepiece;

pub use gguf::from_gguf;
pub use hugging_face::{HuggingFaceFiles, from_hugging_face};
pub use sentencepiece::{SentencePiece, Settings, Vocabulary};

use crate::error::{Error, Result};

/// Text to token ids and back, as one model was trained to read and write it.
pub trait Tokenizer {
    /// How many ids there are.
    fn vocab_size(&self) -> usize;

    /// The ids of `text`, in which the name of a special token is that token. With `add_special`, between what
    /// the model's own settings ask for, BOS mostly.
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

fn refuse(problem: impl Into<String>) -> Error {
    Error::BadTokenizer { problem: problem.into() }
}
