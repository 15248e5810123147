//! Gemma 4 (Gemma team, 2026), the text model: Gemma 3's block with larger heads in layers with full attention and
//! with norms of values. The last layers reuse the keys and values of earlier ones. There are per-layer embeddings,
//! and experts next to the feed-forward block.

use serde_json::{Value, json};

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::cache::LayerState;
use crate::model::decoder::{
    BiasRules, DecoderBlock, DecoderConfig, ExpertFiles, ExpertPresence, Family, FeedForwardHalf,
    ForwardContext, LayerWeights, NumberKey, SharedExpertFiles, SlidingDefaults, SlidingRope,
};
use crate::model::gemma3;
use crate::ops::attention::AttentionScale;
use crate::ops::norm::{Gain, RmsNorm};
use crate::ops::scaling::Multiplier;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Weights of one block.
#[derive(Clone, Debug)]
pub(crate) struct Gemma4Block {
    layer: usize,
    attn_norm: RmsNorm,
    attn: SharingAttention,
    attn_post_norm: RmsNorm,
    ffn: FeedForwardHalf,
    ffn_post_norm: RmsNorm,
    /// Gate of the layer's embeddings.
    embedding: Option<EmbeddingGate>,
    /// Factor of the block's output, if the file has one.
    scale: Option<f32>,
}

/// Attention with norms of each head. Its keys and values may be those of an earlier layer.
#[derive(Clone, Debug)]
pub(super) struct SharingAttention {
    /// Number of values of a head.
    head_dim: usize,
    q: Matrix,
    q_norm: RmsNorm,
    /// Projections of keys and values; `None` for a layer that reuses those of an earlier layer.
    keys: Option<KeyProjections>,
    output: Matrix,
}

/// Projections of keys and values, and their norms.
#[derive(Clone, Debug)]
struct KeyProjections {
    k: Matrix,
    /// Matrix of values. If the matrix of keys computes values too, it is that matrix.
    v: Matrix,
    k_norm: RmsNorm,
    v_norm: RmsNorm,
    /// True if later layers reuse these keys and values.
    are_shared: bool,
}

/// Gate of a layer's embeddings, the projection back to the stream, and its norm. P = width of the embeddings.
#[derive(Clone, Debug)]
pub(super) struct EmbeddingGate {
    /// `[P, d]`
    gate: Matrix,
    /// `[d, P]`
    projection: Matrix,
    norm: RmsNorm,
}

/// Settings of Gemma 4.
pub(crate) const FAMILY: Family = Family {
    architecture: "gemma4",
    gguf_names: &["gemma4"],
    model_types: &["gemma4_text", "gemma4"],
    gain: Gain::WeightFirst,
    attn_scale: |_| AttentionScale::Products(1.0),
    has_layer_variants: true,
    stated: &[
        // llama.cpp caps the logits of a file without the key.
        NumberKey::logits_cap([None, Some(30.0)]),
    ],
    sliding: Some(SlidingDefaults {
        full_every: Some(6),
        rope: SlidingRope::Own { key: "rope_local_base_freq", theta: 10_000.0 },
        ..SlidingDefaults::ALL
    }),
    biases: BiasRules::NONE,
    experts: Some(ExpertFiles {
        ffn_size: ["moe_intermediate_size", "expert_feed_forward_length"],
        // The block next to the experts, which every token uses.
        shared: Some(SharedExpertFiles::Unweighted(["intermediate_size", "feed_forward_length"])),
        presence: ExpertPresence::Switched("enable_moe_block"),
        has_branch_norms: true,
        ..ExpertFiles::MIXTRAL
    }),
    config_defaults,
    layer_names: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
        ("inp_gate", "per_layer_input_gate"),
        ("proj", "per_layer_projection"),
        ("post_norm", "post_per_layer_input_norm"),
        ("layer_output_scale", "layer_scalar="),
        ("ffn_gate_shexp", "mlp.gate_proj"),
        ("ffn_up_shexp", "mlp.up_proj"),
        ("ffn_down_shexp", "mlp.down_proj"),
        ("ffn_gate_inp", "router.proj"),
        ("router_scale", "router.scale="),
        ("expert_scales", "router.per_expert_scale="),
        ("ffn_gate_exps", "experts.gate_up_proj="),
        ("ffn_up_exps", "experts.gate_up_proj="),
        ("ffn_down_exps", "experts.down_proj="),
        ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
        ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
        ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
    ],
    gguf_layer_names: &[
        ("ffn_gate_shexp", "ffn_gate"),
        ("ffn_up_shexp", "ffn_up"),
        ("ffn_down_shexp", "ffn_down"),
        ("router_scale", "ffn_gate_inp.scale="),
    ],
    ..gemma3::FAMILY
};

impl DecoderBlock for Gemma4Block {
    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        let d = c.hidden_size;
        Ok(Self {
            layer: w.layer(),
            attn_norm: w.norm("attn_norm", d)?,
            attn: SharingAttention::load(c, w)?,
            attn_post_norm: w.norm("post_attention_norm", d)?,
            ffn: FeedForwardHalf::load(c, w)?,
            ffn_post_norm: w.norm("post_ffw_norm", d)?,
            embedding: EmbeddingGate::load(c, w)?,
            scale: w.optional_number("layer_output_scale")?,
        })
    }

    fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe, state: &mut LayerState) -> Tensor {
        let n = p.n;
        let norm = t.tap(AttnNorm, n.rms_norm(x, &self.attn_norm));
        let out = self.attn.forward(&norm, p, t, state);
        let out = t.tap(AttnPostNorm, n.rms_norm(&out, &self.attn_post_norm));
        let h = t.tap(AttnResidual, n.add(x, &out));
        let ffn = self.ffn.forward(&h, p, t);
        let ffn = t.tap(FfnPostNorm, n.rms_norm(&ffn, &self.ffn_post_norm));
        let mut sum = n.add(&h, &ffn);
        if let Some(embedding) = &self.embedding {
            sum = t.tap(FfnResidual, sum);
            sum = n.add(&sum, &embedding.forward(&sum, self.layer, p, t));
        }
        let scaled = self.scale.map(|scale| n.scale(&sum, Multiplier::Element(scale)));
        t.tap(BlockOut, scaled.unwrap_or(sum))
    }

    fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        let embedding = self.embedding.iter().flat_map(EmbeddingGate::matrices);
        self.attn.matrices().into_iter().chain(self.ffn.matrices()).chain(embedding).collect()
    }
}

