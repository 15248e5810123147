//! Properties of a dump's engine that its values show but its manifest does not state.

use std::collections::BTreeSet;

use crate::checkpoint::{Point, Site, ValueKind};
use crate::dump::{Dump, Producer};
use crate::exact::{Float, Profile};
use crate::weight::DType;

/// The properties of an engine that a dump's values show.
pub(super) struct Shown {
    /// The producer, with it.
    pub(super) producer: Producer,
    /// Rounding profile, if no type states it.
    pub(super) rounding: Option<Profile>,
    /// Note for the report.
    pub(super) note: String,
}

/// The producer with the type of its cache: the dump does not say it, but stores the cache in a shorter type than
/// the rest. Whether the engine or only the dump did so, the values tell.
pub(super) fn cache_of_rows(dump: &Dump) -> Option<Shown> {
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
    Some(Shown { producer, rounding: None, note })
}

/// Number of arrays and of values per array that are examined, from the tokens on.
const ARRAYS: usize = 32;
const VALUES: usize = 4096;

/// Fewer values than these that are not zero do not tell their type: one in 65536 numbers of f32 is one of bf16.
const TELLING: usize = 32;

/// The producer with what it computes in: the dump does not say it, but most of its arrays hold numbers of one short type,
/// whatever they are stored in. Where those of the residual stream do not, products alone are in that type.
pub(super) fn dtype_of_values(dump: &Dump) -> Option<Shown> {
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
        return Some(Shown { producer, rounding: Profile::named(&format!("{name}-autocast")), note });
    }
    let is_most = |dtype: DType| 2 * types.iter().filter(|(_, of)| *of == dtype).count() > types.len();
    let name = short().find(|&dtype| !is_of_f32 && is_most(dtype))?.name();
    producer.settings.insert("dtype".to_owned(), name.into());
    let note = format!(
        "settings.dtype is not stated; the values show an engine that computes in {name}: most taps have \
            values of that type"
    );
    Some(Shown { producer, rounding: None, note })
}

/// The producer as an engine that computes in `f32`, if its values contradict the short type that it states: not one array whose
/// values have that type where an engine of it computes holds numbers of it.
pub(super) fn contradiction_of_dtype(dump: &Dump) -> Option<Shown> {
    let mut producer = dump.manifest.producer.clone();
    let stated = producer.dtype().filter(|dtype| matches!(dtype, DType::BF16 | DType::F16))?;
    if producer.rounding.is_some() || producer.setting("numerics").is_some() {
        return None;
    }
    let mut sites: Vec<Site> = dump.sites().filter(|site| is_of_results(site.point)).collect();
    sites.sort_by_key(|site| site.flow_order());
    let types: Vec<DType> =
        sites.iter().take(ARRAYS).filter_map(|&site| type_of_values(dump, site)).collect();
    if types.is_empty() || types.iter().any(|dtype| !matches!(dtype, DType::F32 | DType::F64)) {
        return None;
    }
    producer.settings.insert("dtype".to_owned(), DType::F32.name().into());
    let note = format!(
        "settings.dtype is {stated}, but no array has {stated} values; the values show an engine that \
            computes in f32",
        stated = stated.name()
    );
    Some(Shown { producer, rounding: None, note })
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
    if !matches!(told, DType::F32 | DType::F64) {
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
