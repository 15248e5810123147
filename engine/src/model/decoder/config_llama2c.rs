//! Decoder configuration from the header of a llama2.c file: seven sizes; everything else is fixed by `run.c`.

use crate::error::Result;
use crate::format::Llama2cFile;
use crate::model::decoder::config::DEFAULT_THETA;
use crate::model::decoder::{BiasFlags, DecoderConfig, Family, Positions};
use crate::ops::attention::AttentionScale;
use crate::ops::norm::Gain;
use crate::ops::rope::{Rope, RopeRounding, RopeScaling};
use crate::tensor::RopePairing;

/// Epsilon of `run.c`.
const NORM_EPS: f32 = 1e-5;

impl DecoderConfig {
    /// Reads the header of a llama2.c file.
    pub(super) fn from_llama2c(file: &Llama2cFile, family: &Family) -> Result<Self> {
        let h = &file.header;
        let head_dim = h.head_dim();
        let pairing = RopePairing::Interleaved;
        let mut config = Self {
            vocab_size: h.vocab_size,
            hidden_size: h.dim,
            ffn_size: h.hidden_dim,
            n_layers: h.n_layers,
            n_heads: h.n_heads,
            n_kv_heads: h.n_kv_heads,
            head_dim,
            latent: None,
            context_length: h.seq_len,
            norm: family.norm,
            norm_eps: NORM_EPS,
            norm_gain: Gain::Weight,
            embed_scale: None,
            residual_scale: None,
            logits_scale: None,
            attn_cap: None,
            logits_cap: None,
            rope: Rope {
                theta: DEFAULT_THETA,
                width: head_dim,
                pairing,
                scaling: RopeScaling::None,
                rounding: RopeRounding::Each,
            },
            sliding: None,
            positions: Positions::Rotary,
            unrotated: Vec::new(),
            query_temperature: None,
            variants: None,
            streams: None,
            attn_scale: AttentionScale::Products(1.0),
            activation: family.activation,
            shape: family.shape,
            biases: BiasFlags::default(),
            linear_class: None,
            predicting_layers: 0,
            experts: None,
            dense: None,
            recurrent: None,
            single_halves: None,
            multipliers: None,
            has_adapter: false,
            tied_output: h.shared_classifier,
        };
        config.check(file.tensors.path())?;
        config.attn_scale = (family.attn_scale)(&config);
        Ok(config)
    }
}
