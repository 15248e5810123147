//! Tokenizers of the `tokenizers` library, which is what transformers runs.

use std::fmt::Display;

use crate::error::{Error, Result};
use crate::tokenizer::{Tokenizer, refuse};

/// A tokenizer of the library, and what is put around texts that the library does not know of.
pub(super) struct Library {
    pub inner: tokenizers::Tokenizer,
    pub before: Option<u32>,
    pub after: Option<u32>,
}

impl Tokenizer for Library {
    fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, add_special).map_err(refuse_because)?;
        let (before, after) = if add_special { (self.before, self.after) } else { (None, None) };
        Ok(before.into_iter().chain(encoding.get_ids().iter().copied()).chain(after).collect())
    }

    /// The library gives text: an unfinished character is U+FFFD already.
    fn decode(&self, ids: &[u32]) -> Result<Vec<u8>> {
        let unknown = |&(_, &id): &(usize, &u32)| self.inner.id_to_token(id).is_none();
        if let Some((position, &id)) = ids.iter().enumerate().find(unknown) {
            return Err(Error::BadToken { id, position, vocab_size: self.vocab_size() });
        }
        self.inner.decode(ids, true).map(String::into_bytes).map_err(refuse_because)
    }
}

/// Makes sure that a merge makes a piece of the vocabulary: the library panics where it makes a longer one than
/// any. `prefix` is what pieces inside words begin with; of the right one it is left out.
pub(super) fn check_merge(
    (left, right): (&str, &str),
    prefix: &str,
    is_piece: impl Fn(&str) -> bool,
) -> Result<()> {
    match right.get(prefix.len()..) {
        Some(rest) if is_piece(&[left, rest].concat()) => Ok(()),
        _ => Err(refuse(format!("the merge of '{left}' and '{right}' makes no piece"))),
    }
}

/// What the library says of a text or vocabulary, as our refusal.
pub(super) fn refuse_because(problem: impl Display) -> Error {
    refuse(problem.to_string())
}
