//! Scales of quantised KV caches, which files store with attention or with the projections of keys and values.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

use crate::error::Result;
use crate::format::TensorFile;
use crate::model::dequantisation::module_tensors::{self, FLOATS, ModuleTensors};
use crate::model::json::Config;
use crate::weight::{Matrix, StoredTensor};

/// Kind of a KV cache of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheKind {
    /// 8-bit floats with stored scales.
    StoredFloats,
    /// Integers, or floats whose scales are computed from the values. Stored scales are ignored.
    Other,
}

/// Returns the kind of KV cache that `kv_cache_scheme` states; `None` if the key is absent.
///
/// # Errors
/// If the cache has other than 8 bits, or floats with zero points or other scales.
pub(super) fn cache_kind(config: &Config) -> Result<Option<CacheKind>> {
    let Some(cache) = config.object("kv_cache_scheme")? else { return Ok(None) };
    cache.only("num_bits", &[8.into()], "8 (other quantised KV caches are not supported)")?;
    let is_static = !cache.optional_bool("dynamic")?.unwrap_or(false);
    if !is_static || cache.optional_str("type")? != Some("float") {
        return Ok(Some(CacheKind::Other));
    }
    cache.only("symmetric", &[true.into(), Value::Null], "true (8-bit floats have no zero point)")?;
    let strategies = ["tensor".into(), "attn_head".into(), Value::Null];
    let expected = "\"tensor\" or \"attn_head\" (other scales of KV caches are not supported)";
    cache.only("strategy", &strategies, expected)?;
    cache.only("group_size", &[Value::Null], "absent")?;
    Ok(Some(CacheKind::StoredFloats))
}

/// A number that a file stores for the KV cache of a layer.
struct CacheNumber<'n> {
    /// Name of the attention module, with its dot.
    attention: &'n str,
    /// Projections whose results the number scales; empty for a zero point.
    projections: &'static [&'static str],
}

impl<'n> CacheNumber<'n> {
    /// Parses the name of a tensor; `None` for another tensor.
    fn of(name: &'n str) -> Option<Self> {
        // `self_attn.attn.` in files of vLLM, `mixer.` in Nemotron-H.
        let (_, after) = name.rsplit_once("attn.").or_else(|| name.rsplit_once("mixer."))?;
        let attention = &name[..name.len() - after.len()];
        let attention =
            attention.strip_suffix("attn.").filter(|whole| whole.ends_with("attn.")).unwrap_or(attention);
        let modules = ["k_proj.", "v_proj.", "qkv_proj."];
        let of_projection = modules.into_iter().find_map(|module| after.strip_prefix(module));
        let projections: &[&str] = match of_projection.unwrap_or(after) {
            "k_scale" => &["k_proj"],
            "v_scale" => &["v_proj"],
            "kv_scale" => &["k_proj", "v_proj"],
            "k_zero_point" | "v_zero_point" => &[],
            _ => return None,
        };
        Some(Self { attention, projections })
    }
}

/// Returns true if a tensor contains a scale or a zero point of a KV cache.
pub(super) fn is_one(name: &str) -> bool {
    CacheNumber::of(name).is_some()
}

/// Returns the scales of an FP8 cache, named after the projection whose results they scale (`k_proj` or `v_proj`), even
/// if the file fuses the projections. As in vLLM, a missing scale of values defaults to the scale of keys.
///
/// # Errors
/// If a scale is not a positive number, two tensors have different scales for one cache, or a zero point is not 0.
pub(super) fn of_modules(file: &TensorFile) -> Result<Vec<(String, StoredTensor)>> {
    let weights = file.iter().filter(|(name, _)| !name.contains("scale"));
    let modules: HashSet<&str> =
        weights.filter_map(|(name, _)| name.rsplit_once('.')).map(|(module, _)| module).collect();
    let mut layers = BTreeMap::<&str, BTreeMap<&str, (&str, Vec<f32>)>>::new();
    for (name, tensor) in file.iter() {
        let Some(CacheNumber { attention, projections }) = CacheNumber::of(name) else { continue };
        let numbers = numbers(file, name, projections.is_empty())?;
        let layer = layers.entry(attention).or_default();
        for projection in projections {
            if let Some((other, known)) = layer.insert(projection, (name, numbers.clone()))
                && known != numbers
            {
                let problem =
                    format!("'{other}' has other scales for the same cache; remove one of the two tensors");
                return Err(module_tensors::unpackable(file, name, tensor.dtype, problem));
            }
        }
    }
    let mut scales = Vec::new();
    for (attention, mut layer) in layers {
        // If values have no projection of their own, those of keys are their values, too.
        let is_there = |module: &str| modules.contains(format!("{attention}{module}").as_str());
        if !is_there("k_proj") && !is_there("qkv_proj") {
            continue;
        }
        if let (Some(keys), None) = (layer.get("k_proj"), layer.get("v_proj")) {
            layer.insert("v_proj", keys.clone());
        }
        scales.extend(layer.into_iter().map(|(projection, (_, numbers))| {
            let name = Matrix::tensor_of_cache(&format!("{attention}{projection}"));
            (name, StoredTensor::vector(&numbers))
        }));
    }
    Ok(scales)
}

/// Returns the scales or the zero points of a tensor.
fn numbers(file: &TensorFile, name: &str, is_zero_point: bool) -> Result<Vec<f32>> {
    let (module, main) = name.rsplit_once('.').unwrap_or(("", name));
    let tensors = ModuleTensors { file, module, joint: '.', main: "" };
    let stored = tensors.require(main, FLOATS)?;
    let numbers = tensors.finite(main, stored)?;
    match is_zero_point {
        true => tensors.checked(main, numbers, "0 in a cache of floats", |number| number == 0.0),
        false => tensors.checked(main, numbers, "more than 0", |number| number > 0.0),
    }
}
