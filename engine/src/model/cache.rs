//! State of a model between passes: what each layer keeps for later tokens, such as keys and values.

use std::sync::Arc;

use crate::error::{Result, RunError};
use crate::tensor::Tensor;

/// Number of tokens that memory is allocated for at a time.
const CHUNK: usize = 256;

/// Number of tokens that are dropped at a time. Each position then stays in the same lane of the sums over keys.
const ALIGNED: usize = 32;

/// Keys and values of one layer for every position that may still be read, each `[S, Hkv, D]`.
///
/// Attention takes the cached rows out, appends the pass's new rows, and puts all rows back. If a tap replaces
/// rows, later passes read the replaced rows.
#[derive(Clone, Debug, Default)]
pub struct KvLayer {
    keys: Option<Tensor>,
    values: Option<Tensor>,
    /// True if the cache drops positions before the layer's window.
    forgets: bool,
    dropped: usize,
    scales: CacheScales,
}

/// Scales of one layer's FP8 cache. Keys and values are divided by them before they are stored. Keys and values
/// have one scale each, or one for each head.
#[derive(Clone, Debug, Default)]
pub(crate) struct CacheScales {
    /// Scales of keys.
    pub(crate) keys: Option<Arc<[f32]>>,
    /// Scales of values.
    pub(crate) values: Option<Arc<[f32]>>,
}

impl KvLayer {
    /// Creates an empty cache with these scales.
    pub(crate) fn with_scales(scales: CacheScales) -> Self {
        Self { scales, ..Self::default() }
    }

    /// Returns the scales.
    pub(crate) fn scales(&self) -> &CacheScales {
        &self.scales
    }

    /// Appends `k` (`[T, Hkv, D]`) and returns all cached keys.
    pub(crate) fn take_keys(&mut self, k: &Tensor) -> Tensor {
        extended(self.keys.take(), k)
    }

    /// Appends `v` (`[T, Hkv, D]`) and returns all cached values.
    pub(crate) fn take_values(&mut self, v: &Tensor) -> Tensor {
        extended(self.values.take(), v)
    }

    /// Puts keys and values back into the cache. If the layer's tokens see at most `window` positions and the cache
    /// forgets, only the positions that the next token sees are kept.
    pub(crate) fn keep(&mut self, keys: Tensor, values: Tensor, window: Option<usize>) {
        let window = window.filter(|_| self.forgets);
        let behind = window.map_or(0, |window| keys.rows().saturating_sub(window.saturating_sub(1)));
        let gone = behind / ALIGNED * ALIGNED;
        let kept = |all: Tensor| Some(if gone > 0 { all.without_first(gone) } else { all });
        (self.keys, self.values) = (kept(keys), kept(values));
        self.dropped += gone;
    }

    /// Returns the position of the first key in the cache.
    pub(crate) fn first(&self) -> usize {
        self.dropped
    }

    /// Drops positions before the layer's window, starting with the next pass.
    fn forget(&mut self) {
        self.forgets = true;
    }

    /// Returns the position of the next token. `None` if the cache does not have this many key values and this many
    /// values per token.
    pub(crate) fn position(&self, widths: [usize; 2]) -> Option<usize> {
        let [keys, values] =
            [&self.keys, &self.values].map(|kept| kept.as_ref().map_or(0, |kept| kept.data().len()));
        let tokens = keys.checked_div(widths[0])?;
        (keys == tokens * widths[0] && values == tokens * widths[1]).then(|| self.dropped + tokens)
    }

    /// Drops all keys and values.
    pub(crate) fn clear(&mut self) {
        *self = Self { forgets: self.forgets, scales: self.scales.clone(), ..Self::default() };
    }

    /// Returns the size in bytes.
    fn bytes(&self) -> usize {
        let kept = [&self.keys, &self.values].into_iter().flatten();
        kept.map(Tensor::capacity).sum::<usize>() * size_of::<f32>()
    }
}

/// Returns `earlier` followed by the rows of `new`.
fn extended(earlier: Option<Tensor>, new: &Tensor) -> Tensor {
    let none = || Tensor::new(&[&[0], &new.shape()[1..]].concat(), Vec::new());
    earlier.unwrap_or_else(none).followed_by(new, CHUNK)
}

