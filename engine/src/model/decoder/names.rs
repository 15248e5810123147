//! Names of a decoder's tensors in GGUF and Hugging Face files.

use crate::format::TensorFile;
use crate::model::decoder::{Family, OuterNames};

/// Naming scheme of a file's tensors. The loader refers to tensors by their GGUF names.
#[derive(Clone, Copy)]
pub(super) enum DecoderNames<'a> {
    Gguf {
        /// Names of a layer's tensors that differ from Llama's.
        layer: &'a [(&'a str, &'a str)],
        /// Name of the last norm.
        output_norm: &'a str,
    },
    HuggingFace {
        /// Prefix of the decoder's tensor names.
        prefix: &'static str,
        /// Names of a layer's tensors that differ from Llama's.
        layer: &'a [(&'a str, &'a str)],
        /// Names of the tensors outside of layers.
        outer: OuterNames,
        /// True if the architecture's files may have extra layers that predict further tokens.
        may_predict: bool,
    },
}

/// Hugging Face names of a layer's tensors in Llama checkpoints.
const LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ssm_in", "mamba.in_proj"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_dt", "mamba.dt_bias="),
    ("ssm_a", "mamba.A_log="),
    ("ssm_d", "mamba.D="),
    ("ssm_norm", "mamba.norm"),
    ("ssm_out", "mamba.out_proj"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.out_proj", "conv.out_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
    ("ffn_gate_up_exps", "mlp.experts.gate_up_proj="),
    ("ffn_up_all_exps", "mlp.experts.up_proj="),
    ("ffn_down_all_exps", "mlp.experts.down_proj="),
    ("exp_probs_b", "mlp.gate.e_score_correction_bias="),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
];

