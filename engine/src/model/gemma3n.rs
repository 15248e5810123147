//! Gemma 3n (Google, 2025), the text model: Gemma 4's attention and per-layer embeddings, several residual streams
//! of which a layer computes one (AltUp), a learned low-rank residual (LAuReL), and sparse gates.

use serde_json::{Value, json};

use crate::checkpoint::Point::{self, *};
use crate::error::Result;
use crate::model::cache::LayerState;
use crate::model::decoder::columns::columns;
use crate::model::decoder::streams::{after_first, stream};
use crate::model::decoder::{
    DecoderBlock, DecoderConfig, Family, FeedForward, ForwardContext, LayerWeights, NumberKey,
    SlidingDefaults, SlidingRope, StreamSettings,
};
use crate::model::gemma4::{self, EmbeddingGate, SharingAttention};
use crate::model::json::Config;
use crate::numerics::Numerics;
use crate::ops::activation::Activation;
use crate::ops::norm::RmsNorm;
use crate::ops::scaling::Multiplier;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Weights of one block.
#[derive(Clone, Debug)]
pub(crate) struct Gemma3nBlock {
    layer: usize,
    altup: AltUp,
    attn_norm: RmsNorm,
    laurel: LowRankResidual,
    attn: SharingAttention,
    attn_post_norm: RmsNorm,
    ffn: FeedForward,
    ffn_post_norm: RmsNorm,
    /// Gate of the layer's embeddings.
    embedding: Option<EmbeddingGate>,
}

/// AltUp: prediction and correction of n residual streams, of which the layer computes one.
#[derive(Clone, Debug)]
struct AltUp {
    count: usize,
    active: usize,
    router_norm: RmsNorm,
    /// `[n, d]`
    router: Matrix,
    /// `[n·n, n]`
    predict: Matrix,
    /// `[n, n]`
    correct: Matrix,
    /// Factors of the active stream before it gates the layer's embeddings, `[1, d]`, if there are any.
    scale: Option<Matrix>,
}

/// A learned low-rank residual of rank r.
#[derive(Clone, Debug)]
struct LowRankResidual {
    /// `[r, d]`
    low: Matrix,
    /// `[d, r]`
    high: Matrix,
    norm: RmsNorm,
}

/// Settings of Gemma 3n.
pub(crate) const FAMILY: Family = Family {
    architecture: "gemma3n",
    gguf_names: &["gemma3n"],
    model_types: &["gemma3n_text", "gemma3n"],
    has_streams: true,
    stated: &[NumberKey::logits_cap([Some(30.0); 2])],
    sliding: Some(SlidingDefaults {
        full_every: Some(5),
        rope: SlidingRope::Own { key: "rope_local_base_freq", theta: 10_000.0 },
        ..SlidingDefaults::ALL
    }),
    ffn_size: Some(ffn_size),
    config_defaults,
    layer_names: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
        ("inp_gate", "per_layer_input_gate"),
        ("proj", "per_layer_projection"),
        ("post_norm", "post_per_layer_input_norm"),
        ("altup_router", "altup.modality_router"),
        ("altup_router_norm", "altup.router_norm"),
        ("altup_predict_coef", "altup.prediction_coefs"),
        ("altup_correct_coef", "altup.correction_coefs"),
        ("altup_correct_scale", "altup.correct_output_scale="),
        ("laurel_l", "laurel.linear_left"),
        ("laurel_r", "laurel.linear_right"),
        ("laurel_post_norm", "laurel.post_laurel_norm"),
    ],
    ..gemma4::FAMILY
};

