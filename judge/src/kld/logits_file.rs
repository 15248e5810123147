//! Files of `llama-perplexity --kl-divergence-base`, mapped into memory.
//!
//! ```text
//! "_logits_"                     8 bytes
//! n_ctx, n_vocab, n_chunk        i32 each, little-endian
//! tokens                         i32 [n_chunk, n_ctx], as the text was cut
//! rows                           [n_chunk, n_ctx - 1 - n_ctx/2] of
//!   scale, least                 f32
//!   q                            u16 [n_vocab], padded to an even number: log p = scale·q + least
//! ```
//!
//! Row j of a chunk is the prediction after position n_ctx/2 + j.

use std::path::Path;

use crate::error::Result;
use crate::format::{FileBytes, Format};
use crate::measure::Prediction;

/// Magic bytes of a log-probability file.
pub const MAGIC: &[u8; 8] = b"_logits_";
/// Number of bytes before the tokens.
pub(super) const HEADER: usize = 20;
/// Number of bytes of `scale` and `least` at the start of a row.
pub(super) const ROW_HEADER: usize = 8;

/// A log-probability file with validated sizes.
#[derive(Clone, Debug)]
pub struct LogitsFile {
    source: FileBytes,
    n_ctx: usize,
    n_vocab: usize,
    tokens: Vec<u32>,
    /// Offset of the first row, in bytes.
    rows_at: usize,
}

/// Returns the first position of a chunk with a row in the file.
pub fn first_row(n_ctx: usize) -> usize {
    n_ctx / 2
}

/// Returns the number of rows per chunk.
pub(super) fn rows_of(n_ctx: usize) -> usize {
    n_ctx - 1 - first_row(n_ctx)
}

/// Returns the size of a row in bytes.
pub(super) fn row_bytes(n_vocab: usize) -> usize {
    ROW_HEADER + 2 * n_vocab.next_multiple_of(2)
}

impl LogitsFile {
    /// Opens a log-probability file without reading its rows.
    ///
    /// # Errors
    /// If the file has another format, has the wrong length, or has a token id outside its vocabulary.
    pub fn open(path: &Path) -> Result<Self> {
        Self::of(FileBytes::open(path)?)
    }

    /// Opens the file at a path; `None` if it is not a log-probability file.
    ///
    /// # Errors
    /// The errors of [`LogitsFile::open`].
    pub fn at(path: &Path) -> Result<Option<Self>> {
        if !path.is_file() {
            return Ok(None);
        }
        let source = FileBytes::open(path)?;
        Self::is_start(source.data.first(MAGIC.len())).then(|| Self::of(source)).transpose()
    }

