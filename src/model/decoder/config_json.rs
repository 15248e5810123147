//! The configuration of a decoder from a `config.json`, in the words of transformers 4.x and 5.x.

use serde_json::Value;

use crate::error::Result;
use crate::model::decoder::config::{DEFAULT_THETA, derive_head_dim};
use crate::model::decoder::{DecoderConfig, Family, SlidingDefaults, SlidingWindow};
use crate::model::json::Config;
use crate::model::quantisation::{self, LinearClass};
use crate::ops::attention::Scale;
use crate::ops::ffn::Activation;
use crate::ops::rope::{Rope, RopeScaling};
use crate::tensor::RopePairing;

/// What `layer_types` and `rope_parameters` call layers that see all tokens, and those that see the last.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

impl DecoderConfig {
    /// Reads a `config.json`; of a model with several parts, what it says of the one that reads text.
    ///
    /// # Errors
    /// If a key is missing, is of another type or size than it must be, or asks for what the forward pass does not do.
    pub fn from_hugging_face(file: &Config, family: &Family) -> Result<Self> {
        let defaults = (family.config_defaults)();
        let file = &file.object("text_config")?.unwrap_or(file.clone()).or_defaults(&defaults);
        refuse_extensions(file, family.activation)?;
        let hidden_size = file.require_usize("hidden_size")?;
        let n_heads = file.require_usize("num_attention_heads")?;
        let head_dim = match file.optional_usize("head_dim")? {
            Some(head_dim) => head_dim,
            None => derive_head_dim(file.path(), "num_attention_heads", hidden_size, n_heads)?,
        };
        let mut config = Self {
            vocab_size: file.require_usize("vocab_size")?,
            hidden_size,
            ffn_size: file.require_usize("intermediate_size")?,
            n_layers: file.require_usize("num_hidden_layers")?,
            n_heads,
            n_kv_heads: file.optional_usize("num_key_value_heads")?.unwrap_or(n_heads),
            head_dim,
            context_length: file.require_usize("max_position_embeddings")?,
            norm_eps: file.require_f32("rms_norm_eps")?,
            norm_gain: family.gain,
            embed_scale: None,
            rope: rope(file, FULL, "rope_theta", DEFAULT_THETA, head_dim)?,
            sliding: None,
            attn_scale: Scale::Products(1.0),
            activation: family.activation,
            tied_output: file.optional_bool("tie_word_embeddings")?.unwrap_or(false),
            linear_class: linear_class(file, family)?,
        };
        config.check(file.path())?;
        config.embed_scale = (family.embed_scale)(&config);
        config.attn_scale = attn_scale(file, (family.attn_scale)(&config))?;
        config.sliding = sliding_window(file, &config, family.sliding.as_ref())?;
        config.check(file.path())?;
        Ok(config)
    }
}

/// What q·k is multiplied with: what the file says, at the architecture's place.
fn attn_scale(file: &Config, default: Scale) -> Result<Scale> {
    const KEY: &str = "query_pre_attn_scalar";
    let Some(scalar) = file.optional_f32(KEY)? else { return Ok(default) };
    if !(scalar > 0.0 && scalar.is_finite()) {
        return Err(file.bad_key(KEY, scalar, "a positive number"));
    }
    let factor = 1.0 / scalar.sqrt();
    Ok(match default {
        Scale::Products(_) => Scale::Products(factor),
        Scale::Queries(_) => Scale::Queries(factor),
    })
}

/// Which layers see only the last tokens: `layer_types`, or every layer but those of `sliding_window_pattern`.
fn sliding_window(
    file: &Config,
    config: &DecoderConfig,
    defaults: Option<&SlidingDefaults>,
) -> Result<Option<SlidingWindow>> {
    let listed = layer_types(file, config.n_layers)?;
    let Some(defaults) = defaults else {
        let full = listed.is_none_or(|layers| !layers.contains(&true));
        return if full {
            Ok(None)
        } else {
            Err(file.bad_key("layer_types", SLIDING, "full_attention throughout"))
        };
    };
    // Where a window is no part of the architecture's pattern, a file may name none; not to name it is to take transformers'.
    if defaults.full_every.is_none() && file.is_null("sliding_window") {
        return Ok(None);
    }
    let pattern = file.optional_usize("sliding_window_pattern")?.or(defaults.full_every);
    if pattern == Some(0) {
        return Err(file.bad_key("sliding_window_pattern", 0, "1 or more layers"));
    }
    let layers = listed.unwrap_or_else(|| SlidingWindow::every(pattern, config.n_layers));
    if !layers.contains(&true) {
        return Ok(None);
    }
    let window = file.require_usize("sliding_window")?;
    let rope = match defaults.theta {
        Some(theta) => rope(file, SLIDING, "rope_local_base_freq", theta, config.head_dim)?,
        None => config.rope.clone(),
    };
    Ok(Some(SlidingWindow { window, rope, layers }))
}

