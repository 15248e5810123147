//! Tokenizers of the `tokenizers` library, which is what transformers runs.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

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
        let encoding = caught(|| self.inner.encode_fast(text, add_special))?;
        let (before, after) = if add_special { (self.before, self.after) } else { (None, None) };
        Ok(before.into_iter().chain(encoding.get_ids().iter().copied()).chain(after).collect())
    }

    /// The library gives text: an unfinished character is U+FFFD already.
    fn decode(&self, ids: &[u32]) -> Result<Vec<u8>> {
        let unknown = |&(_, &id): &(usize, &u32)| self.inner.id_to_token(id).is_none();
        if let Some((position, &id)) = ids.iter().enumerate().find(unknown) {
            return Err(Error::BadToken { id, position, vocab_size: self.vocab_size() });
        }
        caught(|| self.inner.decode(ids, true)).map(String::into_bytes)
    }
}

/// The result of a call into the library. It panics at some vocabularies that contradict themselves: at a template
/// that names a token without an id, for one. Nothing of it is used after that.
pub(super) fn caught<T, E: Display>(call: impl FnOnce() -> Result<T, E>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|problem| refuse(problem.to_string())),
        Err(_) => Err(refuse("its parts contradict each other, and the tokenizers library gave up on it")),
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
