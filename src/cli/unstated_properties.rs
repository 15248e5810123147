//! Properties of a dump's engine that its values show but its manifest does not state.

use std::collections::BTreeSet;

use crate::checkpoint::{Point, Site, ValueKind};
use crate::dump::{Dump, Producer};
use crate::exact::{Float, Profile};
use crate::weight::DType;

/// The properties of an engine that a dump's values show.
pub(super) struct UnstatedProperties {
    /// The producer, with it.
    pub(super) producer: Producer,
    /// Rounding profile, if no type states it.
    pub(super) rounding: Option<Profile>,
    /// Note for the report.
    pub(super) note: String,
}

/// The producer with the type of its cache: the dump does not say it, but stores the cache in a shorter type than
/// the rest. Whether the engine or only the dump did so, the values tell.
pub(super) fn cache_of_rows(dump: &Dump) -> Option<UnstatedProperties> {
    let of = |tap: &str| -> BTreeSet<&str> {
        let rows = dump.manifest.tensors.iter().filter(|row| row.tap == tap);
        rows.filter_map(|row| Some(row.dtype().ok()?.name())).collect()
    };
    let (cache, rest) = (of("k_cache"), of("k_rope"));
    let name = cache.iter().next().copied().filter(|_| cache.len() == 1 && !rest.is_empty())?;
    let mut producer = dump.manifest.producer.clone();
    if producer.setting("kv_cache").is_some() || !["f16", "bf16"].contains(&name) || rest.contains(name) {
        return None;
    }
    producer.settings.insert("kv_cache".to_owned(), name.into());
    let note =
        format!("settings.kv_cache is not stated; the values show an engine with a {name} cache, as stored");
    Some(UnstatedProperties { producer, rounding: None, note })
}

/// Number of arrays and of values per array that are examined, from the tokens on.
const ARRAYS: usize = 32;
const VALUES: usize = 4096;

/// Fewer values than these that are not zero do not tell their type: one in 65536 numbers of f32 is one of bf16.
const TELLING: usize = 32;

/// The producer with what it computes in: the dump does not say it, but most of its arrays hold numbers of one short type,
/// whatever they are stored in. Where those of the residual stream do not, products alone are in that type.
pub(super) fn dtype_of_values(dump: &Dump) -> Option<UnstatedProperties> {
    let mut producer = dump.manifest.producer.clone();
    let said = |key: &str| producer.setting(key).filter(|setting| *setting != "auto");
    let is_of_f32 = producer.dtype() == Some(DType::F32);
    let says_all = producer.stated_dtype().is_some() && !is_of_f32;
    if says_all || said("numerics").or(said("weights")).is_some() || producer.rounding.is_some() {
        return None;
    }
    let mut sites: Vec<Site> = dump.sites().filter(|site| site.point.kind() == ValueKind::Real).collect();
    // Embeddings are of their table's type, whatever is computed in.
    sites.retain(|site| site.point != Point::Embed);
    sites.sort_by_key(|site| site.flow_order());
    // What says f32 says it of its weights: that it computes otherwise it shows only by what it stores.
    let type_of = |site: Site| match is_of_f32 {
        true => dump.row(site)?.rounded_to(),
        false => type_of_values(dump, site),
    };
    let types = sites.iter().take(ARRAYS).filter_map(|&site| Some((site.point, type_of(site)?)));
    let types: Vec<(Point, DType)> = types.collect();
    let are = |is_it: fn(Point) -> bool, dtype: DType| {
        let mut of_points = types.iter().filter(|(point, _)| is_it(*point)).peekable();
        of_points.peek().is_some() && of_points.all(|(_, of)| *of == dtype)
    };
    let short = || [DType::BF16, DType::F16].into_iter();
    if let Some(dtype) =
        short().find(|&dtype| are(Point::is_of_products, dtype) && are(is_of_stream, DType::F32))
    {
        let name = dtype.name();
        producer.settings.insert("dtype".to_owned(), DType::F32.name().into());
        let note = format!(
            "the values show an engine that computes products in {name} and the rest in f32, like torch's \
                autocast (rounding {name}-autocast)"
        );
        return Some(UnstatedProperties {
            producer,
            rounding: Profile::named(&format!("{name}-autocast")),
            note,
        });
    }
    let is_most = |dtype: DType| 2 * types.iter().filter(|(_, of)| *of == dtype).count() > types.len();
    let name = short().find(|&dtype| !is_of_f32 && is_most(dtype))?.name();
    producer.settings.insert("dtype".to_owned(), name.into());
    let note = format!(
        "settings.dtype is not stated; the values show an engine that computes in {name}: most taps have \
            values of that type"
    );
    Some(UnstatedProperties { producer, rounding: None, note })
}