/// Hugging Face names of a shared expert's tensors, in checkpoints that state a number of shared experts.
pub(crate) const SHARED_EXPERTS: &[(&str, &str)] = &[
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

/// Prefixes of a decoder's tensor names: a text model, the text part of a multimodal model in transformers 4.x and
/// 5.x, or a text model that was saved without its head.
const PREFIXES: [&str; 4] = ["model.", "language_model.model.", "model.language_model.", ""];

/// Prefixes of the non-text parts of a model.
const OTHER_PARTS: [&str; 11] = [
    "audio_tower.",
    "model.audio_tower.",
    "model.embed_audio.",
    "model.embed_vision.",
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.vision_model.",
    "model.multi_modal_projector.",
    "model.visual.",
];

/// Prefix of multi-token prediction layers in Qwen's checkpoints.
const PREDICTING: &str = "mtp.";

/// Returns the name of a module's weight (the module's name plus `.weight`), or of a parameter, whose name is
/// listed with a final `=`.
fn parameter(name: String) -> String {
    name.strip_suffix('=').map_or_else(|| format!("{name}.weight"), str::to_owned)
}

impl<'a> DecoderNames<'a> {
    pub(super) fn hugging_face(file: &TensorFile, family: &'a Family) -> Self {
        let (layer, outer) = (family.layer_names, family.outer_names);
        let has = |prefix: &&str| file.get(&format!("{prefix}{}.weight", outer.embedding)).is_some();
        // Names of a model that was saved without its head lack `model.`: `decoder.` replaces `model.decoder.`.
        let bare = outer.prefix.strip_prefix("model.").unwrap_or(outer.prefix);
        let prefix = [outer.prefix, bare].into_iter().chain(PREFIXES).find(has).unwrap_or(outer.prefix);
        DecoderNames::HuggingFace { prefix, layer, outer, may_predict: family.predicting.is_some() }
    }

    pub(super) fn of_layer(self, name: &str, index: usize) -> String {
        match self {
            DecoderNames::Gguf { layer, .. } => {
                let other = layer.iter().find(|(own, _)| *own == name);
                parameter(format!("blk.{index}.{}", other.map_or(name, |(_, other)| other)))
            }
            DecoderNames::HuggingFace { prefix, layer, outer, .. } => {
                let mut names = layer.iter().chain(LAYER);
                let (_, hugging_face) =
                    names.find(|(gguf, _)| *gguf == name).expect("the tables list every GGUF name");
                parameter(format!("{prefix}{}.{index}.{hugging_face}", outer.layers))
            }
        }
    }

    /// Returns true for the tensors of a layer.
    pub(super) fn is_of_layer(self, name: &str, index: usize) -> bool {
        let prefix = match self {
            DecoderNames::Gguf { .. } => format!("blk.{index}."),
            DecoderNames::HuggingFace { prefix, outer, .. } => format!("{prefix}{}.{index}.", outer.layers),
        };
        name.starts_with(&prefix)
    }

    /// Returns true for the tensors of a layer's keys and values.
    pub(super) fn is_of_keys(self, name: &str, index: usize) -> bool {
        ["attn_k", "attn_v", "attn_k_norm"].iter().any(|of| self.of_layer(of, index) == name)
    }

    /// Returns the name of a matrix's bias.
    pub(super) fn bias_of_layer(self, name: &str, index: usize) -> String {
        let matrix = self.of_layer(name, index);
        matrix.strip_suffix("weight").map_or_else(|| format!("{matrix}_bias"), |stem| format!("{stem}bias"))
    }

    /// Returns the name of a matrix's factor.
    pub(super) fn scale_of_layer(self, name: &str, index: usize) -> String {
        let matrix = self.of_layer(name, index);
        match (self, matrix.strip_suffix("weight")) {
            (DecoderNames::Gguf { .. }, Some(name)) => format!("{name}scale"),
            _ => format!("{matrix}_scale"),
        }
    }

    pub(super) fn token_embd(self) -> String {
        match self {
            DecoderNames::Gguf { .. } => "token_embd.weight".into(),
            DecoderNames::HuggingFace { prefix, outer, .. } => format!("{prefix}{}.weight", outer.embedding),
        }
    }

    /// Returns the names of the table, the projection and the norm of embeddings for each layer.
    pub(super) fn per_layer_embeddings(self) -> [String; 3] {
        match self {
            DecoderNames::Gguf { .. } => {
                ["per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm"]
                    .map(|name| format!("{name}.weight"))
            }
            DecoderNames::HuggingFace { prefix, .. } => {
                ["embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm"]
                    .map(|name| format!("{prefix}{name}.weight"))
            }
        }
    }

    /// Returns the name of the list of projections in a Hugging Face file; `None` for a GGUF file, which stacks them in
    /// one tensor.
    pub(super) fn projections(self, hugging_face: &str) -> Option<String> {
        match self {
            DecoderNames::Gguf { .. } => None,
            DecoderNames::HuggingFace { prefix, .. } => Some(format!("{prefix}{hugging_face}")),
        }
    }

    /// Returns the name of the norm of embeddings.
    pub(super) fn embedding_norm(self, hugging_face: &str) -> String {
        match self {
            DecoderNames::Gguf { .. } => "token_embd_norm.weight".into(),
            DecoderNames::HuggingFace { prefix, .. } => format!("{prefix}{hugging_face}.weight"),
        }
    }

    /// Returns the name of the table of learned positions.
    pub(super) fn position_embd(self) -> String {
        match self {
            DecoderNames::Gguf { .. } => "position_embd.weight".into(),
            DecoderNames::HuggingFace { prefix, outer, .. } => format!("{prefix}{}.weight", outer.positions),
        }
    }

    pub(super) fn output_norm(self) -> String {
        match self {
            DecoderNames::Gguf { output_norm, .. } => format!("{output_norm}.weight"),
            DecoderNames::HuggingFace { prefix, outer, .. } => format!("{prefix}{}.weight", outer.norm),
        }
    }

    pub(super) fn output(self) -> String {
        match self {
            DecoderNames::Gguf { .. } => "output.weight".into(),
            DecoderNames::HuggingFace { prefix: "language_model.model.", outer, .. } => {
                format!("language_model.{}.weight", outer.head)
            }
            DecoderNames::HuggingFace { outer, .. } => format!("{}.weight", outer.head),
        }
    }

    /// Returns true for tensors that the model does not need: derived tensors, and non-text parts of the model.
    pub(super) fn is_beside(self, name: &str) -> bool {
        match self {
            DecoderNames::Gguf { .. } => {
                matches!(name, "rope_freqs.weight" | "rope_cos" | "rope_sin")
                    || name.ends_with(".attn_rot_embd")
            }
            DecoderNames::HuggingFace { prefix, may_predict, .. } => {
                let is_other = |part: &&str| name.starts_with(part);
                const BUFFERS: [&str; 5] = [
                    "rotary_emb.inv_freq",
                    ".attention.bias",
                    ".attention.masked_bias",
                    ".attn.bias",
                    ".attn.masked_bias",
                ];
                BUFFERS.iter().any(|buffer| name.ends_with(buffer))
                    || (may_predict && name.starts_with(PREDICTING))
                    || (PREFIXES[1..3].contains(&prefix) && OTHER_PARTS.iter().any(is_other))
            }
        }
    }
}