/// Sizes of the state of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecurrentSizes {
    /// Channels of the short convolution, C.
    pub(crate) channels: usize,
    /// Number of earlier inputs that the convolution reads: the length of its kernel - 1.
    pub(crate) kept: usize,
    /// Number of heads, and rows and columns of each head's matrix; zeros for a layer without matrices.
    pub(crate) matrices: [usize; 3],
    /// True if step sizes have limits. transformers does not apply them in single-token decode.
    pub(crate) has_limits: bool,
}

impl RecurrentSizes {
    /// Returns the number of values that a layer keeps between passes.
    pub(crate) fn values(self) -> u128 {
        let product = |sizes: &[usize]| sizes.iter().map(|&size| size as u128).product::<u128>();
        product(&[self.channels, self.kept]) + product(&self.matrices)
    }
}

/// State of a recurrent layer: the latest inputs of its short convolution, and one matrix per head. Both are zero
/// before the first token.
#[derive(Clone, Debug)]
pub struct RecurrentLayer {
    sizes: RecurrentSizes,
    /// `[kept, C]`
    inputs: Option<Tensor>,
    /// `[heads, rows, columns]`
    matrices: Option<Tensor>,
    tokens: usize,
}

impl RecurrentLayer {
    /// Creates the state before the first token.
    pub(crate) fn new(sizes: RecurrentSizes) -> Self {
        Self { sizes, inputs: None, matrices: None, tokens: 0 }
    }

    /// Appends the inputs of new tokens, `[T, C]`, to the kept inputs and returns both: `[kept + T, C]`. Then keeps
    /// only the latest inputs.
    pub(crate) fn extended(&mut self, new: &Tensor) -> Tensor {
        let RecurrentSizes { channels, kept, .. } = self.sizes;
        let zeros = || Tensor::new(&[kept, channels], vec![0.0; kept * channels]);
        let all = self.inputs.take().unwrap_or_else(zeros).followed_by(new, 1);
        self.inputs = Some(all.clone().without_first(new.rows()));
        self.tokens += new.rows();
        all
    }

    /// Returns the lengths of the axes of the recurrent state.
    pub(crate) fn sizes(&self) -> RecurrentSizes {
        self.sizes
    }

    /// Returns true before the first token.
    pub(crate) fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// Returns the matrices after the latest token: `[heads, rows, columns]`.
    pub(crate) fn matrices(&self) -> Tensor {
        let shape = self.sizes.matrices;
        let zeros = || Tensor::new(&shape, vec![0.0; shape.iter().product()]);
        self.matrices.clone().unwrap_or_else(zeros)
    }

    /// Replaces the matrices by those after the pass.
    pub(crate) fn keep(&mut self, matrices: Tensor) {
        self.matrices = Some(matrices);
    }

    /// Returns the size in bytes.
    fn bytes(&self) -> usize {
        let kept = [&self.inputs, &self.matrices].into_iter().flatten();
        kept.map(Tensor::capacity).sum::<usize>() * size_of::<f32>()
    }
}

/// State of one layer, by the kind of the layer. The model creates it
/// ([`Model::layer_state`](crate::model::Model::layer_state)).
#[derive(Clone, Debug)]
pub enum LayerState {
    /// Keys and values of attention.
    Kv(KvLayer),
    /// State of a recurrent layer.
    Recurrent(RecurrentLayer),
    /// Keys and values, and the recurrent state, of a layer with attention and a recurrence in parallel.
    Both(KvLayer, RecurrentLayer),
}

impl LayerState {
    /// Returns the keys and values.
    ///
    /// # Panics
    /// If the layer is recurrent. This is a bug of the caller: a layer gets the state that its model has created.
    pub(crate) fn kv(&mut self) -> &mut KvLayer {
        match self {
            LayerState::Kv(kv) | LayerState::Both(kv, _) => kv,
            LayerState::Recurrent(_) => panic!("a layer with attention has a KV cache"),
        }
    }

    /// Returns the state of a recurrent layer.
    ///
    /// # Panics
    /// If the layer has keys and values. See [`LayerState::kv`].
    pub(crate) fn recurrent(&mut self) -> &mut RecurrentLayer {
        match self {
            LayerState::Recurrent(layer) | LayerState::Both(_, layer) => layer,
            LayerState::Kv(_) => panic!("a recurrent layer has a recurrent state"),
        }
    }

