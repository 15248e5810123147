//! Tokenizers: text to token ids and back. One trait, and one file for each kind of tokenizer.

mod bounds;
mod byte_level;
mod chat;
mod files;
mod gguf;
mod gpt2;
mod hugging_face;
mod library;
mod llama2c;
mod llama_class;
mod merge;
mod model_proto;
mod sentencepiece;
mod settings;
mod stream;
#[cfg(feature = "templates")]
mod template;

pub use chat::Chat;
pub use files::TokenizerFiles;
pub use gguf::from_gguf;
pub use hugging_face::{HuggingFaceFiles, from_hugging_face};
pub use llama2c::Llama2cTokenizer;
pub use sentencepiece::{PieceVocabulary, SentencePiece, SentencePieceSettings, TokenizerRules};
pub use settings::SettingsFiles;
pub use stream::TextStream;
#[cfg(feature = "templates")]
pub use template::{ChatTemplate, Conversation};

use crate::error::{Error, Result, TokenizerError};

/// Handling of special tokens when a text is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecialTokens {
    /// True if the model's special tokens are added, usually BOS.
    pub add: bool,
    /// True if the name of a special token in the text is encoded as that token.
    pub parse: bool,
}

/// Converts text to token ids and back, as in the model's training.
pub trait Tokenizer: Send + Sync {
    /// Returns the number of token ids.
    fn vocab_size(&self) -> usize;

    /// Returns the ids of `text`.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    fn encode_with(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>>;

    /// Returns the ids of a prompt. Names of special tokens in `text` are encoded as those tokens.
    ///
    /// # Errors
    /// If the text cannot be encoded.
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.encode_with(text, SpecialTokens { add: add_special, parse: true })
    }

    /// Returns the piece of an id, as written in the vocabulary; `None` outside the vocabulary.
    fn piece(&self, id: u32) -> Option<String>;

    /// Decodes `ids` without control tokens. Returns bytes, because an id may be part of a character.
    ///
    /// # Errors
    /// If an id is outside the vocabulary.
    fn decode(&self, ids: &[u32]) -> Result<Vec<u8>>;

    /// Decodes `ids` for display: invalid UTF-8, usually an incomplete character, becomes U+FFFD.
    ///
    /// # Errors
    /// If an id is outside the vocabulary.
    fn decode_lossy(&self, ids: &[u32]) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.decode(ids)?).into_owned())
    }
}

fn refuse(problem: impl Into<String>) -> Error {
    TokenizerError::Unusable { file: None, problem: problem.into() }.into()
}
