//! RoPE settings in a `config.json`.

use serde_json::Value;

use crate::error::Result;
use crate::model::decoder::{Family, SlidingDefaults, SlidingRope, yarn};
use crate::model::json::Config;
use crate::ops::rope::{Rope, RopeScaling};

/// Names in `layer_types` and `rope_parameters` for layers with full attention and with a sliding window.
pub(super) const FULL: &str = "full_attention";
pub(super) const SLIDING: &str = "sliding_attention";
pub(super) const CHUNKED: &str = "chunked_attention";

/// Reads RoPE for one kind of layers. transformers 5.x has `rope_parameters`, by kind or for all layers. 4.x has
/// `theta_key` and, for layers with full attention, `rope_scaling`. As in transformers, a non-empty `rope_scaling`
/// replaces `rope_parameters`, including its base. But if layers of several kinds have bases of their own,
/// `rope_scaling` only adds to `rope_parameters`.
pub(super) fn rope<'f>(
    file: &Config<'f>,
    family: &Family,
    kind: &str,
    (theta_key, default): (&str, f32),
    head_dim: usize,
) -> Result<Rope> {
    let of_kind = |all: Config<'f>| -> Result<Option<Config<'f>>> {
        Ok(all.object(kind)?.or(Some(all).filter(|_| kind == FULL)))
    };
    let new = file.object("rope_parameters")?.map_or(Ok(None), of_kind)?;
    let old = match file.object("rope_scaling")?.filter(|old| !old.is_empty()) {
        Some(old) if kind == FULL => of_kind(old)?,
        _ => None,
    };
    let is_shared = |sliding: &SlidingDefaults| matches!(sliding.rope, SlidingRope::Shared);
    let has_kinds = family.sliding.as_ref().is_some_and(|sliding| !is_shared(sliding));
    let new = new.filter(|_| old.is_none() || has_kinds);
    let places: Vec<Config> = old.into_iter().chain(new).collect();
    let stated = |key: &str| places.iter().find(|place| place.get(key).is_some());
    let theta = match stated("rope_theta") {
        Some(place) => place.optional_f32("rope_theta")?,
        None => file.optional_f32(theta_key)?,
    };
    let proportional =
        stated("rope_type").filter(|place| place.get("rope_type") == Some(&"proportional".into()));
    if let Some(place) = proportional.filter(|_| family.has_layer_variants) {
        let scaling = proportional_scaling(place, head_dim)?;
        let theta = theta.unwrap_or(default);
        return Ok(Rope {
            theta,
            width: head_dim,
            pairing: family.pairing,
            scaling,
            rounding: family.rope.rounding,
        });
    }
    let width = width(file, stated(PARTIAL), family, head_dim)?;
    let scaling = match places.first() {
        Some(parameters) => scaling(file, parameters, family)?,
        None => RopeScaling::None,
    };
    let theta = theta.unwrap_or(default);
    let theta = match places.first().map(|place| alpha(place, family)).transpose()?.flatten() {
        Some(alpha) => stretched(theta, alpha, width),
        None => theta,
    };
    let pairing = family.pairing;
    Ok(Rope { theta, width, pairing, scaling, rounding: family.rope.rounding })
}

/// Reads the factor `alpha` that stretches the base, if there is one.
fn alpha(parameters: &Config, family: &Family) -> Result<Option<f32>> {
    const KEY: &str = "alpha";
    let kind = if parameters.get("rope_type").is_some() { "rope_type" } else { "type" };
    if !family.rope.may_have_alpha || parameters.optional_str(kind)? != Some("dynamic") {
        return Ok(None);
    }
    parameters.optional_positive(KEY)
}

/// Returns the base times `alpha^(D / (D - 2))` for heads of D values.
fn stretched(theta: f32, alpha: f32, width: usize) -> f32 {
    let width = width as f64;
    (f64::from(theta) * f64::from(alpha).powf(width / (width - 2.0))) as f32
}

/// Key of the part of a head that rotates.
const PARTIAL: &str = "partial_rotary_factor";

/// Key of the number of values of a head that rotate, in old files.
const WIDTH: &str = "rotary_dim";

