//! BLOOM (BigScience, 2022): ALiBi in place of RoPE, LayerNorm (also for the embeddings), biases in all matrices,
//! GELU without a gate.

use serde_json::{Value, json};

use crate::error::Result;
use crate::model::decoder::{
    BiasRule, BiasRules, BlockShape, Family, FfnShape, NormKind, OuterNames, Positions,
};
use crate::model::json::Config;
use crate::model::llama;
use crate::ops::activation::Activation;

/// Settings of BLOOM.
pub(crate) const FAMILY: Family = Family {
    architecture: "bloom",
    gguf_names: &["bloom"],
    model_types: &["bloom"],
    shape: BlockShape { ffn: FfnShape::Plain, ..BlockShape::LLAMA },
    norm: NormKind::Layer,
    json_eps: "layer_norm_epsilon",
    activation: Activation::GeluFactored,
    hidden_acts: &[],
    biases: BiasRules { qkv: BiasRule::Always, output: BiasRule::Always, mlp: BiasRule::Always },
    positions: Positions::Alibi,
    ffn_size: Some(|file| Ok(file.require_usize("hidden_size")?.saturating_mul(4))),
    refuse_json,
    json_aliases: &[
        ("n_embed", "hidden_size"),
        ("n_layer", "num_hidden_layers"),
        ("n_head", "num_attention_heads"),
        ("seq_length", "max_position_embeddings"),
    ],
    layer_names: &[
        ("attn_qkv", "self_attention.query_key_value"),
        ("attn_output", "self_attention.dense"),
        ("ffn_up", "mlp.dense_h_to_4h"),
        ("ffn_down", "mlp.dense_4h_to_h"),
    ],
    outer_names: OuterNames {
        prefix: "transformer.",
        layers: "h",
        embedding: "word_embeddings",
        embedding_norm: Some("word_embeddings_layernorm"),
        norm: "ln_f",
        ..OuterNames::LLAMA
    },
    config_defaults,
    ..llama::FAMILY
};

fn refuse_json(file: &Config) -> Result<()> {
    const STREAM: &str = "apply_residual_connection_post_layernorm";
    let no = [false.into()];
    file.only(STREAM, &no, "false (a residual stream of normed values is not supported)")?;
    file.only("slow_but_exact", &no, "false (products in slices are not supported)")
}

/// Returns the defaults of transformers' `BloomConfig`. ALiBi has no largest position.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 250_880,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "max_position_embeddings": 2048,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": true,
    })
}
