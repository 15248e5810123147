//! OPT (Meta, 2022): learned positions, LayerNorm, biases in all matrices, ReLU without a gate.

use serde_json::{Value, json};

use crate::error::Result;
use crate::model::decoder::{BiasRules, BlockShape, Family, FfnShape, NormKind, OuterNames, Positions};
use crate::model::json::Config;
use crate::model::llama;
use crate::ops::activation::Activation;
use crate::ops::attention::AttentionScale;

/// Settings of OPT.
pub(crate) const FAMILY: Family = Family {
    architecture: "opt",
    gguf_names: &[],
    model_types: &["opt"],
    shape: BlockShape { ffn: FfnShape::Plain, ..BlockShape::LLAMA },
    norm: NormKind::Layer,
    json_eps: EPS,
    activation: Activation::Relu,
    hidden_acts: &["relu", "gelu", "gelu_new", "gelu_pytorch_tanh"],
    attn_scale: |c| AttentionScale::RoundedQueries(1.0 / (c.head_dim as f32).sqrt()),
    biases: BiasRules::stated("enable_bias"),
    positions: Positions::Learned { offset: 2 },
    refuse_json,
    json_aliases: &[("activation_function", "hidden_act"), ("ffn_dim", "intermediate_size")],
    layer_names: &[
        ("attn_norm", "self_attn_layer_norm"),
        ("attn_output", "self_attn.out_proj"),
        ("ffn_norm", "final_layer_norm"),
        ("ffn_up", "fc1"),
        ("ffn_down", "fc2"),
    ],
    outer_names: OuterNames { prefix: "model.decoder.", norm: "final_layer_norm", ..OuterNames::LLAMA },
    config_defaults,
    ..llama::FAMILY
};

/// Epsilon of the norms. OPT's files do not state it.
const EPS: &str = "layer_norm_eps";

fn refuse_json(file: &Config) -> Result<()> {
    const WIDTH: &str = "word_embed_proj_dim";
    let (no, yes) = ([false.into()], [true.into()]);
    file.only("do_layer_norm_before", &yes, "true (norms after the residual additions are not supported)")?;
    file.only("_remove_final_layer_norm", &no, "false (models without a last norm are not supported)")?;
    file.only("layer_norm_elementwise_affine", &yes, "true (norms without weights are not supported)")?;
    file.only(EPS, &[1e-5.into()], "absent: transformers' OPT has an epsilon of 1e-5")?;
    let hidden_size = file.require_usize("hidden_size")?;
    let expected = format!("{hidden_size}, the hidden size (projections of embeddings are not supported)");
    file.only(WIDTH, &[hidden_size.into()], &expected)
}

/// Returns the defaults of transformers' `OPTConfig`.
fn config_defaults() -> Value {
    json!({
        "vocab_size": 50_272,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "enable_bias": true,
        "tie_word_embeddings": true,
    })
}
