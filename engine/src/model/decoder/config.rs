//! Sizes and constants of a decoder, and their checks.

use std::ops::Range;
use std::path::Path;

use crate::error::{Error, Result};
use crate::model::decoder::{
    BlockShape, BranchMultipliers, LatentSizes, LayerVariants, NormKind, Positions, RecurrentLayers,
    RecurrentMixer, StreamSettings,
};
use crate::model::quantisation::LinearClass;
use crate::model::size;
use crate::ops::activation::{Activation, ClampedGlu};
use crate::ops::attention::AttentionScale;
use crate::ops::experts::ExpertRouting;
use crate::ops::norm::{Gain, RmsNorm};
use crate::ops::rope::{Rope, RopeScaling};
use crate::ops::row_factor::QueryTemperature;
use crate::ops::scaling::Multiplier;
use crate::tensor::Tensor;

/// Sizes and constants of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Size of the vocabulary, V.
    pub vocab_size: usize,
    /// Width of the residual stream, d.
    pub hidden_size: usize,
    /// Width of the feed-forward block, F.
    pub(crate) ffn_size: usize,
    /// Number of transformer blocks.
    pub(crate) n_layers: usize,
    /// Number of extra layers in the file that predict further tokens. They are not computed.
    pub(crate) predicting_layers: usize,
    /// Number of query heads, H.
    pub n_heads: usize,
    /// Number of key and value heads, Hkv; each serves H / Hkv query heads.
    pub n_kv_heads: usize,
    /// Number of values in one head, D.
    pub head_dim: usize,
    /// Sizes of latent attention, if keys and values are compressed. `head_dim` is then the size of a query head.
    pub(crate) latent: Option<LatentSizes>,
    /// Number of positions that the model was trained for.
    pub context_length: usize,
    pub(crate) norm: NormKind,
    /// Epsilon, added to the mean square or variance in every norm.
    pub norm_eps: f32,
    /// Relation between the gain of the norms and this file's weights: the weight itself, or 1 + weight.
    pub norm_gain: Gain,
    /// Factor of the embeddings, if any.
    pub embed_scale: Option<Multiplier>,
    /// Factor of both halves of a block before they are added to the residual stream, if any.
    pub(crate) residual_scale: Option<f32>,
    /// Factor of the logits, if any.
    pub(crate) logits_scale: Option<Multiplier>,
    /// Soft cap of the scores, if any.
    pub(crate) attn_cap: Option<f32>,
    /// Soft cap of the logits, if any.
    pub(crate) logits_cap: Option<f32>,
    /// RoPE of all layers except those listed in `sliding`.
    pub rope: Rope,
    /// Sliding-window layers, if there are any.
    pub sliding: Option<SlidingWindow>,
    /// The way in which the model encodes positions.
    pub(crate) positions: Positions,
    /// Layers that do not rotate queries and keys; empty if all rotate.
    pub(crate) unrotated: Vec<bool>,
    /// Temperature of queries, if they have one.
    pub(crate) query_temperature: Option<QueryTemperature>,
    /// Factor of q·k.
    pub attn_scale: AttentionScale,
    /// The activation function of the feed-forward block.
    pub activation: Activation,
    /// Norms and halves of a block, for architectures with a [`StandardBlock`](crate::model::decoder::StandardBlock).
    pub(crate) shape: BlockShape,
    /// True if the vocabulary projection is the embedding table.
    pub tied_output: bool,
    /// BitNet's kind of linear layers, if a Hugging Face checkpoint has them.
    pub(crate) linear_class: Option<LinearClass>,
    /// Flags for the matrices that have a bias.
    pub biases: BiasFlags,
    /// Experts that replace the feed-forward block, if there are any. `ffn_size` is then the size of one expert.
    pub(crate) experts: Option<ExpertsConfig>,
    /// Layers without experts, in a model with experts.
    pub(crate) dense: Option<DenseLayers>,
    /// Layers with a recurrent state in place of keys and values, if there are any.
    pub(crate) recurrent: Option<RecurrentLayers>,
    /// Factors inside of a block, if there are any.
    pub(crate) multipliers: Option<BranchMultipliers>,
    /// Differences between layers, if there are any.
    pub(crate) variants: Option<LayerVariants>,
    /// Settings of several residual streams, if there are several.
    pub(crate) streams: Option<StreamSettings>,
    /// For each layer, true if it is only a feed-forward block, and false if it is only attention or what replaces it.
    /// `None` if all layers have both halves.
    pub(crate) single_halves: Option<Vec<bool>>,
    /// True if the weights contain a merged LoRA adapter.
    pub(crate) has_adapter: bool,
}

