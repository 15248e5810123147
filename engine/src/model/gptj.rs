//! GPT-J (EleutherAI, 2021): both halves of a block read the same LayerNorm of the block's input. GELU without a
//! gate; RoPE of neighbouring values in a part of each head; biases in the feed-forward block and the vocabulary
//! projection.

use serde_json::{Value, json};

use crate::error::Result;
use crate::model::decoder::{
    BiasRule, BiasRules, BlockShape, Family, FfnShape, NormKind, ParallelHalves, RopeExtras,
};
use crate::model::gpt_bigcode::{GPT2_KEYS, GPT2_NAMES, ffn_size};
use crate::model::json::Config;
use crate::model::llama;
use crate::ops::activation::Activation;
use crate::tensor::RopePairing;

/// Settings of GPT-J.
pub(crate) const FAMILY: Family = Family {
    architecture: "gptj",
    gguf_names: &[],
    model_types: &["gptj"],
    pairing: RopePairing::Interleaved,
    shape: BlockShape { ffn: FfnShape::Plain, parallel: Some(ParallelHalves::ONE_NORM), ..BlockShape::LLAMA },
    norm: NormKind::Layer,
    json_eps: "layer_norm_epsilon",
    activation: Activation::GeluNew,
    hidden_acts: &["gelu_new", "gelu_pytorch_tanh", "gelu"],
    rope: RopeExtras { may_be_partial: true, ..RopeExtras::NONE },
    biases: BiasRules { qkv: BiasRule::Never, output: BiasRule::Never, mlp: BiasRule::Always },
    has_head_bias: true,
    ffn_size: Some(ffn_size),
    refuse_json,
    json_aliases: GPT2_KEYS,
    layer_names: &[
        ("attn_norm", "ln_1"),
        ("attn_q", "attn.q_proj"),
        ("attn_k", "attn.k_proj"),
        ("attn_v", "attn.v_proj"),
        ("attn_output", "attn.out_proj"),
        ("ffn_up", "mlp.fc_in"),
        ("ffn_down", "mlp.fc_out"),
    ],
    outer_names: GPT2_NAMES,
    config_defaults,
    ..llama::FAMILY
};

fn refuse_json(file: &Config) -> Result<()> {
    for key in ["rope_parameters", "rope_scaling", "rope_theta"] {
        file.only(key, &[], "absent (transformers' GPT-J has one RoPE, with a base of 10000)")?;
    }
    match file.is_null("rotary_dim") {
        true => Err(file.bad_key("rotary_dim", "null", "the number of values of a head that rotate")),
        false => Ok(()),
    }
}

/// Returns the defaults of transformers' `GPTJConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 50_400,
        "hidden_size": 4096,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "max_position_embeddings": 2048,
        "rotary_dim": 64,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": false,
    })
}