/// The producer as an engine that computes in the type of its values, if these contradict the short type that it states, in
/// `settings.dtype` or in `producer.rounding`: no array that an engine of this type would round to it has values of the type.
pub(super) fn contradiction_of_dtype(dump: &Dump) -> Option<UnstatedProperties> {
    let mut producer = dump.manifest.producer.clone();
    let fields = producer.rounding.as_ref();
    let profile = fields.and_then(|fields| Profile::default().stated(fields).ok()).unwrap_or_default();
    let by_profile =
        [DType::BF16, DType::F16].into_iter().find(|&dtype| Float::of(dtype) == Some(profile.results));
    // llama.cpp and the like do not compute in the type of `settings.dtype`.
    let follows_dtype = producer.setting("numerics").is_none_or(|numerics| numerics == "transformers");
    let is_short_float = |dtype: &DType| follows_dtype && matches!(dtype, DType::BF16 | DType::F16);
    let by_dtype = producer.dtype().filter(is_short_float);
    let stated = by_profile.or(by_dtype)?;
    // An engine that keeps its residual stream in f32 rounds products alone.
    let is_short = |point: Point| point.is_of_products() || !profile.wide_stream && is_of_results(point);
    let mut sites: Vec<Site> = dump.sites().filter(|site| is_short(site.point)).collect();
    sites.sort_by_key(|site| site.flow_order());
    let types: Vec<DType> =
        sites.iter().take(ARRAYS).filter_map(|&site| type_of_values(dump, site)).collect();
    // Numbers of bf16 are numbers of f16, too, unless they are very small or large.
    let fits = |&dtype: &DType| dtype == stated || dtype == DType::BF16;
    if types.is_empty() || types.iter().any(fits) {
        return None;
    }
    let shown = if types.iter().all(|&dtype| dtype == DType::F16) { DType::F16 } else { DType::F32 };
    producer.settings.insert("dtype".to_owned(), shown.name().into());
    let profile = if shown == DType::F16 { "f16-fused" } else { "f32" };
    let (stated, shown) = (stated.name(), shown.name());
    let claim = match by_profile {
        Some(_) => format!("producer.rounding states results in {stated}"),
        None => format!("settings.dtype is {stated}"),
    };
    let note = format!(
        "{claim}, but no array has {stated} values; the values show an engine that computes in {shown}"
    );
    Some(UnstatedProperties { producer, rounding: by_profile.and(Profile::named(profile)), note })
}

/// Returns true for results that an engine of a short type rounds to it. Many compute norms, scores and probabilities in `f32`.
fn is_of_results(point: Point) -> bool {
    point.is_of_products() || is_of_stream(point) || matches!(point, Point::Logits | Point::LastLogits)
}

/// Returns true for taps of the residual stream and its norms.
fn is_of_stream(point: Point) -> bool {
    matches!(point, Point::AttnNorm | Point::AttnResidual | Point::FfnNorm | Point::BlockOut)
}

/// Returns the shortest type that fits all values of an array, or its first ones; `None` if there are too
/// few. Errors are reported by the comparison.
fn type_of_values(dump: &Dump, site: Site) -> Option<DType> {
    let told = dump.row(site)?.rounded_to()?;
    // Many store bf16 as f16 or f32, since numpy has no bf16.
    if !matches!(told, DType::F16 | DType::F32 | DType::F64) {
        return Some(told);
    }
    let view = dump.view(site).ok()??;
    let mut values = vec![0.0; view.width().min(VALUES)];
    let rows = view.rows().min(VALUES.div_ceil(values.len().max(1)));
    let (mut short, mut telling) = (vec![DType::BF16, DType::F16], 0);
    for row in 0..rows {
        view.read(row, 0..values.len(), &mut values);
        short.retain(|&dtype| {
            let float = Float::of(dtype).expect("it is one");
            values.iter().all(|&value| float.round(value) == value)
        });
        telling += values.iter().filter(|value| **value != 0.0).count();
    }
    (telling >= TELLING).then(|| short.first().copied().unwrap_or(told))
}

/// True if a dump holds nothing of any layer.
pub(super) fn holds_results_alone(dump: &Dump) -> bool {
    dump.sites().all(|site| site.layer.is_none())
}