impl DecoderBlock for Gemma3nBlock {
    fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        let d = c.hidden_size;
        let streams = c.streams.as_ref().expect("Gemma 3n has AltUp streams");
        Ok(Self {
            layer: w.layer(),
            altup: AltUp::load(streams, d, w)?,
            attn_norm: w.norm("attn_norm", d)?,
            laurel: LowRankResidual {
                low: w.matrix("laurel_l", streams.rank, d)?,
                high: w.matrix("laurel_r", d, streams.rank)?,
                norm: w.norm("laurel_post_norm", d)?,
            },
            attn: SharingAttention::load(c, w)?,
            attn_post_norm: w.norm("post_attention_norm", d)?,
            ffn: FeedForward::load(c, w)?,
            ffn_post_norm: w.norm("post_ffw_norm", d)?,
            embedding: EmbeddingGate::load(c, w)?,
        })
    }

    fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe, state: &mut LayerState) -> Tensor {
        let (n, altup) = (p.n, &self.altup);
        let predicted = altup.predict(x, n, t);
        let active = stream(&predicted, altup.active, altup.count, n);
        let norm = t.tap(AttnNorm, n.rms_norm(&active, &self.attn_norm));
        let out = self.attn.forward(&norm, p, t, state);
        let out = t.tap(AttnPostNorm, n.rms_norm(&out, &self.attn_post_norm));
        let h = t.tap(AttnResidual, n.add(&active, &out));
        let low_rank = self.laurel.forward(&norm, n, t);
        let root = Multiplier::Divisor(std::f32::consts::SQRT_2);
        let h = t.tap(LaurelResidual, n.scale(&n.add(&h, &low_rank), root));
        let ffn = self.ffn.forward(&h, p, t);
        let ffn = t.tap(FfnPostNorm, n.rms_norm(&ffn, &self.ffn_post_norm));
        let activated = t.tap(FfnResidual, n.add(&h, &ffn));
        let corrected = altup.correct(&predicted, &active, &activated, n, t);
        let out = match &self.embedding {
            Some(embedding) => {
                let gate = altup.gate(&corrected, n, t);
                let others = embedding.forward(&gate, self.layer, p, t);
                altup.add_to_others(&corrected, &others, n)
            }
            None => corrected,
        };
        t.tap(BlockOut, out)
    }

    fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        let laurel = [("laurel_l", &self.laurel.low), ("laurel_r", &self.laurel.high)];
        let embedding = self.embedding.iter().flat_map(EmbeddingGate::matrices);
        let own = self.altup.matrices().chain(laurel).chain(self.attn.matrices());
        own.chain(self.ffn.matrices()).chain(embedding).collect()
    }
}

impl AltUp {
    fn load(s: &StreamSettings, d: usize, w: &mut LayerWeights) -> Result<Self> {
        // Files have the factors even if the model does not use them.
        let scale = w.factors("altup_correct_scale", d)?;
        Ok(Self {
            count: s.count,
            active: s.active,
            router_norm: w.norm("altup_router_norm", d)?,
            router: w.matrix("altup_router", s.count, d)?,
            predict: w.matrix("altup_predict_coef", s.count * s.count, s.count)?,
            correct: w.matrix("altup_correct_coef", s.count, s.count)?,
            scale: s.scales_active.then_some(scale),
        })
    }

    /// Computes the router of a stream: `[T, d]` to `[T, n]`.
    fn route(&self, point: Point, x: &Tensor, n: &dyn Numerics, t: &mut Probe) -> Tensor {
        let inverse = Multiplier::Element(1.0 / x.row_len() as f32);
        let scaled = n.scale(&n.rms_norm(x, &self.router_norm), inverse);
        t.tap(point, n.activation(&n.linear(&scaled, &self.router), Activation::Tanh))
    }

    /// Predicts each stream: adds a mix of all streams to it, `[T, n·d]` to `[T, n·d]`.
    fn predict(&self, x: &Tensor, n: &dyn Numerics, t: &mut Probe) -> Tensor {
        let router = self.route(PredictRouter, &stream(x, self.active, self.count, n), n, t);
        let coefs = t.tap(PredictCoefs, n.linear(&router, &self.predict));
        t.tap(AltupPredicted, n.add(&n.mix_streams(x, &coefs), x))
    }

