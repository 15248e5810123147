//! An activation: a shape and its values, row-major, checked once when made.

use serde::{Deserialize, Serialize};

/// A dense, row-major array of `f32`, as one stage of the forward pass makes it.
///
/// The outermost axis comes first, so `[T, H, D]` holds all heads of token 0, then of token 1.
/// A tensor is a value: operations read it and make a new one.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    shape: Vec<usize>,
    data: Vec<f32>,
}

impl Tensor {
    /// Wraps `data` in `shape`.
    ///
    /// # Panics
    /// If the shape does not hold exactly `data.len()` values: a bug of the caller, since everything
    /// read from a file is checked where it is read.
    pub fn new(shape: &[usize], data: Vec<f32>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "shape {shape:?} against its values");
        Self { shape: shape.to_vec(), data }
    }

    /// A tensor without axes that holds one value.
    pub fn scalar(value: f32) -> Self {
        Self { shape: Vec::new(), data: vec![value] }
    }

    /// Builds `[rows, width]` by filling each row in turn, rows in parallel.
    pub fn from_rows(rows: usize, width: usize, fill: impl Fn(usize, &mut [f32]) + Sync) -> Self {
        use rayon::prelude::*;
        let mut data = vec![0.0; rows * width];
        data.par_chunks_mut(width.max(1)).enumerate().for_each(|(row, out)| fill(row, out));
        Self { shape: vec![rows, width], data }
    }

    /// The same values seen as another shape of the same size.
    ///
    /// # Panics
    /// If the sizes differ.
    pub fn reshaped(self, shape: &[usize]) -> Self {
        Self::new(shape, self.data)
    }

    /// The same shape with `f` applied to each value.
    pub fn map(mut self, f: impl Fn(f32) -> f32) -> Self {
        self.data.iter_mut().for_each(|value| *value = f(*value));
        self
    }

    /// Length of each axis, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// All values, row-major.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// The values without the shape.
    pub fn into_data(self) -> Vec<f32> {
        self.data
    }

    /// Length of the outermost axis: tokens, for nearly every tap.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Number of values in one entry of the outermost axis.
    pub fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// The last entry of the outermost axis, alone.
    ///
    /// # Panics
    /// If there is none.
    pub fn last_row(&self) -> Self {
        let mut shape = self.shape.clone();
        shape[0] = 1;
        Self { data: self.row(self.rows() - 1).to_vec(), shape }
    }

    /// One entry of the outermost axis.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.data[index * self.row_len()..][..self.row_len()]
    }
}

/// Which two values of a head RoPE rotates together. The same model in the other convention has the rows of
/// its q and k projections permuted, and every per-head q and k value with them; nothing else changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RopePairing {
    /// (i, i + D/2), as transformers and NEOX.
    Half,
    /// (2i, 2i + 1), as Meta's code and llama.cpp's llama.
    Interleaved,
}

impl RopePairing {
    /// The word in a dump's manifest.
    pub fn name(self) -> &'static str {
        match self {
            RopePairing::Half => "half",
            RopePairing::Interleaved => "interleaved",
        }
    }

    /// The one that it is not.
    pub fn other(self) -> Self {
        match self {
            RopePairing::Half => RopePairing::Interleaved,
            RopePairing::Interleaved => RopePairing::Half,
        }
    }

    /// Where the two values of pair `pair` stand in a head of `head_dim`.
    pub fn members(self, pair: usize, head_dim: usize) -> (usize, usize) {
        match self {
            RopePairing::Half => (pair, pair + head_dim / 2),
            RopePairing::Interleaved => (2 * pair, 2 * pair + 1),
        }
    }
}
