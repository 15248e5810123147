//! The producer of a dump, as described in the manifest.

use serde::{Deserialize, Serialize};

use crate::dump::dtype_names::dtype_named;
use crate::weight::DType;

/// Settings that decide how the model is run against the dump, or how the dump is judged.
const READ: [&str; 7] =
    ["numerics", "dtype", "kv_cache", "weights", "flash_attention", "attention_rotation", "longrope"];
/// Settings that only describe a run for people. Known producers write them.
const DESCRIPTIVE: &[&str] = &[
    "activation_replaced",
    "activations",
    "all_reduce",
    "attention",
    "attention_kernel",
    "autocast",
    "avx",
    "batch",
    "build",
    "build_flags",
    "checked_against",
    "compiler",
    "converter_transformers",
    "cpu",
    "cuda",
    "dequantised",
    "device",
    "experts",
    "exporter",
    "file_version",
    "float8",
    "fused_logits_difference",
    "graph_optimisation",
    "group_size",
    "kernels",
    "libc",
    "linear",
    "mask",
    "mlx",
    "not_in_the_optimised_graph",
    "positions",
    "program",
    "program_sha256",
    "prompt_logits_difference",
    "reduced_precision_sums",
    "sigmoid",
    "system_info",
    "tensor_parallel",
    "threads",
    "token_embd",
    "torch",
    "torch_compile",
    "weight_buffers",
];

/// The program that made a dump.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Producer {
    /// The producer's name, e.g. "transformers", "llama.cpp" or "xcheck".
    pub name: String,
    /// The producer's version.
    #[serde(default)]
    pub version: String,
    /// Settings that affect the values, e.g. dtype, KV cache type, threads.
    #[serde(default)]
    pub settings: serde_json::Map<String, serde_json::Value>,
    /// The stated rounding: the name of a profile, and fields that deviate from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounding: Option<serde_json::Map<String, serde_json::Value>>,
}

impl Producer {
    /// Returns the floating-point type of weights and activations, in any spelling. TF32 counts as `f32`;
    /// only its products have fewer bits.
    pub fn dtype(&self) -> Option<DType> {
        let floats = [DType::F32, DType::F64, DType::F16, DType::BF16];
        let named = self.stated_dtype().and_then(dtype_named).filter(|dtype| floats.contains(dtype));
        named.or_else(|| self.is_tf32().then_some(DType::F32))
    }

    /// Returns true if the settings state TF32 products.
    pub(crate) fn is_tf32(&self) -> bool {
        let names = ["tf32", "tfloat32", "tensorfloat32"];
        self.stated_dtype().is_some_and(|stated| names.iter().any(|name| name.eq_ignore_ascii_case(stated)))
    }

    /// Returns the text of the setting `dtype`, if it names a type. Words such as "auto", used by
    /// transformers and vLLM, do not.
    pub fn stated_dtype(&self) -> Option<&str> {
        const NAMES_NONE: [&str; 5] = ["auto", "default", "none", "unknown", ""];
        let stated = self.setting("dtype")?.trim();
        let names_none = NAMES_NONE.iter().any(|word| word.eq_ignore_ascii_case(stated));
        (!names_none).then_some(stated)
    }

    /// Returns the element type of the KV cache, in any spelling.
    pub fn cache_type(&self) -> Option<DType> {
        self.setting("kv_cache").and_then(dtype_named)
    }

    /// Returns the precision for looking up tolerances: the torch dtype of activations, or the weights' type
    /// if there is only one. `None` if the settings do not state it. Never returns free text, which could
    /// match any table entry.
    pub fn precision(&self) -> Option<&'static str> {
        let torch = matches!(self.setting("numerics"), None | Some("transformers"));
        match (self.dtype(), self.setting("weights")) {
            (Some(DType::BF16), _) if torch => Some("torch-bf16"),
            (Some(DType::F16), _) if torch => Some("torch-f16"),
            (_, Some(weights)) => dtype_named(weights).map(DType::name),
            (Some(DType::F32 | DType::F64), None) => Some(DType::F32.name()),
            _ => None,
        }
    }

    /// Returns true if the cache has 8-bit values, with any kind of scale.
    pub fn has_eight_bit_cache(&self) -> bool {
        let eight = [DType::I8, DType::U8, DType::F8_E4M3, DType::F8_E5M2, DType::Q8_0];
        self.cache_type().is_some_and(|dtype| eight.contains(&dtype))
    }

    /// Returns a note for each unknown setting: no check uses it, and it is not a known descriptive setting.
    pub fn unread_settings(&self) -> Vec<String> {
        let is_known = |key: &str| READ.contains(&key) || DESCRIPTIVE.contains(&key);
        let told = |key: &String| {
            format!(
                "producer.settings.{key} is unknown and has no effect; known settings: {}",
                READ.join(", ")
            )
        };
        self.settings.keys().filter(|key| !is_known(key)).map(told).collect()
    }

    /// Returns the text of a setting, if it is present and a string.
    pub fn setting(&self, key: &str) -> Option<&str> {
        self.settings.get(key)?.as_str()
    }
}
