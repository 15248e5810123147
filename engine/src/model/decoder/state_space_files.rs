//! Settings of Mamba-2 in the files of a model.

use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::format::Gguf;
use crate::model::decoder::StateSpaceSizes;
use crate::model::decoder::layer_sizes::GgufLayers;
use crate::model::json::Config;
use crate::model::size;
use crate::ops::state_space::StepLimits;

/// Keys of Mamba-2 in the files of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateSpaceFiles {
    /// Granite 4.
    GraniteHybrid,
    /// Nemotron-H.
    NemotronH,
    /// Falcon-H1.
    FalconH1,
}

/// Names of keys in `config.json`.
struct StateSpaceKeys {
    heads: &'static str,
    head_dim: &'static str,
    groups: &'static str,
    columns: &'static str,
    kernel: &'static str,
    conv_bias: &'static str,
    /// Keys of the biases of the input and of the output projection.
    biases: [&'static str; 2],
}

impl StateSpaceFiles {
    fn keys(self) -> StateSpaceKeys {
        match self {
            StateSpaceFiles::GraniteHybrid | StateSpaceFiles::FalconH1 => StateSpaceKeys {
                heads: "mamba_n_heads",
                head_dim: "mamba_d_head",
                groups: "mamba_n_groups",
                columns: "mamba_d_state",
                kernel: "mamba_d_conv",
                conv_bias: "mamba_conv_bias",
                biases: match self {
                    StateSpaceFiles::FalconH1 => ["mamba_proj_bias", "projectors_bias"],
                    _ => ["mamba_proj_bias"; 2],
                },
            },
            StateSpaceFiles::NemotronH => StateSpaceKeys {
                heads: "mamba_num_heads",
                head_dim: "mamba_head_dim",
                groups: "n_groups",
                columns: "ssm_state_size",
                kernel: "conv_kernel",
                conv_bias: "use_conv_bias",
                biases: ["use_bias"; 2],
            },
        }
    }

    /// Reads the sizes of a `config.json`.
    pub(super) fn in_json(self, file: &Config) -> Result<StateSpaceSizes> {
        let keys = self.keys();
        let expected = "\"silu\" (other activation functions of Mamba-2 are not supported)";
        file.only("mamba_hidden_act", &["silu".into()], expected)?;
        let heads = file.require_usize(keys.heads)?;
        Ok(StateSpaceSizes {
            heads,
            head_dim: self.head_dim(file, &keys, heads)?,
            groups: file.optional_usize(keys.groups)?.unwrap_or(1),
            columns: file.require_usize(keys.columns)?,
            kernel: file.require_usize(keys.kernel)?,
            has_conv_bias: file.optional_bool(keys.conv_bias)?.unwrap_or(true),
            has_bias: file.optional_bool(keys.biases[0])?.unwrap_or(false),
            has_output_bias: file.optional_bool(keys.biases[1])?.unwrap_or(false),
            has_norm: self.has_norm_in_json(file)?,
            limits: self.limits(file)?,
        })
    }

    /// Returns true if a norm follows the gate.
    fn has_norm_in_json(self, file: &Config) -> Result<bool> {
        if self != StateSpaceFiles::FalconH1 {
            return Ok(true);
        }
        let has_norm = file.optional_bool("mamba_rms_norm")?.unwrap_or(false);
        if has_norm {
            let expected = "false (a norm before the gate of Mamba-2 is not supported)";
            file.only("mamba_norm_before_gate", &[false.into()], expected)?;
        }
        Ok(has_norm)
    }