    /// Returns the keys and values, and the recurrent state, if the layer has them.
    fn parts(&self) -> (Option<&KvLayer>, Option<&RecurrentLayer>) {
        match self {
            LayerState::Kv(kv) => (Some(kv), None),
            LayerState::Recurrent(layer) => (None, Some(layer)),
            LayerState::Both(kv, layer) => (Some(kv), Some(layer)),
        }
    }

    /// Returns the number of earlier inputs that the layer's short convolution reads; 0 without a convolution.
    pub fn kept_inputs(&self) -> usize {
        self.parts().1.map_or(0, |layer| layer.sizes.kept)
    }

    /// Returns true if the layer's recurrent state contains matrices.
    pub fn has_matrices(&self) -> bool {
        self.parts().1.is_some_and(|layer| layer.sizes.matrices[0] > 0)
    }

    /// Returns true if the step sizes of the layer's recurrence have limits.
    pub fn has_limited_steps(&self) -> bool {
        self.parts().1.is_some_and(|layer| layer.sizes.has_limits)
    }

    /// Returns the position of the next token. `None` if the state is of another kind of layer than `own`, or has other
    /// widths of keys and values.
    pub(crate) fn position(&self, own: &Self, widths: [usize; 2]) -> Option<usize> {
        match (self, own) {
            (LayerState::Kv(kv), LayerState::Kv(_)) => kv.position(widths),
            (LayerState::Recurrent(layer), LayerState::Recurrent(own)) => {
                (layer.sizes == own.sizes).then_some(layer.tokens)
            }
            (LayerState::Both(kv, layer), LayerState::Both(_, own)) => {
                kv.position(widths).filter(|&position| layer.sizes == own.sizes && layer.tokens == position)
            }
            _ => None,
        }
    }

    /// Drops all earlier tokens.
    pub(crate) fn clear(&mut self) {
        match self {
            LayerState::Kv(kv) => kv.clear(),
            LayerState::Recurrent(layer) => *layer = RecurrentLayer::new(layer.sizes),
            LayerState::Both(kv, layer) => {
                kv.clear();
                *layer = RecurrentLayer::new(layer.sizes);
            }
        }
    }

    /// Drops the positions that no later token sees, starting with the next pass.
    fn forget(&mut self) {
        match self {
            LayerState::Kv(kv) | LayerState::Both(kv, _) => kv.forget(),
            LayerState::Recurrent(_) => {}
        }
    }

    /// Returns true if earlier positions were dropped.
    pub(crate) fn has_dropped(&self) -> bool {
        self.parts().0.is_some_and(|kv| kv.first() > 0)
    }

    /// Returns the size in bytes.
    fn bytes(&self) -> usize {
        let (kv, recurrent) = self.parts();
        kv.map_or(0, KvLayer::bytes) + recurrent.map_or(0, RecurrentLayer::bytes)
    }
}

/// State of a whole model. It grows in chunks up to its capacity, which is at most the model's context.
#[derive(Clone, Debug)]
pub(crate) struct ModelState {
    /// States of the layers, in order.
    pub(crate) layers: Vec<LayerState>,
    capacity: usize,
    len: usize,
}

impl ModelState {
    /// Creates the state before the first token, for at most `capacity` tokens, from empty `layers`.
    pub(crate) fn new(layers: Vec<LayerState>, capacity: usize) -> Self {
        Self { layers, capacity, len: 0 }
    }

    /// Lets layers with a sliding window keep only the positions that the next token sees.
    pub(crate) fn forgetting(mut self) -> Self {
        self.layers.iter_mut().for_each(LayerState::forget);
        self
    }

    /// Returns the number of tokens that were read, which is the position of the next token.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the current size of all layers in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.layers.iter().map(LayerState::bytes).sum()
    }

    /// Checks that `tokens` more tokens fit.
    ///
    /// # Errors
    /// [`RunError::CacheFull`] if they do not.
    pub(crate) fn check_room(&self, tokens: usize) -> Result<()> {
        let (position, capacity) = (self.len, self.capacity);
        if tokens <= capacity - position {
            return Ok(());
        }
        Err(RunError::CacheFull { tokens, position, capacity }.into())
    }

    /// Records that every layer has added `tokens` tokens.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }
}
