//! Properties of a dump's engine that its values show but its manifest does not state.

use std::collections::BTreeSet;

use crate::checkpoint::{Point, Site, ValueKind};
use crate::dump::{Dump, Producer};
use crate::exact::{Float, Profile};
use crate::weight::DType;

/// A property of a dump's engine that the dump's values show and its manifest does not state.
pub(super) struct UnstatedProperties {
    /// Producer, with the property added.
    pub(super) producer: Producer,
    /// Rounding profile, if no type can state the property.
    pub(super) rounding: Option<Profile>,
    /// Note for the report on what the values show.
    pub(super) note: String,
}

/// Returns the producer with its KV cache type, if the dump does not state it and stores the cache in a smaller
/// type than other values. Later values show whether the engine computed with rounded keys and values, or only the
/// dump stores them rounded.
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

/// Maximum number of arrays that are examined, in data-flow order, and of values per array.
const ARRAYS: usize = 32;
const VALUES: usize = 4096;

/// Minimum number of nonzero values that are enough to recognise a type. By chance, one in 65536 f32 numbers is
/// also a bf16 number.
const TELLING: usize = 32;

/// Returns the producer with its computed type, if the dump does not state it and most arrays have values of one
/// smaller type, regardless of their stored type. If the residual stream has other values, only products are in that
/// type.
pub(super) fn dtype_of_values(dump: &Dump) -> Option<UnstatedProperties> {
    let mut producer = dump.manifest.producer.clone();
    let said = |key: &str| producer.setting(key).filter(|setting| *setting != "auto");
    let is_of_f32 = producer.dtype() == Some(DType::F32);
    let says_all = producer.stated_dtype().is_some() && !is_of_f32;
    if says_all || said("numerics").or(said("weights")).is_some() || producer.rounding.is_some() {
        return None;
    }
    let mut sites: Vec<Site> = dump.sites().filter(|site| site.point.kind() == ValueKind::Real).collect();
    // Embeddings have the type of their table, independent of the computed type.
    sites.retain(|site| site.point != Point::Embed);
    sites.sort_by_key(|site| site.flow_order());
    // A stated f32 can be about the weights. Then only the stored types show another computed type.
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

/// Returns the producer with the type of its values, if these contradict the smaller type stated in
/// `settings.dtype` or `producer.rounding`. They contradict it if no array that such an engine would round has
/// values of that type.
pub(super) fn contradiction_of_dtype(dump: &Dump) -> Option<UnstatedProperties> {
    let mut producer = dump.manifest.producer.clone();
    let fields = producer.rounding.as_ref();
    let profile = fields.and_then(|fields| Profile::default().stated(fields).ok()).unwrap_or_default();
    let by_profile =
        [DType::BF16, DType::F16].into_iter().find(|&dtype| Float::of(dtype) == Some(profile.results));
    // llama.cpp and similar engines do not compute in the type of `settings.dtype`.
    let follows_dtype = producer.setting("numerics").is_none_or(|numerics| numerics == "transformers");
    let is_short_float = |dtype: &DType| follows_dtype && matches!(dtype, DType::BF16 | DType::F16);
    let by_dtype = producer.dtype().filter(is_short_float);
    let stated = by_profile.or(by_dtype)?;
    // An engine with an f32 residual stream only rounds products.
    let is_short = |point: Point| point.is_of_products() || !profile.wide_stream && is_of_results(point);
    let mut sites: Vec<Site> = dump.sites().filter(|site| is_short(site.point)).collect();
    sites.sort_by_key(|site| site.flow_order());
    let types: Vec<DType> =
        sites.iter().take(ARRAYS).filter_map(|&site| type_of_values(dump, site)).collect();
    // Most bf16 numbers are also f16 numbers, except very small and very large ones.
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

/// Returns true for taps whose values an engine of a smaller type rounds to that type. Many engines compute norms,
/// scores and probabilities in `f32`.
fn is_of_results(point: Point) -> bool {
    point.is_of_products() || is_of_stream(point)
}

/// Returns true for taps of the residual stream and its norms.
fn is_of_stream(point: Point) -> bool {
    matches!(point, Point::AttnNorm | Point::AttnResidual | Point::FfnNorm | Point::BlockOut)
}

/// Returns the smallest type that represents all examined values of an array; `None` if there are too few.
/// Errors are reported by the comparison.
fn type_of_values(dump: &Dump, site: Site) -> Option<DType> {
    let told = dump.row(site)?.rounded_to()?;
    // Many engines store bf16 values as f16 or f32, since numpy has no bf16.
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
            let float = Float::of(dtype).expect("every type in the list is a float");
            values.iter().all(|&value| float.round(value) == value)
        });
        telling += values.iter().filter(|value| **value != 0.0).count();
    }
    (telling >= TELLING).then(|| short.first().copied().unwrap_or(told))
}

/// Returns true if a dump has no taps of any layer.
pub(super) fn holds_results_alone(dump: &Dump) -> bool {
    dump.sites().all(|site| site.layer.is_none())
}
