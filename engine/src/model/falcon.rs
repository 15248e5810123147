//! Falcon (TII, 2023): LayerNorm, GELU without a gate, few key-value heads. Both halves of a block read the block's
//! input: in most models through one shared norm, in others each through its own norm.

use serde_json::{Value, json};

use crate::error::Result;
use crate::model::decoder::{BiasRules, BlockShape, Family, FfnShape, NormKind, OuterNames, ParallelHalves};
use crate::model::json::Config;
use crate::model::llama;
use crate::ops::activation::Activation;
use crate::tensor::RopePairing;

/// Settings of Falcon models whose halves share a norm of the block's input, or follow one another.
pub(crate) const FAMILY: Family = Family {
    architecture: "falcon",
    gguf_names: &["falcon"],
    model_types: &["falcon"],
    gguf_pairing: RopePairing::Half,
    shape: BlockShape { ffn: FfnShape::Plain, parallel: Some(PARALLEL), ..BlockShape::LLAMA },
    norm: NormKind::Layer,
    json_eps: "layer_norm_epsilon",
    activation: Activation::GeluErf,
    gguf_activations: &[("falcon", Activation::GeluTanh)],
    hidden_acts: &["gelu", "gelu_new", "gelu_pytorch_tanh", "silu", "relu"],
    biases: BiasRules::NONE,
    kv_heads: Some(kv_heads),
    ffn_size: Some(ffn_size),
    refuse_json,
    json_aliases: &[
        ("n_embed", "hidden_size"),
        ("activation", "hidden_act"),
        ("parallel_attn", "use_parallel_residual"),
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
        norm: "ln_f",
        ..OuterNames::LLAMA
    },
    config_defaults,
    ..llama::FAMILY
};

/// Settings of Falcon models whose halves have a norm each.
const TWO_NORMS: Family = Family {
    shape: BlockShape {
        parallel: Some(ParallelHalves { has_ffn_norm: true, is_always: true, ..PARALLEL }),
        ..FAMILY.shape
    },
    layer_names: &[
        ("attn_norm", "ln_attn"),
        ("ffn_norm", "ln_mlp"),
        ("attn_qkv", "self_attention.query_key_value"),
        ("attn_output", "self_attention.dense"),
        ("ffn_up", "mlp.dense_h_to_4h"),
        ("ffn_down", "mlp.dense_4h_to_h"),
    ],
    gguf_layer_names: &[("attn_norm", "attn_norm_2"), ("ffn_norm", "attn_norm")],
    ..FAMILY
};

const PARALLEL: ParallelHalves = ParallelHalves { is_always: false, ..ParallelHalves::ONE_NORM };

/// Key that is true for the decoder of Falcon-40B.
const NEW: &str = "new_decoder_architecture";

/// Key of the number of norms of a block's input.
const NORMS: &str = "num_ln_in_parallel_attn";

/// Returns the settings of models whose halves share a norm, or have a norm each.
pub(crate) fn family(has_two_norms: bool) -> &'static Family {
    if has_two_norms { &TWO_NORMS } else { &FAMILY }
}

/// Returns true if each half of a block has a norm of its own.
pub(crate) fn has_two_norms(file: &Config) -> Result<bool> {
    let is_new = file.optional_bool(NEW)?.unwrap_or(false);
    Ok(is_new && file.optional_usize(NORMS)?.unwrap_or(2) == 2)
}

/// Returns the number of key-value heads. Models with multi-query attention have one, regardless of `num_kv_heads`.
fn kv_heads(file: &Config) -> Result<usize> {
    const KEY: &str = "num_kv_heads";
    let n_heads = file.require_usize("num_attention_heads")?;
    let stated = file.optional_usize(KEY)?.unwrap_or(n_heads);
    match (file.optional_bool(NEW)?.unwrap_or(false), file.optional_bool("multi_query")?.unwrap_or(true)) {
        (true, _) => Ok(stated),
        (false, true) => Ok(1),
        (false, false) if stated == n_heads => Ok(n_heads),
        (false, false) => Err(file.bad_key(KEY, stated, format!("{n_heads}, the number of query heads"))),
    }
}

/// Returns the width of the feed-forward block: four times the hidden size unless stated.
fn ffn_size(file: &Config) -> Result<usize> {
    let width = file.require_usize("hidden_size")?.saturating_mul(4);
    Ok(file.optional_usize("ffn_hidden_size")?.unwrap_or(width))
}

fn refuse_json(file: &Config) -> Result<()> {
    let (no, yes) = ([false.into()], [true.into()]);
    file.only("alibi", &no, "false (ALiBi of this architecture is not supported)")?;
    file.only("bias", &no, "false (biases of this architecture are not supported)")?;
    if file.optional_bool(NEW)?.unwrap_or(false) {
        file.only("use_parallel_residual", &yes, "true in the new decoder architecture")?;
        return file.only(NORMS, &[1.into(), 2.into()], "1 or 2");
    }
    file.only(NORMS, &[1.into()], "1, or absent, without new_decoder_architecture")
}

/// Returns the defaults of transformers' `FalconConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 65_024,
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "max_position_embeddings": 2048,
        "layer_norm_epsilon": 1e-5,
        "use_parallel_residual": true,
        "tie_word_embeddings": true,
    })
}