    /// Reads the number of values of a head. In Granite 4 and Falcon-H1 it may follow from the width of all heads.
    fn head_dim(self, file: &Config, keys: &StateSpaceKeys, heads: usize) -> Result<usize> {
        if self == StateSpaceFiles::NemotronH {
            return file.require_usize(keys.head_dim);
        }
        let (factor, hidden_size) = (file.require_usize("mamba_expand")?, file.require_usize("hidden_size")?);
        let too_large = || file.bad_key("mamba_expand", factor, "a small whole number");
        let inner = match file.optional_usize("mamba_d_ssm")?.filter(|_| self == StateSpaceFiles::FalconH1) {
            Some(inner) => inner,
            None => factor.checked_mul(hidden_size).ok_or_else(too_large)?,
        };
        let head_dim = match file.optional_str(keys.head_dim) {
            Ok(Some("auto")) if heads > 0 => inner / heads,
            _ => file.require_usize(keys.head_dim)?,
        };
        match heads.checked_mul(head_dim) == Some(inner) {
            true => Ok(head_dim),
            false => {
                let expected = format!(
                    "heads with {inner} values in total (mamba_expand times the hidden size, or mamba_d_ssm)"
                );
                Err(file.bad_key(keys.heads, heads, expected))
            }
        }
    }

    /// Reads the limits of step sizes. For Nemotron-H, transformers reads the least step from a separate key, which
    /// other engines ignore.
    fn limits(self, file: &Config) -> Result<Option<StepLimits>> {
        const KEY: &str = "time_step_limit";
        let stated = file.get(KEY);
        // transformers 5 writes an infinite number as an object, earlier versions as a word.
        let number = |limit: &Value| match limit.get("__float__").unwrap_or(limit) {
            Value::String(word) => (word == "Infinity").then_some(f32::INFINITY),
            number => number.as_f64().map(|limit| limit as f32),
        };
        let range: Option<Vec<f32>> = match stated {
            None => Some(vec![0.0, f32::INFINITY]),
            Some(limits) => limits.as_array().and_then(|limits| limits.iter().map(number).collect()),
        };
        let Some(&[least, most]) = range.as_deref().filter(|range| is_range(range)) else {
            let expected = "two numbers, the smaller one first and not negative";
            return Err(file.bad_key(KEY, stated.unwrap_or(&Value::Null), expected));
        };
        if self == StateSpaceFiles::NemotronH {
            if [least, most] != [0.0, f32::INFINITY] {
                return Err(file.bad_key(
                    KEY,
                    stated.unwrap_or(&Value::Null),
                    "no limits, as in transformers",
                ));
            }
            let least = file.optional_f32("time_step_min")?.unwrap_or(0.0);
            if !is_range(&[least, f32::INFINITY]) {
                return Err(file.bad_key("time_step_min", least, "a number that is not negative"));
            }
            let limits = StepLimits { range: [least, f32::INFINITY], is_optional: true };
            return Ok((least > 0.0).then_some(limits));
        }
        let limits = StepLimits { range: [least, most], is_optional: false };
        Ok(([least, most] != [0.0, f32::INFINITY]).then_some(limits))
    }

