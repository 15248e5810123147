//! Tokenizers of the `tokenizers` library, which transformers uses.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tokenizers::DecoderWrapper;

use crate::error::{Error, Result, TokenizerError};
use crate::library_panic;
use crate::tokenizer::sentencepiece::byte;
use crate::tokenizer::{SpecialTokens, Tokenizer, refuse};

/// A tokenizer of the `tokenizers` library. Adds special tokens before and after texts, such as BOS and EOS, that
/// the library's tokenizer does not add.
pub(super) struct Library {
    inner: tokenizers::Tokenizer,
    /// Tokenizer that treats names of special tokens as ordinary text. Created on first use.
    unparsed: OnceLock<tokenizers::Tokenizer>,
    before: Option<u32>,
    after: Option<u32>,
    /// File that errors name, if the library read it. Some contradictions in a file appear only in use.
    file: Option<PathBuf>,
}

impl Library {
    pub(crate) fn new(inner: tokenizers::Tokenizer, before: Option<u32>, after: Option<u32>) -> Self {
        Self { inner, unparsed: OnceLock::new(), before, after, file: None }
    }

    /// Sets the file that errors name.
    pub(crate) fn of(self, file: &Path) -> Self {
        Self { file: Some(file.to_owned()), ..self }
    }

    fn caught<T, E: Display>(&self, call: impl FnOnce() -> Result<T, E>) -> Result<T> {
        let name = |error: Error| match &self.file {
            Some(file) => error.of_tokenizer(file),
            None => error,
        };
        caught(call).map_err(name)
    }

    fn reading(&self, special: SpecialTokens) -> &tokenizers::Tokenizer {
        if special.parse {
            return &self.inner;
        }
        self.unparsed.get_or_init(|| {
            let mut unparsed = self.inner.clone();
            unparsed.set_encode_special_tokens(true);
            unparsed
        })
    }
}

impl Tokenizer for Library {
    fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    fn encode_with(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>> {
        let encoding = self.caught(|| self.reading(special).encode_fast(text, special.add))?;
        let (before, after) = if special.add { (self.before, self.after) } else { (None, None) };
        Ok(before.into_iter().chain(encoding.get_ids().iter().copied()).chain(after).collect())
    }

    fn piece(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Decodes ids to bytes. The library returns text, in which an incomplete character has already become U+FFFD. For
    /// byte-level pieces, and for byte pieces at the end, the original bytes are known and used.
    fn decode(&self, ids: &[u32]) -> Result<Vec<u8>> {
        let unknown = |&(_, &id): &(usize, &u32)| self.inner.id_to_token(id).is_none();
        if let Some((position, &id)) = ids.iter().enumerate().find(unknown) {
            return Err(TokenizerError::BadToken { id, position, vocab_size: self.vocab_size() }.into());
        }
        if matches!(self.inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            return Ok(self.texts(ids).flat_map(|piece| bytes_of(&piece)).collect());
        }
        let (ids, last) = ids.split_at(ids.len() - self.bytes_at_the_end(ids));
        let mut bytes = self.caught(|| self.inner.decode(ids, true)).map(String::into_bytes)?;
        bytes.extend(self.texts(last).filter_map(|piece| byte(&piece)));
        Ok(bytes)
    }
}

impl Library {
    /// Returns the pieces of all ids except special tokens.
    fn texts(&self, ids: &[u32]) -> impl Iterator<Item = String> {
        let texts = ids.iter().filter_map(|&id| self.inner.id_to_token(id));
        texts.filter(|piece| !self.inner.get_added_vocabulary().is_special_token(piece))
    }

    /// Returns the number of byte pieces at the end.
    fn bytes_at_the_end(&self, ids: &[u32]) -> usize {
        let has_bytes = match self.inner.get_decoder() {
            Some(DecoderWrapper::Sequence(all)) => {
                all.get_decoders().iter().any(|one| matches!(one, DecoderWrapper::ByteFallback(_)))
            }
            one => matches!(one, Some(DecoderWrapper::ByteFallback(_))),
        };
        let is_byte = |&&id: &&u32| self.inner.id_to_token(id).is_some_and(|piece| byte(&piece).is_some());
        if has_bytes { ids.iter().rev().take_while(is_byte).count() } else { 0 }
    }
}

/// Returns the bytes of a piece in GPT-2's alphabet. A piece with other characters stands for its own text, as in
/// the library.
fn bytes_of(piece: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = piece.chars().map(byte_of).collect();
    bytes.unwrap_or_else(|| piece.as_bytes().to_vec())
}

/// Returns the byte for a character of GPT-2's alphabet: printable bytes are themselves, others are numbered from
/// U+0100.
fn byte_of(character: char) -> Option<u8> {
    let is_printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let code = u32::from(character);
    match u8::try_from(code) {
        Ok(byte) => Some(byte).filter(is_printable),
        Err(_) => (0..=255).filter(|byte| !is_printable(byte)).nth((code - 0x100) as usize),
    }
}

/// Calls the library and turns a panic into an error. The library panics for some contradictory vocabularies, for
/// example if a template names a token without an id. No state is used after a panic.
pub(super) fn caught<T, E: Display>(call: impl FnOnce() -> Result<T, E>) -> Result<T> {
    match library_panic::caught(call) {
        Some(result) => result.map_err(|problem| refuse(problem.to_string())),
        None => Err(refuse("its parts contradict each other: the tokenizers library panicked")),
    }
}

/// Checks that a merge forms a piece of the vocabulary, since the library panics for some merges that do not.
/// `prefix` is the prefix of pieces inside words; it is removed from the right piece of a merge.
pub(super) fn check_merge(
    (left, right): (&str, &str),
    prefix: &str,
    is_piece: impl Fn(&str) -> bool,
) -> Result<()> {
    match right.get(prefix.len()..) {
        Some(rest) if is_piece(&[left, rest].concat()) => Ok(()),
        _ => Err(refuse(format!("the merge of '{left}' and '{right}' is not a piece"))),
    }
}
