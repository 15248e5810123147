//! A configurable block, for architectures that differ only in norms, in how the halves are joined, and in the
//! feed-forward block.

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::cache::LayerState;
use crate::model::decoder::delta::DeltaAttention;
use crate::model::decoder::{
    DecoderBlock, DecoderConfig, FeedForward, ForwardContext, GatedConvolution, LatentAttention, LatentSizes,
    LayerWeights, Mixture, Norm, Projections, RecurrentMixer, StateSpaceLayer,
};
use crate::ops::activation::Activation;
use crate::ops::norm::RmsNorm;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Options of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockShape {
    /// Norms of the attention half and of the feed-forward half.
    pub(crate) norms: HalfNorms,
    /// Norms that are applied to queries and keys.
    pub(crate) qk_norm: QkNorm,
    /// Join of the halves, if both read the block's input; `None` if the second half reads the sum after the first.
    pub(crate) parallel: Option<ParallelHalves>,
    /// Matrices of the feed-forward block.
    pub(crate) ffn: FfnShape,
    /// True if each head has an attention sink: an extra logit in softmax without a value.
    pub(crate) has_sinks: bool,
    /// True if layers with Mamba-2 also have attention. Both read the same norm, and their outputs are added.
    pub(crate) has_parallel_mixer: bool,
    /// True if each layer has only one half: attention (or what replaces it), or a feed-forward block.
    pub(crate) has_single_halves: bool,
    /// True if attention's output is multiplied by the sigmoid of a gate, which is the second half of each query head.
    pub(crate) has_output_gate: bool,
}

/// Norms of the two halves of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HalfNorms {
    /// A norm before attention and one before the feed-forward block.
    Before,
    /// A norm after attention and one after the feed-forward block, before the residual add.
    After,
    /// A norm before and one after attention, and the same for the feed-forward block.
    Around,
}

/// Norms of queries and keys. They are applied before RoPE, unless the variant's name says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QkNorm {
    /// The block does not norm queries and keys.
    Absent,
    /// RMSNorm of each head, with the same weight for all heads.
    EachHead,
    /// [`QkNorm::EachHead`] if the model has such norms: `config.json` has a key for them, GGUF files have the norms'
    /// tensors.
    EachHeadIfStated,
    /// One RMSNorm over all heads.
    AllHeads,
    /// RMSNorm of each head after RoPE, with the same weight for all heads.
    EachHeadAfterRope,
    /// RMSNorm of each head after RoPE, without a weight, in layers with RoPE.
    AfterRope,
}

/// A block in which attention and the feed-forward block both read the block's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParallelHalves {
    /// True if the feed-forward block has a norm of its own. Otherwise it reads the norm before attention.
    pub(crate) has_ffn_norm: bool,
    /// Order of the additions. In the constant of a family, the order in Hugging Face's code.
    pub(crate) order: ParallelOrder,
    /// Order in which llama.cpp adds attention, feed-forward output and input.
    pub(crate) gguf_order: ParallelOrder,
    /// True if all models of the architecture have parallel halves. Otherwise a model's file states whether it has
    /// them.
    pub(crate) is_always: bool,
}

impl ParallelHalves {
    /// Both halves read the same norm, and their outputs are added to each other first.
    pub(crate) const ONE_NORM: Self = Self {
        has_ffn_norm: false,
        order: ParallelOrder::HalvesTogether,
        gguf_order: ParallelOrder::HalvesTogether,
        is_always: true,
    };
}

/// Order in which a block's input and the outputs of its two halves are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParallelOrder {
    /// `x + (attention + feed-forward)`
    HalvesTogether,
    /// `(x + attention) + feed-forward`
    AttentionFirst,
    /// `(x + feed-forward) + attention`
    FeedForwardFirst,
}

/// Matrices of the feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FfnShape {
    /// Gate, up and down projections.
    Gated,
    /// Gate and up projections in one tensor, and the down projection.
    FusedGate,
    /// Up and down projections.
    Plain,
}

impl BlockShape {
    /// Llama's block.
    pub(crate) const LLAMA: Self = Self {
        norms: HalfNorms::Before,
        qk_norm: QkNorm::Absent,
        parallel: None,
        ffn: FfnShape::Gated,
        has_sinks: false,
        has_parallel_mixer: false,
        has_single_halves: false,
        has_output_gate: false,
    };
}

