//! Writes log-probability files.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::atomic_write::UnfinishedFile;
use crate::error::{Error, Result};
use crate::kld::logits_file::{MAGIC, row_bytes, rows_of};
use crate::measure::Prediction;

/// Writes a log-probability file chunk by chunk. The file gets its final name when it is complete.
pub struct LogitsWriter {
    path: PathBuf,
    file: BufWriter<UnfinishedFile>,
    n_ctx: usize,
    n_vocab: usize,
    chunks_left: usize,
    perplexity: Perplexity,
}

/// Perplexity: exp of the mean -log p of the next tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Perplexity {
    sum: f64,
    squares: f64,
    count: usize,
}

impl Perplexity {
    /// Adds a token by its -log p.
    pub(crate) fn add(&mut self, nll: f32) {
        let nll = f64::from(nll);
        self.sum += nll;
        self.squares += nll * nll;
        self.count += 1;
    }

    /// Returns the number of tokens that were added.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the perplexity and its standard error under the assumption that tokens are independent, as in
    /// llama-perplexity.
    pub fn value(&self) -> (f64, f64) {
        let count = self.count as f64;
        let mean = self.sum / count;
        let variance = (self.squares / count - mean * mean).max(0.0);
        (mean.exp(), mean.exp() * (variance / (count - 1.0)).sqrt())
    }
}

impl LogitsWriter {
    /// Starts a file with chunks of `n_ctx` tokens each.
    ///
    /// # Errors
    /// If the path already exists, the file cannot be written, or a size exceeds the format's 31 bits.
    ///
    /// # Panics
    /// If a chunk has fewer than three tokens, or the number of tokens is not a multiple of `n_ctx`.
    pub fn create(path: &Path, n_vocab: usize, n_ctx: usize, tokens: &[u32]) -> Result<Self> {
        assert!(n_ctx > 2 && !tokens.is_empty() && tokens.len().is_multiple_of(n_ctx), "whole chunks");
        if path.exists() {
            return Err(Error::Usage(format!(
                "{} already exists; use another name or remove it",
                path.display()
            )));
        }
        let file = UnfinishedFile::of(path).map_err(Error::io("create", path))?;
        let chunks = tokens.len() / n_ctx;
        let mut header = MAGIC.to_vec();
        for number in [n_ctx, n_vocab, chunks].into_iter().chain(tokens.iter().map(|&id| id as usize)) {
            let fits = i32::try_from(number);
            let number =
                fits.map_err(|_| Error::Usage(format!("{number} is too large for a log-probability file")))?;
            header.extend(number.to_le_bytes());
        }
        let mut file = BufWriter::new(file);
        file.write_all(&header).map_err(Error::io("write", path))?;
        let perplexity = Perplexity::default();
        Ok(Self { path: path.to_owned(), file, n_ctx, n_vocab, chunks_left: chunks, perplexity })
    }

    /// Writes a chunk. `rows` are the predictions after positions n_ctx/2 to n_ctx - 2, each with the next
    /// token.
    ///
    /// # Errors
    /// If the file cannot be written.
    ///
    /// # Panics
    /// If the number of rows or the vocabulary size is wrong.
    pub fn chunk(&mut self, rows: &[(Prediction, u32)]) -> Result<()> {
        assert!(rows.len() == rows_of(self.n_ctx) && self.chunks_left > 0, "the rows of a chunk");
        assert!(rows.iter().all(|(row, _)| row.len() == self.n_vocab), "one vocabulary");
        rows.iter().for_each(|(row, next)| self.perplexity.add(row.nll(*next)));
        let encoded: Vec<Vec<u8>> = rows.par_iter().map(|(row, _)| encoded(row)).collect();
        self.chunks_left -= 1;
        let mut write = || encoded.iter().try_for_each(|row| self.file.write_all(row));
        write().map_err(Error::io("write", &self.path))
    }

    /// Gives the file its final name and returns its perplexity.
    ///
    /// # Errors
    /// If the file cannot be written, or the name exists by now.
    ///
    /// # Panics
    /// If a chunk was not written.
    pub fn finish(self) -> Result<Perplexity> {
        assert_eq!(self.chunks_left, 0, "every chunk is written");
        let file =
            self.file.into_inner().map_err(|error| Error::io("write", &self.path)(error.into_error()))?;
        file.finish_new().map_err(Error::io("create", &self.path))?;
        Ok(self.perplexity)
    }
}

/// Encodes a row for the file.
fn encoded(row: &Prediction) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(row_bytes(row.len()));
    row.write_codes(&mut bytes);
    bytes.resize(row_bytes(row.len()), 0);
    bytes
}