/// Flags of the matrices that have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BiasFlags {
    /// Biases of queries, keys and values.
    pub qkv: bool,
    /// Bias of the output projection of attention.
    pub output: bool,
    /// Biases of the feed-forward block.
    pub mlp: bool,
}

/// Layers without experts, in a model with experts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DenseLayers {
    /// Feed-forward size of the layers without experts.
    pub(crate) ffn_size: usize,
    /// True for each layer without experts.
    pub(crate) layers: Vec<bool>,
}

/// Experts of each layer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExpertsConfig {
    /// Number of experts, E.
    pub(crate) count: usize,
    /// Weighting of the chosen experts.
    pub(crate) routing: ExpertRouting,
    /// Feed-forward size of the shared expert, if there is one.
    pub(crate) shared_ffn_size: Option<usize>,
    /// True if the shared expert's output is multiplied by a weight, computed from a logit of each token.
    pub(crate) is_shared_weighted: bool,
    /// True if llama.cpp, too, computes the shared expert's weight as a plain sigmoid.
    pub(crate) has_plain_sigmoid: bool,
    /// Clamped GLU of experts with biases, if they have one.
    pub(crate) clamped: Option<ClampedGlu>,
    /// True if experts have a correction bias.
    pub(crate) has_bias: bool,
    /// True if the routing weights multiply the inputs of experts instead of their outputs.
    pub(crate) weighs_inputs: bool,
    /// True if Hugging Face files stack experts as `[experts, inputs, outputs]`.
    pub(crate) has_input_rows: bool,
    /// True if experts run next to a feed-forward block, and the experts, the feed-forward block and the router each
    /// have norms of their own.
    pub(crate) has_branch_norms: bool,
    /// Size of the compressed inputs of experts, if inputs are compressed.
    pub(crate) latent: Option<usize>,
}

impl ExpertsConfig {
    fn check(&self, file: &Path) -> Result<()> {
        let (count, used) = (self.count, self.routing.used);
        if !(1..=size::MAX_EXPERTS).contains(&count) {
            let expected = format!("1 to {}", size::MAX_EXPERTS);
            return Err(Error::bad_key(file, "number of experts", count, expected));
        }
        if !(1..=count).contains(&used) {
            let expected = format!("1 to {count}, the number of experts");
            return Err(Error::bad_key(file, "number of experts per token", used, expected));
        }
        if let Some(groups) = self.routing.groups {
            let in_group = count / groups.count;
            if !count.is_multiple_of(groups.count) || in_group < groups.summed {
                let expected =
                    format!("a divisor of the {count} experts, with 2 or more experts in each group");
                return Err(Error::bad_key(file, "number of expert groups", groups.count, expected));
            }
            let least = used.div_ceil(in_group);
            if !(least..=groups.count).contains(&groups.used) {
                let expected = format!("{least} to {}, for {used} experts per token", groups.count);
                return Err(Error::bad_key(file, "number of expert groups per token", groups.used, expected));
            }
        }
        let shared = self.shared_ffn_size.map(|width| ("feed-forward size of the shared expert", width));
        let latent = self.latent.map(|width| ("size of compressed inputs of experts", width));
        size::check(file, shared.as_slice())?;
        size::check(file, latent.as_slice())
    }
}

/// Sliding-window layers.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingWindow {
    /// Number of tokens that a query sees, itself included.
    pub window: usize,
    /// True if windows are chunks of positions: a token sees itself and earlier tokens of its own chunk only.
    pub(crate) is_chunk: bool,
    /// Rotary positions of these layers.
    pub rope: Rope,
    /// True for each layer that has the sliding window.
    pub layers: Vec<bool>,
}

