//! Attention temperature tuning (a factor on each query by its position): its settings in the files of a model.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::format::Gguf;
use crate::model::json::Config;
use crate::ops::rope::{Rope, RopeScaling};
use crate::ops::row_factor::QueryTemperature;

/// Architectures with attention temperature tuning, by the keys of its settings in model files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TemperatureFiles {
    /// Llama 4: the keys `attn_temperature_tuning`, `floor_scale` and `attn_scale` in `config.json`, and llama.cpp's
    /// constants for GGUF files.
    Llama4,
    /// Ministral 3: one key with the factor. The temperature grows at every multiple of YaRN's original context.
    Ministral3,
}

/// Key in `config.json` that switches Llama 4's attention temperature tuning on or off.
const SWITCH: &str = "attn_temperature_tuning";

impl TemperatureFiles {
    /// Reads the settings from `config.json`. `known` is `None` for an architecture without attention temperature
    /// tuning.
    pub(super) fn in_json(
        known: Option<Self>,
        file: &Config,
        rope: &Rope,
    ) -> Result<Option<QueryTemperature>> {
        match known {
            Some(TemperatureFiles::Llama4) => of_llama4(file),
            Some(TemperatureFiles::Ministral3) => {
                const KEY: &str = "llama_4_scaling_beta";
                let old = file.object("rope_scaling")?.filter(|old| !old.is_empty());
                let parameters = old.map_or_else(|| file.object("rope_parameters"), |old| Ok(Some(old)))?;
                let parameters = parameters.as_ref().unwrap_or(file);
                let scale = parameters.require_f32(KEY)?;
                let made = grown_by_context(scale, rope);
                made.map(Some).map_err(|expected| parameters.bad_key(KEY, scale, expected))
            }
            None => {
                let expected = "false (attention temperature tuning is not supported)";
                file.only(SWITCH, &[false.into(), 0.into()], expected)?;
                Ok(None)
            }
        }
    }

    /// Reads the settings from a GGUF file. Returns `None` if the scale is missing or 0, because files of other Mistral
    /// models may state Ministral 3's architecture name.
    pub(super) fn in_gguf(
        self,
        file: &Gguf,
        architecture: &str,
        rope: &Rope,
    ) -> Result<Option<QueryTemperature>> {
        let key = format!("{architecture}.attention.temperature_scale");
        match self {
            TemperatureFiles::Llama4 => Ok(Some(QueryTemperature::LLAMA4)),
            TemperatureFiles::Ministral3 => match file.optional::<f32>(&key)?.filter(|scale| *scale != 0.0) {
                None => Ok(None),
                Some(scale) => grown_by_context(scale, rope)
                    .map(Some)
                    .map_err(|expected| Error::bad_key(file.tensors.path(), &key, scale, expected)),
            },
        }
    }
}

/// Returns Ministral 3's temperature with the factor `scale`. The error describes the expected value.
fn grown_by_context(scale: f32, rope: &Rope) -> std::result::Result<QueryTemperature, &'static str> {
    let RopeScaling::Yarn(yarn) = &rope.scaling else {
        return Err("RoPE with YaRN, and its original context");
    };
    match (yarn.original_context >= 1.0, scale.is_finite()) {
        (true, true) => Ok(QueryTemperature {
            floor: yarn.original_context as usize,
            scale,
            ..QueryTemperature::MINISTRAL3
        }),
        _ => Err("a finite number, and an original context of 1 position or more"),
    }
}

/// Reads Llama 4's temperature from `config.json`; `None` if it is switched off.
fn of_llama4(file: &Config) -> Result<Option<QueryTemperature>> {
    // Official files state 4: transformers takes any number but 0 as true.
    let is_on = match file.get(SWITCH) {
        None => true,
        Some(Value::Bool(is_on)) => *is_on,
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(other) => return Err(file.bad_key(SWITCH, other, "true, false or a number")),
    };
    if !is_on {
        return Ok(None);
    }
    let (floor, scale) = (file.require_usize("floor_scale")?, file.require_f32("attn_scale")?);
    match (floor, scale.is_finite()) {
        (0, _) => Err(file.bad_key("floor_scale", 0, "1 or more positions")),
        (_, false) => Err(file.bad_key("attn_scale", scale, "a finite number")),
        _ => Ok(Some(QueryTemperature { floor, scale, ..QueryTemperature::LLAMA4 })),
    }
}