/// Which layers `layer_types` calls sliding, if it is there.
fn layer_types(file: &Config, n_layers: usize) -> Result<Option<Vec<bool>>> {
    const KEY: &str = "layer_types";
    let Some(value) = file.get(KEY) else { return Ok(None) };
    let kinds = value.as_array().map(Vec::as_slice).unwrap_or_default();
    if kinds.len() != n_layers {
        return Err(file.bad_key(
            KEY,
            format!("{} entries", kinds.len()),
            format!("one for each of {n_layers} layers"),
        ));
    }
    let slides = |kind: &Value| match kind.as_str() {
        Some(FULL) => Ok(false),
        Some(SLIDING) => Ok(true),
        _ => Err(file.bad_key(KEY, kind, format!("{FULL:?} or {SLIDING:?}"))),
    };
    kinds.iter().map(slides).collect::<Result<_>>().map(Some)
}

/// RoPE of one kind of layers: `rope_parameters` (5.x), by kind or for all, else `theta_key` and, for layers that see
/// all tokens, `rope_scaling` (4.x). Where a file has both, transformers takes the scaling of the latter.
fn rope(file: &Config, kind: &str, theta_key: &str, default: f32, head_dim: usize) -> Result<Rope> {
    let new = match file.object("rope_parameters")? {
        Some(all) => all.object(kind)?.or(Some(all).filter(|_| kind == FULL)),
        None => None,
    };
    let theta = new.as_ref().map_or(Ok(None), |new| new.optional_f32("rope_theta"))?;
    let theta = theta.map_or_else(|| file.optional_f32(theta_key), |theta| Ok(Some(theta)))?;
    let old = if kind == FULL { file.object("rope_scaling")? } else { None };
    let scaling = old.or(new).map_or(Ok(RopeScaling::None), |parameters| scaling(&parameters))?;
    Ok(Rope { theta: theta.unwrap_or(default), head_dim, pairing: RopePairing::Half, scaling })
}

/// How the frequencies are stretched.
fn scaling(parameters: &Config) -> Result<RopeScaling> {
    let kind = if parameters.get("rope_type").is_some() { "rope_type" } else { "type" };
    match parameters.optional_str(kind)? {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear(parameters.require_f32("factor")?)),
        Some("llama3") => llama3(parameters),
        Some(found) => {
            let expected = "\"default\", \"linear\" or \"llama3\" (other RoPE scaling is not supported)";
            Err(parameters.bad_key(kind, found, expected))
        }
    }
}

fn llama3(parameters: &Config) -> Result<RopeScaling> {
    let number = |key: &str| match parameters.require_f32(key)? {
        number if number > 0.0 && number.is_finite() => Ok(number),
        number => Err(parameters.bad_key(key, number, "a positive number")),
    };
    let (low_freq_factor, high_freq_factor) = (number("low_freq_factor")?, number("high_freq_factor")?);
    if low_freq_factor >= high_freq_factor {
        return Err(parameters.bad_key("low_freq_factor", low_freq_factor, "less than high_freq_factor"));
    }
    let (factor, original_context) = (number("factor")?, number("original_max_position_embeddings")?);
    Ok(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context })
}

/// Linear layers of BitNet's kind, where the architecture may have them.
fn linear_class(file: &Config, family: &Family) -> Result<Option<LinearClass>> {
    if family.may_be_quantised {
        return LinearClass::read(file);
    }
    file.only(
        quantisation::KEY,
        &[],
        "absent (quantised checkpoints of this architecture are not supported)",
    )?;
    Ok(None)
}

/// Refuses what a `config.json` of these architectures may ask for and the forward pass does not do.
fn refuse_extensions(file: &Config, activation: Activation) -> Result<()> {
    let no = [Value::from(false)];
    let act = match activation {
        Activation::Silu => "silu",
        Activation::SquaredRelu => "relu2",
        _ => "gelu_pytorch_tanh",
    };
    file.only("attention_bias", &no, "false (biases are not supported)")?;
    file.only("mlp_bias", &no, "false (biases are not supported)")?;
    file.only("use_sliding_window", &no, "false (sliding windows are not supported)")?;
    file.only("use_bidirectional_attention", &no, "false (text is read causally)")?;
    file.only("attn_logit_softcapping", &[], "absent (softcapping is not supported)")?;
    file.only("final_logit_softcapping", &[], "absent (softcapping is not supported)")?;
    file.only("partial_rotary_factor", &[1.into(), 1.0.into()], "1 (partial rotation is not supported)")?;
    for key in ["hidden_act", "hidden_activation"] {
        file.only(key, &[act.into()], &format!("{act:?}"))?;
    }
    Ok(())
}