impl DecoderConfig {
    /// Reshapes `[T, heads · D]` to `[T, heads, D]`.
    pub fn heads(&self, x: Tensor) -> Tensor {
        let shape = [x.rows(), x.row_len() / self.head_dim, self.head_dim];
        x.reshaped(&shape)
    }

    /// Creates an RMSNorm with this weight.
    pub(crate) fn rms_norm(&self, weight: Vec<f32>) -> RmsNorm {
        RmsNorm { weight, eps: self.norm_eps, gain: self.norm_gain, groups: 1 }
    }

    /// Returns the widths of a cached key and of a cached value of one token.
    pub(crate) fn cache_widths(&self) -> [usize; 2] {
        match self.latent {
            Some(LatentSizes { rank, rotated, .. }) => [rank + rotated, rank],
            None => [self.n_kv_heads * self.head_dim; 2],
        }
    }

    /// Returns the size of a head and the number of key-value heads in a layer.
    pub(crate) fn head_sizes(&self, layer: usize) -> [usize; 2] {
        match &self.variants {
            Some(variants) if !self.slides(layer) => variants.full_heads,
            _ => [self.head_dim, self.n_kv_heads],
        }
    }

    /// Returns true if a layer has a sliding window.
    pub fn slides(&self, layer: usize) -> bool {
        self.sliding.as_ref().is_some_and(|sliding| sliding.layers[layer])
    }

    /// Returns the width of a layer's feed-forward block, if the layer has no experts.
    pub(super) fn dense_ffn_size(&self, layer: usize) -> Option<usize> {
        match (&self.experts, &self.dense) {
            (None, _) => Some(match &self.variants {
                Some(variants) if variants.shares(self, layer) => variants.sharing_ffn_size,
                _ => self.ffn_size,
            }),
            (Some(_), dense) => {
                dense.as_ref().filter(|dense| dense.layers[layer]).map(|dense| dense.ffn_size)
            }
        }
    }

    /// Returns the layers that read keys and values of earlier layers.
    pub(super) fn sharing_layers(&self) -> Range<usize> {
        let sharing = self.variants.as_ref().map_or(0, |variants| variants.n_sharing);
        self.n_layers.saturating_sub(sharing)..self.n_layers
    }

    /// Returns the operation of a recurrent layer in place of attention; `None` for a layer with attention.
    pub(super) fn recurrent_mixer(&self, layer: usize) -> Option<RecurrentMixer> {
        let recurrent = self.recurrent.as_ref()?;
        recurrent.layers.get(layer).copied().unwrap_or(false).then_some(recurrent.mixer)
    }

    /// Returns true if a layer applies RoPE.
    pub(crate) fn rotates(&self, layer: usize) -> bool {
        self.positions == Positions::Rotary && !self.unrotated.get(layer).copied().unwrap_or(false)
    }

    /// Returns a flag for each layer that is true for full attention, if the model's files state a window. Otherwise
    /// returns no flags.
    pub(super) fn full_layers(&self, states_window: bool) -> Vec<bool> {
        match states_window {
            true => (0..self.n_layers).map(|layer| !self.slides(layer)).collect(),
            false => Vec::new(),
        }
    }