    /// Reads the sizes of a GGUF file.
    pub(super) fn in_gguf(
        self,
        file: &Gguf,
        architecture: &str,
        hidden_size: usize,
    ) -> Result<StateSpaceSizes> {
        let key = |name: &str| format!("{architecture}.ssm.{name}");
        let refuse = |name: &str, found: usize, expected: String| {
            Err(Error::bad_key(file.tensors.path(), &key(name), found, expected))
        };
        let [groups, inner, heads]: [usize; 3] = [
            file.optional(&key("group_count"))?.unwrap_or(1),
            file.require(&key("inner_size"))?,
            file.require(&key("time_step_rank"))?,
        ];
        let doubled = hidden_size.saturating_mul(2);
        if self == StateSpaceFiles::GraniteHybrid && inner != doubled {
            return refuse("inner_size", inner, format!("{doubled}, twice the hidden size, as in llama.cpp"));
        }
        if heads == 0 || !inner.is_multiple_of(heads) {
            return refuse("time_step_rank", heads, format!("a number of heads that divides {inner}"));
        }
        Ok(StateSpaceSizes {
            heads,
            head_dim: inner / heads,
            groups,
            columns: file.require(&key("state_size"))?,
            kernel: file.require(&key("conv_kernel"))?,
            has_conv_bias: true,
            has_bias: false,
            has_output_bias: false,
            has_norm: self != StateSpaceFiles::FalconH1
                || file.tensors.get("blk.0.ssm_norm.weight").is_some(),
            limits: None,
        })
    }
}

/// Returns true if the two limits are in ascending order, and the first one is finite and not negative.
fn is_range(range: &[f32]) -> bool {
    matches!(range, [least, most] if *least >= 0.0 && least < most && least.is_finite())
}

/// Checks the sizes.
pub(super) fn check(file: &Path, sizes: StateSpaceSizes) -> Result<()> {
    let StateSpaceSizes { heads, head_dim, groups, columns, .. } = sizes;
    let all = [
        ("number of heads of a recurrence", heads),
        ("head size of a recurrence", head_dim),
        ("number of groups of heads of a recurrence", groups),
        ("columns of a state", columns),
    ];
    size::check(file, &all)?;
    match heads.is_multiple_of(groups) {
        true => Ok(()),
        false => {
            let expected = format!("a divisor of the {heads} heads");
            Err(Error::bad_key(file, all[2].0, groups, expected))
        }
    }
}

/// Kind of a layer that has only one half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SingleHalf {
    Recurrent,
    Attention,
    FeedForward,
    Experts,
}

impl SingleHalf {
    /// Returns flags that are true for the layers that are only a feed-forward block, with experts or without.
    pub(super) fn feed_forward(kinds: &[Self]) -> Vec<bool> {
        kinds.iter().map(|kind| matches!(kind, SingleHalf::FeedForward | SingleHalf::Experts)).collect()
    }
}

/// Reads the kinds of the layers of a GGUF file: a layer with a feed-forward size is a feed-forward block, and one
/// with key-value heads is attention.
pub(super) fn kinds_in_gguf(layers: &GgufLayers) -> Result<Vec<SingleHalf>> {
    let (sizes, heads) = (layers.sizes("feed_forward_length")?, layers.sizes("attention.head_count_kv")?);
    let kind = |(size, heads): (usize, usize)| match (size, heads) {
        (0, 0) => SingleHalf::Recurrent,
        (0, _) => SingleHalf::Attention,
        _ => SingleHalf::FeedForward,
    };
    Ok(sizes.into_iter().zip(heads).map(kind).collect())
}

/// Reads the kinds of the layers of a Nemotron-H model: from `layers_block_type`, or from a string with a letter
/// for each layer.
pub(super) fn kinds(file: &Config) -> Result<Vec<SingleHalf>> {
    const LISTED: &str = "layer_types";
    const PATTERN: &str = "hybrid_override_pattern";
    let pattern = file.optional_str(PATTERN)?.filter(|_| file.get(LISTED).is_none());
    let pattern = pattern.map(|pattern| pattern.chars().map(|letter| letter.to_string()).collect::<Vec<_>>());
    let (key, listed) = match pattern {
        Some(letters) => (PATTERN, letters),
        None => (LISTED, file.texts(LISTED)?.into_iter().map(str::to_owned).collect()),
    };
    let kind = |name: &String| match name.as_str() {
        "linear_attention" | "mamba" | "M" => Ok(SingleHalf::Recurrent),
        "full_attention" | "attention" | "*" => Ok(SingleHalf::Attention),
        "mlp" | "-" => Ok(SingleHalf::FeedForward),
        "moe" | "E" => Ok(SingleHalf::Experts),
        _ => {
            let expected = "\"linear_attention\", \"full_attention\", \"mlp\" or \"moe\", or M, *, - or E";
            Err(file.bad_key(key, name, expected))
        }
    };
    match listed.is_empty() {
        true => Err(file.bad_key(key, "missing", "the kind of each layer")),
        false => listed.iter().map(kind).collect(),
    }
}