/// Reads the number of values of a head that rotate.
fn width(file: &Config, stated: Option<&Config>, family: &Family, head_dim: usize) -> Result<usize> {
    const KEY: &str = PARTIAL;
    let place = stated.unwrap_or(file);
    let part =
        place.optional_f32(if stated.is_some() { KEY } else { family.rope.old_keys[1] })?.unwrap_or(1.0);
    if let Some(width) = file.optional_usize(WIDTH)?.filter(|_| stated.is_none()) {
        let is_supported = width == head_dim || family.rope.may_be_partial && (1..=head_dim).contains(&width);
        let expected = format!("{head_dim}, the head size, or less if the architecture rotates a part");
        return if is_supported { Ok(width) } else { Err(file.bad_key(WIDTH, width, expected)) };
    }
    if part != 1.0 && !family.rope.may_be_partial {
        return Err(place.bad_key(KEY, part, "1 (partial rotation is not supported)"));
    }
    if !(part > 0.0 && part <= 1.0) {
        return Err(place.bad_key(KEY, part, "a number above 0 and up to 1"));
    }
    Ok((head_dim as f32 * part) as usize)
}

/// Reads the RoPE scaling.
fn scaling(file: &Config, parameters: &Config, family: &Family) -> Result<RopeScaling> {
    let kind = if parameters.get("rope_type").is_some() { "rope_type" } else { "type" };
    match parameters.optional_str(kind)? {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear(parameters.require_f32("factor")?)),
        Some("llama3") => llama3(parameters),
        Some("longrope" | "su" | "yarn") if family.rope.may_be_long => longrope(file, parameters),
        Some("yarn") => Ok(RopeScaling::Yarn(yarn::from_json(file, parameters)?)),
        Some("dynamic") if alpha(parameters, family)?.is_some() => Ok(RopeScaling::None),
        // Scales only sequences that are longer than the model's context, and these are refused.
        Some("dynamic") if !family.rope.may_be_long => {
            parameters.require_f32("factor").map(|_| RopeScaling::None)
        }
        Some(found) => {
            let expected = "\"default\", \"linear\", \"llama3\", \"yarn\" or \"dynamic\" (other RoPE scaling is not \
                            supported)";
            Err(parameters.bad_key(kind, found, expected))
        }
    }
}

/// Reads RoPE that rotates only the first pairs of a head, with the same frequencies as if the whole head rotated.
fn proportional_scaling(parameters: &Config, head_dim: usize) -> Result<RopeScaling> {
    parameters.only("factor", &[1.0.into(), 1.into()], "1 (scaled proportional RoPE is not supported)")?;
    let part = parameters.optional_f32(PARTIAL)?.unwrap_or(1.0);
    if !(part > 0.0 && part <= 1.0) {
        return Err(parameters.bad_key(PARTIAL, part, "a number above 0 and up to 1"));
    }
    let rotating = (f64::from(part) * head_dim as f64 / 2.0) as usize;
    let factor = |pair: usize| if pair < rotating { 1.0 } else { f32::INFINITY };
    Ok(RopeScaling::Factors((0..head_dim / 2).map(factor).collect()))
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

/// Reads LongRoPE, which old files of Phi-3 call "su" or "yarn". If the file does not state the magnitude, it is
/// computed from the ratio of the extended context to the original one.
fn longrope(file: &Config, parameters: &Config) -> Result<RopeScaling> {
    const CONTEXT: &str = "original_max_position_embeddings";
    let factors = |key: &str| {
        let all = parameters.get(key).and_then(Value::as_array);
        let numbers = all.and_then(|all| all.iter().map(|x| Some(x.as_f64()? as f32)).collect());
        numbers.ok_or_else(|| parameters.bad_key(key, "missing", "a number for each pair of a head"))
    };
    let original = match parameters.optional_usize(CONTEXT)? {
        Some(original) => original,
        None => file.require_usize(CONTEXT)?,
    };
    if original < 2 {
        return Err(parameters.bad_key(CONTEXT, original, "2 or more positions"));
    }
    let stated = parameters.optional_f32("factor")?.map(f64::from);
    let extended = file.require_usize("max_position_embeddings")? as f64 / original as f64;
    let factor = stated.unwrap_or(extended);
    let stretch = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() };
    let magnitude = parameters.optional_f32("attention_factor")?.unwrap_or(stretch as f32);
    let (short, long) = (factors("short_factor")?, factors("long_factor")?);
    Ok(RopeScaling::Long { short, long, original_context: original, magnitude })
}