/// Weights of a block of any `BlockShape`. Norms and halves that the block lacks are `None`.
#[derive(Clone, Debug)]
pub struct StandardBlock {
    /// `[d]`
    pub(crate) attn_norm: Option<Norm>,
    /// Attention half of the block.
    pub(crate) attn: Option<AttentionHalf>,
    /// Mamba-2 in parallel with attention.
    pub(crate) mixer: Option<Box<StateSpaceLayer>>,
    /// `[d]`
    pub(crate) attn_post_norm: Option<Norm>,
    /// Feed-forward half of the block.
    pub(crate) ffn: Option<FeedForwardHalf>,
    /// `[d]`
    pub(crate) ffn_post_norm: Option<Norm>,
}

/// Attention half of a block, after its norm.
#[derive(Clone, Debug)]
pub(crate) enum AttentionHalf {
    /// Attention with separate keys and values for each head.
    Heads(HeadAttention),
    /// Latent attention: keys and values are compressed to latents.
    Latent(LatentSizes, Box<LatentAttention>),
    /// A gated short convolution in place of attention.
    Convolution(GatedConvolution),
    /// Linear attention with a gated delta rule.
    DeltaRule(DeltaAttention),
    /// Mamba-2 in place of attention.
    StateSpace(Box<StateSpaceLayer>),
}

/// Attention with keys and values of each head.
#[derive(Clone, Debug)]
pub(crate) struct HeadAttention {
    /// The matrices of attention.
    pub(crate) projections: Projections,
    /// Norms of queries and of keys before RoPE.
    pub(crate) qk_norms: Option<[RmsNorm; 2]>,
    /// Norms of queries and of keys after RoPE.
    pub(crate) rotated_norms: Option<[RmsNorm; 2]>,
    /// `[H]`
    pub(crate) sinks: Option<Vec<f32>>,
}

impl AttentionHalf {
    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        match w.recurrent_mixer().filter(|_| !c.shape.has_parallel_mixer) {
            None => {}
            Some(RecurrentMixer::DeltaRule(sizes)) => {
                return Ok(AttentionHalf::DeltaRule(DeltaAttention::load(c, sizes, w)?));
            }
            Some(RecurrentMixer::Convolution { kernel, has_bias, .. }) => {
                return Ok(AttentionHalf::Convolution(GatedConvolution::load(c, (kernel, has_bias), w)?));
            }
            Some(RecurrentMixer::StateSpace(sizes)) => {
                return Ok(AttentionHalf::StateSpace(Box::new(StateSpaceLayer::load(c, sizes, w)?)));
            }
        }
        if let Some(sizes) = c.latent {
            return Ok(AttentionHalf::Latent(sizes, Box::new(LatentAttention::load(c, sizes, w)?)));
        }
        let projections = Projections::load(c, w)?;
        let of_heads = [c.head_dim; 2];
        let (qk_norms, rotated_norms) = match c.shape.qk_norm {
            QkNorm::Absent => (None, None),
            QkNorm::EachHead | QkNorm::EachHeadIfStated => (Some(w.qk_norms(of_heads)?), None),
            QkNorm::AllHeads => {
                (Some(w.qk_norms([c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim])?), None)
            }
            QkNorm::EachHeadAfterRope => (None, Some(w.qk_norms(of_heads)?)),
            QkNorm::AfterRope => {
                (None, c.rotates(w.layer).then(|| of_heads.map(|len| c.rms_norm(vec![1.0; len]))))
            }
        };
        Ok(AttentionHalf::Heads(HeadAttention {
            projections,
            qk_norms,
            rotated_norms,
            sinks: c.shape.has_sinks.then(|| w.vector("attn_sinks", c.n_heads)).transpose()?,
        }))
    }

    /// Computes attention of normed tokens, `[T, d]`, with its output projection.
    fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe, state: &mut LayerState) -> Tensor {
        let attn = match self {
            AttentionHalf::Latent(sizes, attn) => return attn.forward(x, *sizes, p, t, state.kv()),
            AttentionHalf::Convolution(conv) => return conv.forward(x, p.n, t, state.recurrent()),
            AttentionHalf::DeltaRule(attn) => return attn.forward(x, p.n, t, state.recurrent()),
            AttentionHalf::StateSpace(layer) => return layer.forward(x, p, t, state.recurrent(), AttnOut),
            AttentionHalf::Heads(attn) => attn,
        };
        let (n, c) = (p.n, p.c);
        let scaled = p.times(x, |by| by.attention_in);
        let x = scaled.as_ref().unwrap_or(x);
        let mut q = t.tap(Q, c.heads(attn.projections.q(n, x)));
        let mut k = t.tap(K, c.heads(attn.projections.k(n, x)));
        let v = t.tap(V, c.heads(attn.projections.v(n, x)));
        let gate = attn.projections.gate.as_ref().map(|gate| t.tap(AttnGate, gate.of(n, x)));
        if let Some([q_norm, k_norm]) = &attn.qk_norms {
            q = t.tap(QNorm, n.rms_norm(&q, q_norm));
            k = t.tap(KNorm, n.rms_norm(&k, k_norm));
        }
        q = t.tap(QRope, p.rotate(q));
        k = t.tap(KRope, p.rotate(p.times(&k, |by| by.key).unwrap_or(k)));
        if let Some(temperature) = c.query_temperature.filter(|one| one.is_of_all_layers || p.rope.is_none())
        {
            let positions = p.mask.position..p.mask.position + x.rows();
            q = t.tap(QScaled, n.tempered(&q, &temperature, positions));
        }
        if let Some([q_norm, k_norm]) = &attn.rotated_norms {
            q = t.tap(QRopeNorm, n.rms_norm(&q, q_norm));
            k = t.tap(KRopeNorm, n.rms_norm(&k, k_norm));
        }
        let context = p.attend_with_sinks(&q, k, v, attn.sinks.as_deref(), t, state);
        let context = match &gate {
            Some(gate) => t.tap(AttnGated, n.gated(gate, &context, Activation::Sigmoid)),
            None => context,
        };
        t.tap(AttnOut, attn.projections.output(n, &context))
    }

    fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        match self {
            AttentionHalf::Heads(attn) => attn.projections.matrices(),
            AttentionHalf::Latent(_, attn) => attn.matrices(),
            AttentionHalf::Convolution(conv) => conv.matrices(),
            AttentionHalf::DeltaRule(attn) => attn.matrices(),
            AttentionHalf::StateSpace(layer) => layer.matrices(),
        }
    }
}