    /// Checks the relations between the numbers. Applies to every file format.
    pub(super) fn check(&self, file: &Path) -> Result<()> {
        let sizes = [
            ("vocabulary size", self.vocab_size),
            ("hidden size", self.hidden_size),
            ("feed-forward size", self.ffn_size),
            (size::LAYERS, self.n_layers),
            ("number of query heads", self.n_heads),
            ("number of key-value heads", self.n_kv_heads),
            ("context length", self.context_length),
        ];
        size::check(file, &sizes)?;
        if self.predicting_layers > size::MAX_LAYERS {
            let expected = format!("at most {}", size::MAX_LAYERS);
            return Err(Error::bad_key(
                file,
                "number of predicting layers",
                self.predicting_layers,
                expected,
            ));
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            let expected = format!("a divisor of the {} query heads", self.n_heads);
            return Err(Error::bad_key(file, "number of key-value heads", self.n_kv_heads, expected));
        }
        if !(2..=size::MAX_SIZE).contains(&self.head_dim) || !self.head_dim.is_multiple_of(2) {
            return Err(Error::bad_key(
                file,
                "head size",
                self.head_dim,
                "an even number: RoPE rotates pairs",
            ));
        }
        if let Some(latent) = &self.latent {
            let sizes = [
                ("rank of queries", latent.query_rank.unwrap_or(1)),
                ("rank of keys and values", latent.rank),
                ("unrotated part of a head", latent.plain),
                ("rotated part of a head", latent.rotated),
                ("value head size", latent.value),
            ];
            size::check(file, &sizes)?;
        }
        if !(self.norm_eps > 0.0 && self.norm_eps < 1.0) {
            return Err(Error::bad_key(
                file,
                &format!("{} epsilon", self.norm.name()),
                self.norm_eps,
                "a small positive number",
            ));
        }
        self.experts.iter().try_for_each(|experts| experts.check(file))?;
        let dense = self.dense.as_ref().map(|dense| ("feed-forward size", dense.ffn_size));
        size::check(file, dense.as_slice())?;
        for rope in
            [Some(&self.rope), self.sliding.as_ref().map(|sliding| &sliding.rope)].into_iter().flatten()
        {
            check_rope(rope, file)?;
        }
        match &self.sliding {
            Some(sliding) if sliding.window == 0 => {
                Err(Error::bad_key(file, "sliding window", 0, "1 token or more"))
            }
            _ => Ok(()),
        }
    }
}

fn check_rope(rope: &Rope, file: &Path) -> Result<()> {
    if rope.width < 2 || !rope.width.is_multiple_of(2) {
        return Err(Error::bad_key(file, "RoPE width", rope.width, "an even number: RoPE rotates pairs"));
    }
    if !(rope.theta >= 1.0 && rope.theta.is_finite()) {
        return Err(Error::bad_key(file, "RoPE theta", rope.theta, "a finite number of 1 or more"));
    }
    match &rope.scaling {
        RopeScaling::Long { short, long, magnitude, .. } => {
            let all = [short, long].into_iter().flatten().chain([magnitude]);
            let is_sound = |number: &&f32| **number > 0.0 && number.is_finite();
            let bad = all.clone().find(|number| !is_sound(number));
            match bad {
                Some(number) => Err(Error::bad_key(file, "LongRoPE factor", number, "positive numbers")),
                None if [short, long].iter().any(|factors| factors.len() != rope.width / 2) => {
                    let expected = format!("{} long and short factors, one for each pair", rope.width / 2);
                    Err(Error::bad_key(file, "LongRoPE factors", short.len().min(long.len()), expected))
                }
                None => Ok(()),
            }
        }
        RopeScaling::Yarn(yarn) => match yarn.bad_setting() {
            Some((name, found, expected)) => Err(Error::bad_key(file, name, found, expected)),
            None if rope.theta == 1.0 => Err(Error::bad_key(file, "RoPE theta", 1, "more than 1 with YaRN")),
            None if !yarn.has_ramp(rope.theta, rope.width) => {
                let expected = "a context in which the slowest pair of a head turns less often than beta_fast \
                                and the fastest more often than beta_slow";
                Err(Error::bad_key(file, "YaRN original context", yarn.original_context, expected))
            }
            None => Ok(()),
        },
        &RopeScaling::Linear(factor) if !(factor > 0.0 && factor.is_finite()) => {
            Err(Error::bad_key(file, "RoPE scaling factor", factor, "a positive number"))
        }
        _ => Ok(()),
    }
}

/// Default base of RoPE in llama.cpp and transformers, for files that state none.
pub(super) const DEFAULT_THETA: f32 = 10_000.0;

/// Returns the head size for a file that does not state it.
pub(super) fn derive_head_dim(file: &Path, key: &str, hidden_size: usize, n_heads: usize) -> Result<usize> {
    if n_heads == 0 || !hidden_size.is_multiple_of(n_heads) {
        return Err(Error::bad_key(
            file,
            key,
            n_heads,
            format!("a divisor of the hidden size {hidden_size}"),
        ));
    }
    Ok(hidden_size / n_heads)
}