    /// Returns true if bytes start like a log-probability file.
    pub(crate) fn is_start(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Reads a log-probability file from memory.
    ///
    /// # Errors
    /// The errors of [`LogitsFile::open`].
    pub fn of(source: FileBytes) -> Result<Self> {
        if !Self::is_start(source.data.first(MAGIC.len())) {
            return Err(Format::unexpected(&source, "a file of llama-perplexity --kl-divergence-base"));
        }
        if source.data.len() < HEADER {
            return Err(source.truncated("the header", 0, HEADER as u64));
        }
        let number = |index: usize, what: &str, least: usize| {
            let at = MAGIC.len() + 4 * index;
            let found = i32::from_le_bytes(source.data.at(at..at + 4).try_into().expect("four bytes"));
            let usable = usize::try_from(found).ok().filter(|&number| number >= least);
            usable.ok_or_else(|| source.bad(at, what, found, format!("{least} or more")))
        };
        // Chunks of fewer than three tokens have no rows.
        let (n_ctx, n_vocab, n_chunk) =
            (number(0, "n_ctx", 3)?, number(1, "n_vocab", 1)?, number(2, "n_chunk", 1)?);
        let (token_bytes, chunk_bytes) = (4 * n_ctx, rows_of(n_ctx) as u128 * row_bytes(n_vocab) as u128);
        let needed = HEADER as u128 + n_chunk as u128 * (token_bytes as u128 + chunk_bytes);
        let there = source.data.len() as u128;
        if there < needed {
            let what = format!("{n_chunk} chunks of {n_ctx} tokens and a vocabulary of {n_vocab}");
            return Err(source.truncated(what, 0, u64::try_from(needed).unwrap_or(u64::MAX)));
        }
        if there > needed {
            let expected = format!("the end of {n_chunk} chunks of {n_ctx} tokens");
            let found = format!("{} bytes more", there - needed);
            return Err(source.bad(needed as usize, "data after the last row", found, expected));
        }
        let rows_at = HEADER + n_chunk * token_bytes;
        let mut tokens = Vec::with_capacity(n_chunk * n_ctx);
        for (index, id) in source.data.at(HEADER..rows_at).chunks_exact(4).enumerate() {
            let id = i32::from_le_bytes(id.try_into().expect("four bytes"));
            let usable = u32::try_from(id).ok().filter(|&id| (id as usize) < n_vocab);
            let expected = || format!("an id of a vocabulary of {n_vocab}");
            let offset = HEADER + 4 * index;
            tokens.push(usable.ok_or_else(|| source.bad(offset, "a token", id, expected()))?);
        }
        Ok(Self { source, n_ctx, n_vocab, tokens, rows_at })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.source.path
    }

    /// Returns the number of tokens per chunk.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Returns the vocabulary size.
    pub(crate) fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Returns the text's tokens for each chunk. The model may have read BOS instead of the first token.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.tokens.chunks_exact(self.n_ctx)
    }

    /// Reads a row of a chunk.
    ///
    /// # Errors
    /// If the numbers are not log-probabilities.
    ///
    /// # Panics
    /// If the row does not exist.
    pub fn read(&self, chunk: usize, row: usize, into: &mut Prediction) -> Result<()> {
        let at = self.offset(chunk, row);
        let (scale, least) = self.header_of(at);
        let what = |field: &str| format!("chunk {chunk}, row {row}: {field}");
        // Half of `scale` counts as rounding, so a file with a huge scale could make any comparison pass. The
        // limit is twice the scale that llama-perplexity writes, since the difference of large logits is
        // rounded.
        let (widest, lowest) = (
            2.0 * Prediction::RANGE / Prediction::CODES,
            -2.0 * Prediction::RANGE - (self.n_vocab as f32).ln(),
        );
        if !(0.0..=widest).contains(&scale) {
            let expected = format!("0 to {widest:.1e}, the scale of rows that span {}", Prediction::RANGE);
            return Err(self.source.bad(at, what("the scale"), scale, expected));
        }
        if !(lowest..=0.0).contains(&least) {
            let expected = format!("a log-probability from {lowest:.1} to 0");
            return Err(self.source.bad(at + 4, what("the least log-probability"), least, expected));
        }
        let bytes = self.source.data.at(at + ROW_HEADER..at + ROW_HEADER + 2 * self.n_vocab);
        into.set_codes(scale, least, bytes);
        let (sum, [below, above]) = into.total();
        if !(1.0 - below..=1.0 + above).contains(&sum) {
            let expected = format!(
                "1, within -{below:.1e} and +{above:.1e}; the file is damaged, or was written by a build \
                 that misplaces rows in long chunks of large vocabularies"
            );
            return Err(self.source.bad(at, what("the sum of its probabilities"), sum, expected));
        }
        Ok(())
    }

    /// Releases the memory of pages that were read.
    pub(super) fn release(&self) {
        self.source.data.release();
    }

    fn header_of(&self, at: usize) -> (f32, f32) {
        let float =
            |at: usize| f32::from_le_bytes(self.source.data.at(at..at + 4).try_into().expect("four bytes"));
        (float(at), float(at + 4))
    }

    fn offset(&self, chunk: usize, row: usize) -> usize {
        assert!(row < rows_of(self.n_ctx) && chunk < self.tokens.len() / self.n_ctx, "a row that there is");
        self.rows_at + (chunk * rows_of(self.n_ctx) + row) * row_bytes(self.n_vocab)
    }
}