/// Feed-forward half of a block.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all layers of a model have the same variant")]
pub(crate) enum FeedForwardHalf {
    /// One feed-forward block for every token.
    Dense(FeedForward),
    /// A mixture of experts.
    Mixture(Mixture),
}

impl StandardBlock {
    /// Returns the mixture of experts, if the block has one.
    pub fn mixture_mut(&mut self) -> Option<&mut Mixture> {
        match &mut self.ffn {
            Some(FeedForwardHalf::Mixture(mixture)) => Some(mixture),
            _ => None,
        }
    }
}

impl FeedForwardHalf {
    /// Loads the weights of a layer's feed-forward half.
    ///
    /// # Errors
    /// See [`FeedForward::load`].
    pub(crate) fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        let shape = c.shape;
        let has_norm = shape.norms != HalfNorms::After && shape.parallel.is_none_or(|both| both.has_ffn_norm);
        Ok(match w.dense_ffn_size() {
            None => FeedForwardHalf::Mixture(Mixture::load(c, w)?),
            Some(_) if has_norm => FeedForwardHalf::Dense(FeedForward::load(c, w)?),
            Some(_) => FeedForwardHalf::Dense(FeedForward::without_norm(c, w)?),
        })
    }

    /// Computes the block's contribution to `x`: `[T, d]` to `[T, d]`.
    pub(crate) fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe) -> Tensor {
        match self {
            FeedForwardHalf::Dense(ffn) => ffn.forward(x, p, t),
            FeedForwardHalf::Mixture(ffn) => ffn.forward(x, p, t),
        }
    }

    /// Returns the matrices, with names for messages.
    pub(crate) fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        match self {
            FeedForwardHalf::Dense(ffn) => ffn.matrices(),
            FeedForwardHalf::Mixture(ffn) => ffn.matrices(),
        }
    }
}

