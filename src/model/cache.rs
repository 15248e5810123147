//! The KV cache: what attention keeps of earlier tokens.

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Keys and values of one layer for every position so far, each `[S, Hkv, D]`.
///
/// Attention takes them out, extended by the pass's own, and puts them back when it has read them: what a tap
/// makes of them on the way is what later passes see.
#[derive(Clone, Debug, Default)]
pub struct KvLayer {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl KvLayer {
    fn with_capacity(floats: usize) -> Self {
        Self { keys: Vec::with_capacity(floats), values: Vec::with_capacity(floats) }
    }

    /// All keys up to and including `k` (`[T, Hkv, D]`).
    pub fn take_keys(&mut self, k: &Tensor) -> Tensor {
        extended(std::mem::take(&mut self.keys), k)
    }

    /// All values up to and including `v` (`[T, Hkv, D]`).
    pub fn take_values(&mut self, v: &Tensor) -> Tensor {
        extended(std::mem::take(&mut self.values), v)
    }

    /// Puts back what was taken.
    pub fn keep(&mut self, keys: Tensor, values: Tensor) {
        self.keys = keys.into_data();
        self.values = values.into_data();
    }
}

/// `earlier` with the rows of `new` behind it.
fn extended(mut earlier: Vec<f32>, new: &Tensor) -> Tensor {
    earlier.extend_from_slice(new.data());
    let positions = earlier.len() / new.row_len();
    Tensor::new(&[positions, new.shape()[1], new.shape()[2]], earlier)
}

/// The cache of a whole model. Its capacity is its own: at most the context the model was trained for.
#[derive(Clone, Debug)]
pub struct KvCache {
    /// One entry per layer.
    pub layers: Vec<KvLayer>,
    capacity: usize,
    len: usize,
}

impl KvCache {
    /// An empty cache for `n_layers` layers and `capacity` tokens of `kv_width` keys each.
    pub fn new(n_layers: usize, capacity: usize, kv_width: usize) -> Self {
        let layers = (0..n_layers).map(|_| KvLayer::with_capacity(capacity * kv_width)).collect();
        Self { layers, capacity, len: 0 }
    }

    /// How many tokens it holds: the position of the next one.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes sure that `tokens` more fit.
    ///
    /// # Errors
    /// [`Error::CacheFull`] if they do not.
    pub fn check_room(&self, tokens: usize) -> Result<()> {
        let (position, capacity) = (self.len, self.capacity);
        if tokens <= capacity - position {
            return Ok(());
        }
        Err(Error::CacheFull { tokens, position, capacity })
    }

    /// Counts `tokens` that every layer has added.
    pub fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }
}
