//! Settings of latent attention in the files of a model.

use crate::error::{Error, Result};
use crate::format::Gguf;
use crate::model::decoder::LatentSizes;
use crate::model::json::Config;
use crate::ops::attention::AttentionScale;
use crate::ops::rope::RopeScaling;
use crate::ops::rope::yarn::{Yarn, YarnMagnitude};

/// Epsilon of the norms inside of attention in transformers. It does not depend on the file's epsilon.
const NORM_EPS: f32 = 1e-6;

/// Reads the sizes of a `config.json`.
pub(super) fn sizes(file: &Config) -> Result<LatentSizes> {
    file.only("rope_interleave", &[true.into()], "true (other rotations are not supported)")?;
    Ok(LatentSizes {
        query_rank: file.optional_usize("q_lora_rank")?,
        rank: file.require_usize("kv_lora_rank")?,
        plain: file.require_usize("qk_nope_head_dim")?,
        rotated: file.require_usize("qk_rope_head_dim")?,
        value: file.require_usize("v_head_dim")?,
        norm_eps: NORM_EPS,
        is_absorbed: false,
    })
}

/// Reads the factor of q·k from a `config.json`: the usual factor, times the square of YaRN's
/// `0.1 · mscale_all_dim · ln factor + 1`.
pub(super) fn scale(file: &Config, head_dim: usize) -> Result<AttentionScale> {
    let root = 1.0 / (head_dim as f64).sqrt();
    let parameters = match file.object("rope_scaling")?.filter(|old| !old.is_empty()) {
        None => file.object("rope_parameters")?,
        old => old,
    };
    let Some(parameters) = parameters else { return Ok(AttentionScale::Products(root as f32)) };
    let kind = parameters.optional_str("rope_type")?.or(parameters.optional_str("type")?);
    let weight = parameters.optional_f32("mscale_all_dim")?.unwrap_or(0.0);
    if weight == 0.0 || kind.is_none_or(|kind| kind == "default") {
        return Ok(AttentionScale::Products(root as f32));
    }
    let factor = f64::from(parameters.require_f32("factor")?).max(1.0);
    let stretch = 0.1 * f64::from(weight) * factor.ln() + 1.0;
    Ok(AttentionScale::Products((root * stretch * stretch) as f32))
}

/// Reads the sizes of a GGUF file.
pub(super) fn sizes_in_gguf(file: &Gguf, architecture: &str) -> Result<LatentSizes> {
    let key = |name: &str| format!("{architecture}.{name}");
    let head: usize = file.require(&key("attention.key_length_mla"))?;
    let rotated: usize = file.require(&key("rope.dimension_count"))?;
    let Some(plain) = head.checked_sub(rotated) else {
        let expected = format!("at most {head}, the size of a key head");
        return Err(Error::bad_key(file.tensors.path(), &key("rope.dimension_count"), rotated, expected));
    };
    let scale_key = key("attention.temperature_scale");
    if let Some(found) = file.optional::<f32>(&scale_key)?.filter(|scale| *scale != 0.0) {
        let expected = "0 (queries that are scaled by their position are not supported)";
        return Err(Error::bad_key(file.tensors.path(), &scale_key, found, expected));
    }
    Ok(LatentSizes {
        query_rank: file.optional(&key("attention.q_lora_rank"))?,
        rank: file.require(&key("attention.kv_lora_rank"))?,
        plain,
        rotated,
        value: file.require(&key("attention.value_length_mla"))?,
        norm_eps: file.require(&key("attention.layer_norm_rms_epsilon"))?,
        is_absorbed: true,
    })
}

/// Returns YaRN as llama.cpp reads it for latent attention: GGUF files state a tenth of `mscale_all_dim`, and
/// `mscale` has the same value.
pub(super) fn yarn_in_gguf(yarn: Yarn) -> Yarn {
    let weight = yarn.magnitude.mscale_all_dim / 0.1;
    let magnitude = match weight == 0.0 {
        true => YarnMagnitude { stated: None, ..yarn.magnitude },
        false => YarnMagnitude { stated: None, mscale: weight, mscale_all_dim: weight, ..yarn.magnitude },
    };
    Yarn { magnitude, ..yarn }
}

/// Returns llama.cpp's factor of q·k, in its `f32` arithmetic.
pub(super) fn scale_in_gguf(scaling: &RopeScaling, head_dim: usize) -> AttentionScale {
    let mut stretch = 1.0;
    if let RopeScaling::Yarn(yarn) = scaling {
        let log = (1.0 / (1.0 / yarn.factor)).ln();
        let by = |weight: f32| if yarn.factor <= 1.0 { 1.0 } else { 0.1 * weight * log + 1.0 };
        let YarnMagnitude { mscale, mscale_all_dim, times, .. } = yarn.magnitude;
        let own = by(mscale) / by(mscale_all_dim) * (1.0 / (1.0 + 0.1 * log)) * times;
        stretch = own * (1.0 + 0.1 * log) * (1.0 + 0.1 * mscale_all_dim * log);
    }
    AttentionScale::Products(stretch * stretch / (head_dim as f32).sqrt())
}