impl DecoderBlock for StandardBlock {
    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        let (d, shape) = (c.hidden_size, c.shape);
        let (is_before, is_after) = (shape.norms != HalfNorms::After, shape.norms != HalfNorms::Before);
        let [has_attn, has_ffn] = w.halves();
        Ok(Self {
            attn_norm: (has_attn && is_before).then(|| w.any_norm("attn_norm", d)).transpose()?,
            attn: has_attn.then(|| AttentionHalf::load(c, w)).transpose()?,
            mixer: match w.recurrent_mixer().filter(|_| shape.has_parallel_mixer) {
                Some(RecurrentMixer::StateSpace(sizes)) => {
                    Some(Box::new(StateSpaceLayer::load(c, sizes, w)?))
                }
                _ => None,
            },
            attn_post_norm: is_after.then(|| w.any_norm("post_attention_norm", d)).transpose()?,
            ffn: has_ffn.then(|| FeedForwardHalf::load(c, w)).transpose()?,
            ffn_post_norm: is_after.then(|| w.any_norm("post_ffw_norm", d)).transpose()?,
        })
    }

    fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe, state: &mut LayerState) -> Tensor {
        let (n, c) = (p.n, p.c);
        let (attn, ffn) = match (&self.attn, &self.ffn) {
            (Some(attn), Some(ffn)) => (attn, ffn),
            (attn, ffn) => return self.forward_half(attn.as_ref(), ffn.as_ref(), x, p, t, state),
        };
        let norm = self.attn_norm.as_ref().map(|norm| t.tap(AttnNorm, norm.of(n, x)));
        let input = norm.as_ref().unwrap_or(x);
        let mixed = self.mixer.as_ref().map(|layer| layer.forward(input, p, t, state.recurrent(), MixerOut));
        let mut out = attn.forward(input, p, t, state);
        if let Some(mixed) = mixed {
            let mixed = p.times(&mixed, |by| by.recurrence_out).unwrap_or(mixed);
            let attn = p.times(&out, |by| by.attention_out).unwrap_or(out);
            out = n.add_halves(&mixed, &attn);
        }
        if let Some(norm) = &self.attn_post_norm {
            out = t.tap(AttnPostNorm, norm.of(n, &out));
        }
        if let Some(both) = c.shape.parallel {
            let is_first = both.order == ParallelOrder::AttentionFirst;
            let h = is_first.then(|| t.tap(AttnResidual, p.add(x, &out)));
            let ffn = ffn.forward(if both.has_ffn_norm { x } else { input }, p, t);
            let sum = match (h, both.order) {
                (Some(h), _) => p.add(&h, &ffn),
                (None, ParallelOrder::FeedForwardFirst) => p.add(&p.add(x, &ffn), &out),
                (None, _) => p.add(x, &n.add_halves(&out, &ffn)),
            };
            return t.tap(BlockOut, sum);
        }
        let h = t.tap(AttnResidual, p.add(x, &out));
        let mut ffn = ffn.forward(&h, p, t);
        if let Some(norm) = &self.ffn_post_norm {
            ffn = t.tap(FfnPostNorm, norm.of(n, &ffn));
        }
        t.tap(BlockOut, p.add(&h, &p.times(&ffn, |by| by.ffn[1]).unwrap_or(ffn)))
    }

    fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        let attn = self.attn.as_ref().map(AttentionHalf::matrices).unwrap_or_default();
        let mixer = self.mixer.as_ref().map(|layer| layer.matrices()).unwrap_or_default();
        [attn, mixer, self.ffn.as_ref().map(FeedForwardHalf::matrices).unwrap_or_default()].concat()
    }
}

impl StandardBlock {
    /// Computes a block with one half, and adds its output to the stream.
    fn forward_half(
        &self,
        attn: Option<&AttentionHalf>,
        ffn: Option<&FeedForwardHalf>,
        x: &Tensor,
        p: &ForwardContext,
        t: &mut Probe,
        state: &mut LayerState,
    ) -> Tensor {
        let norm = self.attn_norm.as_ref().map(|norm| t.tap(AttnNorm, norm.of(p.n, x)));
        let attn = attn.map(|attn| attn.forward(norm.as_ref().unwrap_or(x), p, t, state));
        let out = attn.or_else(|| ffn.map(|ffn| ffn.forward(x, p, t)));
        t.tap(BlockOut, out.map_or_else(|| x.clone(), |out| p.add(x, &out)))
    }
}
