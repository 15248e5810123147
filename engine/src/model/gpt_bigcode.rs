//! StarCoder and SantaCoder (BigCode, 2022): GPT-2's block with one key-value head that all query heads share.

use serde_json::{Value, json};

use crate::error::Result;
use crate::model::decoder::{
    BiasRule, BiasRules, BlockShape, Family, FfnShape, NormKind, OuterNames, Positions,
};
use crate::model::json::Config;
use crate::model::llama;
use crate::ops::activation::Activation;

/// Settings of StarCoder and SantaCoder.
pub(crate) const FAMILY: Family = Family {
    architecture: "starcoder",
    gguf_names: &["starcoder"],
    model_types: &["gpt_bigcode"],
    shape: BlockShape { ffn: FfnShape::Plain, ..BlockShape::LLAMA },
    norm: NormKind::Layer,
    json_eps: "layer_norm_epsilon",
    activation: Activation::GeluTanh,
    hidden_acts: &["gelu_pytorch_tanh", "gelu_new", "gelu"],
    biases: BiasRules { qkv: BiasRule::Always, output: BiasRule::Always, mlp: BiasRule::Always },
    positions: Positions::Learned { offset: 0 },
    kv_heads: Some(kv_heads),
    ffn_size: Some(ffn_size),
    refuse_json,
    json_aliases: GPT2_KEYS,
    layer_names: &[
        ("attn_norm", "ln_1"),
        ("attn_qkv", "attn.c_attn"),
        ("attn_output", "attn.c_proj"),
        ("ffn_norm", "ln_2"),
        ("ffn_up", "mlp.c_fc"),
        ("ffn_down", "mlp.c_proj"),
    ],
    outer_names: OuterNames { positions: "wpe", ..GPT2_NAMES },
    config_defaults,
    ..llama::FAMILY
};

/// Keys of `config.json` in models derived from GPT-2.
pub(crate) const GPT2_KEYS: &[(&str, &str)] = &[
    ("n_embd", "hidden_size"),
    ("n_layer", "num_hidden_layers"),
    ("n_head", "num_attention_heads"),
    ("n_positions", "max_position_embeddings"),
    ("activation_function", "hidden_act"),
];

/// Names of tensors outside of layers in models derived from GPT-2.
pub(crate) const GPT2_NAMES: OuterNames =
    OuterNames { prefix: "transformer.", layers: "h", embedding: "wte", norm: "ln_f", ..OuterNames::LLAMA };

/// Returns the width of the feed-forward block: four times the hidden size unless stated.
pub(crate) fn ffn_size(file: &Config) -> Result<usize> {
    let width = file.require_usize("hidden_size")?.saturating_mul(4);
    Ok(file.optional_usize("n_inner")?.unwrap_or(width))
}

/// Returns the number of key-value heads: one, unless `multi_query` is false.
fn kv_heads(file: &Config) -> Result<usize> {
    match file.optional_bool("multi_query")?.unwrap_or(true) {
        true => Ok(1),
        false => file.require_usize("num_attention_heads"),
    }
}

fn refuse_json(file: &Config) -> Result<()> {
    file.only("scale_attn_weights", &[true.into()], "true (unscaled attention is not supported)")?;
    file.only("add_cross_attention", &[false.into()], "false (cross attention is not supported)")
}

/// Returns the defaults of transformers' `GPTBigCodeConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 50_257,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 1024,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": true,
    })
}