    /// Corrects the predicted streams, `[T, n·d]`: adds the layer's output `activated` minus the prediction `active`,
    /// both `[T, d]`, times a factor for each stream.
    fn correct(
        &self,
        predicted: &Tensor,
        active: &Tensor,
        activated: &Tensor,
        n: &dyn Numerics,
        t: &mut Probe,
    ) -> Tensor {
        let router = self.route(CorrectRouter, activated, n, t);
        let coefs = t.tap(CorrectCoefs, n.linear(&router, &self.correct));
        let factors = n.add(&coefs, &Tensor::new(coefs.shape(), vec![1.0; coefs.data().len()]));
        let innovation = n.add(activated, &n.scale(active, Multiplier::Number(-1.0)));
        let product = n.row_scaled(&innovation, &factors).reshaped(predicted.shape());
        t.tap(AltupCorrected, n.add(&product, predicted))
    }

    /// Returns the active stream, as it gates the layer's embeddings: `[T, n·d]` to `[T, d]`.
    fn gate(&self, corrected: &Tensor, n: &dyn Numerics, t: &mut Probe) -> Tensor {
        let active = stream(corrected, self.active, self.count, n);
        match &self.scale {
            // The factors in each row, in the type of the model's weights.
            Some(scale) => {
                let factors = n.embed(scale, &vec![0; active.rows()]);
                t.tap(AltupActive, n.gated_by_part(&factors, 0, &active))
            }
            None => active,
        }
    }

    /// Adds the layer's embeddings to all streams except the first: `[T, n·d]`, `[T, d]` to `[T, n·d]`.
    fn add_to_others(&self, corrected: &Tensor, embeddings: &Tensor, n: &dyn Numerics) -> Tensor {
        let (d, width) = (embeddings.row_len(), corrected.row_len());
        let (rest, shape) = (width - d, [corrected.rows(), width - d]);
        let others = columns(n, corrected, d, rest);
        let repeated = n.rearranged(&[embeddings], &shape, &|flat| (0, flat / rest * d + flat % d));
        after_first(corrected, &n.add(&others, &repeated), n)
    }

    fn matrices(&self) -> impl Iterator<Item = (&'static str, &Matrix)> {
        let own = [
            ("altup_router", &self.router),
            ("altup_predict_coef", &self.predict),
            ("altup_correct_coef", &self.correct),
        ];
        own.into_iter().chain(self.scale.iter().map(|scale| ("altup_correct_scale", scale)))
    }
}

impl LowRankResidual {
    /// Computes the low-rank residual of normed tokens, with its input added: `[T, d]` to `[T, d]`.
    fn forward(&self, x: &Tensor, n: &dyn Numerics, t: &mut Probe) -> Tensor {
        let low = t.tap(LaurelLow, n.linear(x, &self.low));
        let high = t.tap(LaurelHigh, n.linear(&low, &self.high));
        let norm = t.tap(LaurelNorm, n.rms_norm(&high, &self.norm));
        t.tap(LaurelOut, n.add(x, &norm))
    }
}

/// Reads the feed-forward size: a number, or a list with the same number for each layer.
fn ffn_size(file: &Config) -> Result<usize> {
    const KEY: &str = "intermediate_size";
    let Some(listed) = file.get(KEY).and_then(Value::as_array) else { return file.require_usize(KEY) };
    let n_layers = file.require_usize("num_hidden_layers")?;
    let expected = format!("one number for each of {n_layers} layers, the same in all");
    let is_even = |size: &u64| listed.len() == n_layers && listed.iter().all(|one| one == *size);
    let size = listed.first().and_then(Value::as_u64).filter(is_even);
    match size.and_then(|size| usize::try_from(size).ok()) {
        Some(size) => Ok(size),
        None => Err(file.bad_key(KEY, Value::from(listed.clone()), expected)),
    }
}

/// Returns the defaults of transformers' `Gemma3nTextConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 262_400,
        "hidden_size": 2048,
        "intermediate_size": 16_384,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "sliding_attention": { "rope_type": "default", "rope_theta": 10_000.0 },
            "full_attention": { "rope_type": "default", "rope_theta": 1_000_000.0 },
        },
        "sliding_window": 512,
        "vocab_size_per_layer_input": 262_144,
        "hidden_size_per_layer_input": 256,
        "altup_active_idx": 0,
        "altup_correct_scale": true,
        "altup_num_inputs": 4,
        "num_kv_shared_layers": 15,
        "laurel_rank": 64,
        "tie_word_embeddings": true,
    })
}
