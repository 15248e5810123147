//! YaRN's settings in `config.json` and in GGUF files.

use crate::error::{Error, Result};
use crate::format::Gguf;
use crate::model::json::Config;
use crate::ops::rope::yarn::{Yarn, YarnMagnitude};

/// Reads YaRN from a `config.json` as transformers does. An original context outside the RoPE parameters takes
/// precedence over one among them. Without either, the model's context is used.
pub(super) fn from_json(file: &Config, parameters: &Config) -> Result<Yarn> {
    const CONTEXT: &str = "original_max_position_embeddings";
    let context = file.require_usize("max_position_embeddings")?;
    let original =
        file.optional_usize(CONTEXT)?.map_or_else(|| parameters.optional_usize(CONTEXT), |x| Ok(Some(x)))?;
    let original = original.unwrap_or(context);
    let factor = match parameters.is_null("factor") {
        true => context as f32 / original as f32,
        false => parameters.require_f32("factor")?,
    };
    // transformers treats 0 like an absent key.
    let number = |key: &str| Ok::<_, Error>(parameters.optional_f32(key)?.filter(|number| *number != 0.0));
    let plain = Yarn::new(factor, original as f32);
    let stated = parameters.optional_f32("attention_factor")?;
    let magnitude = match (number("mscale")?, number("mscale_all_dim")?) {
        (Some(mscale), Some(mscale_all_dim)) => YarnMagnitude { stated, mscale, mscale_all_dim, times: 1.0 },
        _ => YarnMagnitude { stated, ..YarnMagnitude::DEFAULT },
    };
    Ok(Yarn {
        beta_fast: number("beta_fast")?.unwrap_or(plain.beta_fast),
        beta_slow: number("beta_slow")?.unwrap_or(plain.beta_slow),
        // Python takes null as false.
        truncates: !parameters.is_null("truncate") && parameters.optional_bool("truncate")?.unwrap_or(true),
        magnitude,
        ..plain
    })
}

/// Reads YaRN from the metadata of a GGUF file, whose keys begin with the architecture's name.
pub(super) fn from_gguf(file: &Gguf, architecture: &str) -> Result<Yarn> {
    let key = |name: &str| format!("{architecture}.rope.scaling.{name}");
    let number = |name: &str| file.optional::<f32>(&key(name));
    if let Some(found) = number("yarn_ext_factor")?.filter(|found| *found != 1.0) {
        let expected = "1 (other extrapolation factors are not supported)";
        return Err(Error::bad_key(file.tensors.path(), &key("yarn_ext_factor"), found, expected));
    }
    let original = match file.optional::<usize>(&key("original_context_length"))? {
        Some(original) => original,
        None => file.require(&format!("{architecture}.context_length"))?,
    };
    let plain = Yarn::new(file.require(&key("factor"))?, original as f32);
    Ok(Yarn {
        beta_fast: number("yarn_beta_fast")?.unwrap_or(plain.beta_fast),
        beta_slow: number("yarn_beta_slow")?.unwrap_or(plain.beta_slow),
        magnitude: YarnMagnitude {
            stated: number("yarn_attn_factor")?,
            mscale_all_dim: number("yarn_log_multiplier")?.unwrap_or(0.0),
            times: number("attn_factor")?.unwrap_or(1.0),
            ..YarnMagnitude::DEFAULT
        },
        ..plain
    })
}
