//! BitNet b1.58 (Ma et al., 2024): ternary matrices, and an extra norm before the last matrix of both halves of a
//! block. The released 2B-4T model uses squared ReLU; the older bitnet_b1_58 models use SiLU.

use serde_json::{Value, json};

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::cache::LayerState;
use crate::model::decoder::{
    BiasRules, Decoder, DecoderBlock, DecoderConfig, Family, ForwardContext, LayerWeights,
};
use crate::model::llama;
use crate::numerics::Numerics;
use crate::ops::activation::Activation;
use crate::ops::norm::RmsNorm;
use crate::tap::Probe;
use crate::tensor::{RopePairing, Tensor};
use crate::weight::{Factor, Matrix};

/// A BitNet model.
pub type Bitnet = Decoder<BitnetBlock>;

/// A ternary matrix, and the factor that some files store with it.
#[derive(Clone, Debug)]
pub struct BitLinear {
    /// `[outputs, inputs]`
    pub weight: Matrix,
    /// Factor: the `.scale` tensor of GGUF, the `weight_scale` of Hugging Face checkpoints, or the scale of quantised
    /// master weights.
    pub factor: Option<Factor>,
}

/// Weights of one block. H, Hkv = query and key-value heads, D = head size, F = feed-forward size.
#[derive(Clone, Debug)]
pub struct BitnetBlock {
    /// `[d]`
    pub(crate) attn_norm: RmsNorm,
    /// `[H·D, d]`
    pub q: BitLinear,
    /// `[Hkv·D, d]`
    pub(crate) k: BitLinear,
    /// `[Hkv·D, d]`
    pub(crate) v: BitLinear,
    /// `[H·D]`
    pub attn_sub_norm: RmsNorm,
    /// `[d, H·D]`
    pub(crate) output: BitLinear,
    /// `[d]`
    pub(crate) ffn_norm: RmsNorm,
    /// `[F, d]`
    pub gate: BitLinear,
    /// `[F, d]`
    pub(crate) up: BitLinear,
    /// `[F]`
    pub ffn_sub_norm: RmsNorm,
    /// `[d, F]`
    pub down: BitLinear,
}

impl BitLinear {
    fn load(w: &mut LayerWeights, name: &str, rows: usize, cols: usize) -> Result<Self> {
        let (weight, factor) = w.ternary(name, rows, cols)?;
        Ok(Self { weight, factor })
    }

    /// Computes the layer: `[T, inputs]` to `[T, outputs]`.
    fn of(&self, x: &Tensor, n: &dyn Numerics) -> Tensor {
        n.bit_linear(x, &self.weight, self.factor)
    }
}

/// Settings of BitNet b1.58.
pub const FAMILY: Family = Family {
    architecture: "bitnet",
    gguf_names: &["bitnet", "bitnet-25", "bitnet-b1.58"],
    model_types: &["bitnet"],
    gguf_pairing: RopePairing::Half,
    activation: Activation::SquaredRelu,
    hidden_acts: &["relu2"],
    gguf_activations: &[("bitnet", Activation::Silu)],
    gguf_head_is_tied: true,
    may_be_quantised: true,
    config_defaults,
    layer_names: &[("attn_sub_norm", "self_attn.attn_sub_norm"), ("ffn_sub_norm", "mlp.ffn_sub_norm")],
    biases: BiasRules::NONE,
    ..llama::FAMILY
};

impl DecoderBlock for BitnetBlock {
    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        let (d, f) = (c.hidden_size, c.ffn_size);
        let (q_width, kv_width) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        Ok(Self {
            attn_norm: w.norm("attn_norm", d)?,
            q: BitLinear::load(w, "attn_q", q_width, d)?,
            k: BitLinear::load(w, "attn_k", kv_width, d)?,
            v: BitLinear::load(w, "attn_v", kv_width, d)?,
            attn_sub_norm: w.norm("attn_sub_norm", q_width)?,
            output: BitLinear::load(w, "attn_output", d, q_width)?,
            ffn_norm: w.norm("ffn_norm", d)?,
            gate: BitLinear::load(w, "ffn_gate", f, d)?,
            up: BitLinear::load(w, "ffn_up", f, d)?,
            ffn_sub_norm: w.norm("ffn_sub_norm", f)?,
            down: BitLinear::load(w, "ffn_down", d, f)?,
        })
    }

    fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe, state: &mut LayerState) -> Tensor {
        let (n, c) = (p.n, p.c);
        let norm = t.tap(AttnNorm, n.rms_norm(x, &self.attn_norm));
        let q = t.tap(Q, c.heads(self.q.of(&norm, n)));
        let k = t.tap(K, c.heads(self.k.of(&norm, n)));
        let v = t.tap(V, c.heads(self.v.of(&norm, n)));
        let q = t.tap(QRope, p.rotate(q));
        let k = t.tap(KRope, p.rotate(k));
        let context = p.attend(&q, k, v, t, state);
        let context = t.tap(AttnSubNorm, n.rms_norm(&context, &self.attn_sub_norm));
        let out = t.tap(AttnOut, self.output.of(&context, n));
        let h = t.tap(AttnResidual, n.add(x, &out));
        let norm = t.tap(FfnNorm, n.rms_norm(&h, &self.ffn_norm));
        let gate = t.tap(FfnGate, self.gate.of(&norm, n));
        let up = t.tap(FfnUp, self.up.of(&norm, n));
        let act = t.tap(FfnAct, n.gated(&gate, &up, c.activation));
        let act = t.tap(FfnSubNorm, n.rms_norm(&act, &self.ffn_sub_norm));
        let ffn = t.tap(FfnOut, self.down.of(&act, n));
        t.tap(BlockOut, n.add(&h, &ffn))
    }

    fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        let attention = [("attn_q", &self.q), ("attn_k", &self.k), ("attn_v", &self.v)];
        let feed_forward = [("ffn_gate", &self.gate), ("ffn_up", &self.up), ("ffn_down", &self.down)];
        let all = attention.into_iter().chain([("attn_output", &self.output)]).chain(feed_forward);
        all.map(|(name, linear)| (name, &linear.weight)).collect()
    }
}

/// Returns the defaults of transformers' `BitNetConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 128_256,
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "num_hidden_layers": 30,
        "num_attention_heads": 20,
        "num_key_value_heads": 5,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": false,
    })
}
