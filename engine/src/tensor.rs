//! A tensor of activations: a shape and its values, row-major.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::parallel;

/// A dense, row-major array of `f32`: the result of one operation of the forward pass.
///
/// The outermost axis comes first, so `[T, H, D]` stores all heads of token 0, then of token 1. Tensors are immutable
/// values: operations read them and create new ones.
#[derive(Clone)]
pub struct Tensor {
    shape: Vec<usize>,
    data: Vec<f32>,
    origins: Vec<ValueOrigin>,
}

/// Origin of consecutive values, if the numerics record it.
#[derive(Clone)]
pub struct ValueOrigin {
    /// Operation that computed them; `None` for recorded values.
    pub(crate) source: Option<Arc<dyn Any + Send + Sync>>,
    /// Range of its results, counted row-major.
    pub(crate) range: Range<usize>,
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor").field("shape", &self.shape).field("data", &self.data).finish()
    }
}

/// Compares shape and values, and ignores the origins.
impl PartialEq for Tensor {
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape && self.data == other.data
    }
}

/// Number of values that one thread takes at a time.
const PIECE: usize = 4096;

impl Tensor {
    /// Wraps `data` in `shape`.
    ///
    /// # Panics
    /// If the shape does not have exactly `data.len()` values. This is a bug of the caller: files are checked when they
    /// are read.
    pub fn new(shape: &[usize], data: Vec<f32>) -> Self {
        assert_eq!(
            shape.iter().product::<usize>(),
            data.len(),
            "shape {shape:?} must match the number of values"
        );
        Self { shape: shape.to_vec(), data, origins: Vec::new() }
    }

    /// Creates a tensor without axes and with one value.
    pub fn scalar(value: f32) -> Self {
        Self::new(&[], vec![value])
    }

    /// Builds `[rows, width]` by calling `fill` for each row, in parallel.
    pub fn from_rows(rows: usize, width: usize, fill: impl Fn(usize, &mut [f32]) + Sync) -> Self {
        let mut data = vec![0.0; rows * width];
        parallel::chunks(&mut data, width.max(1), 4 * width, fill);
        Self::new(&[rows, width], data)
    }

    /// Changes the shape and keeps the values.
    ///
    /// # Panics
    /// If the number of values differs.
    pub fn reshaped(self, shape: &[usize]) -> Self {
        Self { origins: self.origins, ..Self::new(shape, self.data) }
    }

    /// Applies `f` to each value, in parallel.
    pub fn map(mut self, f: impl Fn(f32) -> f32 + Sync) -> Self {
        parallel::chunks(&mut self.data, PIECE, 4 * PIECE, |_, piece| {
            piece.iter_mut().for_each(|value| *value = f(*value));
        });
        self.origins.clear();
        self
    }

    /// Records `source` as the origin of all values.
    pub(crate) fn computed_by(self, source: Arc<dyn Any + Send + Sync>) -> Self {
        let range = 0..self.data.len();
        Self { origins: vec![ValueOrigin { source: Some(source), range }], ..self }
    }

    /// Sets the origins, for all values or for none.
    pub fn with_origins(self, origins: Vec<ValueOrigin>) -> Self {
        Self { origins, ..self }
    }

    /// Returns the origins of the values, piece by piece; empty if all values were recorded.
    pub fn origins(&self) -> &[ValueOrigin] {
        &self.origins
    }

    /// Appends the rows of `new`, whose entries have the same size. Memory is allocated for `chunk` rows at a time.
    pub(crate) fn followed_by(mut self, new: &Self, chunk: usize) -> Self {
        if !self.origins.is_empty() || !new.origins.is_empty() {
            self.origins = [self.origins_or_given(), new.origins_or_given()].concat();
        }
        let len = self.data.len() + new.data.len();
        if len > self.data.capacity() {
            self.data.reserve_exact(len.next_multiple_of(chunk * new.row_len()) - self.data.len());
        }
        self.data.extend_from_slice(&new.data);
        self.shape[0] += new.rows();
        self
    }

    /// Removes the first `rows` rows.
    pub(crate) fn without_first(mut self, rows: usize) -> Self {
        let gone = rows * self.row_len();
        if !self.origins.is_empty() {
            self.origins = cut(&self.origins, gone..self.data.len());
        }
        self.data.drain(..gone);
        self.shape[0] -= rows;
        self
    }

    fn origins_or_given(&self) -> Vec<ValueOrigin> {
        match self.origins.is_empty() {
            true => vec![ValueOrigin { source: None, range: 0..self.data.len() }],
            false => self.origins.clone(),
        }
    }

    /// Returns the number of values that fit without reallocation.
    pub(crate) fn capacity(&self) -> usize {
        self.data.capacity()
    }

    /// Returns the length of each axis, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns all values, row-major.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// Returns the values and drops the shape.
    pub fn into_data(self) -> Vec<f32> {
        self.data
    }

    /// Returns the length of the outermost axis: tokens, for nearly every tap.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Returns the number of values in one entry of the outermost axis.
    pub fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Returns the last entry of the outermost axis as a tensor.
    ///
    /// # Panics
    /// If the tensor has no entry.
    pub(crate) fn last_row(&self) -> Self {
        let mut shape = self.shape.clone();
        shape[0] = 1;
        let values = (self.rows() - 1) * self.row_len()..self.data.len();
        let origins = if self.origins.is_empty() { Vec::new() } else { cut(&self.origins, values.clone()) };
        Self { data: self.data[values].to_vec(), shape, origins }
    }

    /// Returns one entry of the outermost axis.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.data[index * self.row_len()..][..self.row_len()]
    }
}

/// Returns the origins of a range of values.
fn cut(origins: &[ValueOrigin], values: Range<usize>) -> Vec<ValueOrigin> {
    let mut start = 0;
    let pieces = origins.iter().filter_map(|origin| {
        let piece = start..start + origin.range.len();
        start = piece.end;
        let (from, to) = (piece.start.max(values.start), piece.end.min(values.end));
        let first = origin.range.start;
        let range = (first + from).checked_sub(piece.start)?..(first + to).checked_sub(piece.start)?;
        (from < to).then(|| ValueOrigin { source: origin.source.clone(), range })
    });
    pieces.collect()
}

/// RoPE pairing: which two values of a head rotate together. Converting to the other pairing permutes the rows of
/// the q and k projections, and thereby the q and k values of each head. Nothing else changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RopePairing {
    /// Pairs (i, i + D/2), as in transformers and NEOX.
    Half,
    /// Pairs (2i, 2i + 1), as in Meta's code and llama.cpp's llama.
    Interleaved,
}

impl RopePairing {
    /// Returns the name of the pairing in a dump's manifest.
    pub fn name(self) -> &'static str {
        match self {
            RopePairing::Half => "half",
            RopePairing::Interleaved => "interleaved",
        }
    }

    /// Returns the other of the two RoPE pairings.
    pub fn other(self) -> Self {
        match self {
            RopePairing::Half => RopePairing::Interleaved,
            RopePairing::Interleaved => RopePairing::Half,
        }
    }

    /// Returns the indices of the two values of pair `pair` in a head of `head_dim`.
    pub fn members(self, pair: usize, head_dim: usize) -> (usize, usize) {
        match self {
            RopePairing::Half => (pair, pair + head_dim / 2),
            RopePairing::Interleaved => (2 * pair, 2 * pair + 1),
        }
    }
}