impl SharingAttention {
    /// Loads the weights of a layer.
    ///
    /// # Errors
    /// If one is missing, has another shape, or has an unsupported type.
    pub(super) fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        let (d, [head_dim, kv_heads]) = (c.hidden_size, w.head_sizes());
        let (q_width, kv_width) = (c.n_heads * head_dim, kv_heads * head_dim);
        let keys = match w.shares_keys() {
            true => None,
            false => {
                let k = w.matrix("attn_k", kv_width, d)?;
                Some(KeyProjections {
                    v: if w.has_keys_as_values() {
                        k.clone().with_cache_scales(w.cache_scales("attn_v")?)
                    } else {
                        w.matrix("attn_v", kv_width, d)?
                    },
                    k,
                    k_norm: w.norm("attn_k_norm", head_dim)?,
                    v_norm: c.rms_norm(vec![1.0; head_dim]),
                    are_shared: w.has_shared_keys(),
                })
            }
        };
        Ok(Self {
            head_dim,
            q: w.matrix("attn_q", q_width, d)?,
            q_norm: w.norm("attn_q_norm", head_dim)?,
            keys,
            output: w.matrix("attn_output", d, q_width)?,
        })
    }

    /// Computes attention of normed tokens, with its output projection: `[T, d]` to `[T, d]`.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        p: &ForwardContext,
        t: &mut Probe,
        state: &mut LayerState,
    ) -> Tensor {
        let context = self.attend(x, p, t, state);
        t.tap(AttnOut, p.n.linear(&context, &self.output))
    }

    /// Computes attention of normed tokens, `[T, d]`, to merged heads.
    fn attend(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe, state: &mut LayerState) -> Tensor {
        let n = p.n;
        let heads = |x: Tensor| {
            let shape = [x.rows(), x.row_len() / self.head_dim, self.head_dim];
            x.reshaped(&shape)
        };
        let q = t.tap(Q, heads(n.linear(x, &self.q)));
        let Some(keys) = &self.keys else {
            let q = t.tap(QNorm, n.rms_norm(&q, &self.q_norm));
            return p.attend_shared(&t.tap(QRope, p.rotate(q)), t);
        };
        let k = t.tap(K, heads(n.linear(x, &keys.k)));
        let v = t.tap(V, heads(n.linear(x, &keys.v)));
        let q = t.tap(QNorm, n.rms_norm(&q, &self.q_norm));
        let k = t.tap(KNorm, n.rms_norm(&k, &keys.k_norm));
        let v = t.tap(VNorm, n.rms_norm(&v, &keys.v_norm));
        let q = t.tap(QRope, p.rotate(q));
        let k = t.tap(KRope, p.rotate(k));
        p.attend_sharing(&q, k, v, keys.are_shared, t, state)
    }

    /// Returns the matrices, with names for messages.
    pub(super) fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        let keys = self.keys.iter().flat_map(|keys| [("attn_k", &keys.k), ("attn_v", &keys.v)]);
        [("attn_q", &self.q), ("attn_output", &self.output)].into_iter().chain(keys).collect()
    }
}

impl EmbeddingGate {
    /// Loads the weights of a layer, if it has per-layer embeddings.
    ///
    /// # Errors
    /// See [`SharingAttention::load`].
    pub(super) fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Option<Self>> {
        let (width @ 1.., d) = (w.embedding_width(), c.hidden_size) else { return Ok(None) };
        Ok(Some(Self {
            gate: w.matrix("inp_gate", width, d)?,
            projection: w.matrix("proj", d, width)?,
            norm: w.norm("post_norm", d)?,
        }))
    }

    /// Computes the per-layer embeddings of a layer, gated by `x`: `[T, d]` to `[T, d]`.
    pub(super) fn forward(&self, x: &Tensor, layer: usize, p: &ForwardContext, t: &mut Probe) -> Tensor {
        let n = p.n;
        let input = t.tap(LayerInput, p.embedding_of(layer, self.gate.rows));
        let gate = t.tap(LayerGate, n.linear(x, &self.gate));
        let act = t.tap(LayerAct, n.gated(&gate, &input, p.c.activation));
        let out = t.tap(LayerOut, n.linear(&act, &self.projection));
        t.tap(LayerPostNorm, n.rms_norm(&out, &self.norm))
    }

    /// Returns the matrices, with names for messages.
    pub(super) fn matrices(&self) -> [(&'static str, &Matrix); 2] {
        [("inp_gate", &self.gate), ("proj", &self.projection)]
    }
}

/// Returns the defaults of transformers' `Gemma4TextConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 262_144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "sliding_attention": { "rope_type": "default", "rope_theta": 10_000.0 },
            "full_attention": { "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0 },
        },
        "sliding_window": 512,
        "vocab_size_per_layer_input": 262_144,
        "hidden_size_per_layer_input": 256,
        "tie_word_embeddings": true,
    })
}
