//! Coverage of a dump of module outputs: recorded arrays that cannot be judged, and layers without a module that the
//! dump records elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use crate::checkpoint::{ModulePath, Point, Site};
use crate::dump::Dump;
use crate::error::{Error, Result};
use crate::evaluator::message::ModuleFacts;
use crate::exact::Float;
use crate::verdict::MissingSite;
use crate::weight::DType;

/// Returns the reason why a recorded array was not evaluated.
pub(super) fn not_evaluated(point: Point) -> &'static str {
    match point {
        Point::Module(_) => "the evaluator sent no values for this output",
        _ => {
            "torch has no module with this value; record outputs of modules (xcheck.hook(model, out, modules=True))"
        }
    }
}

/// Returns the sites that a dump lacks although it records the same module in other layers of the pass.
pub(super) fn absent(
    modules: &[ModuleFacts],
    recorded: &[Site],
    is_selected: impl Fn(Site) -> bool,
) -> Result<Vec<MissingSite>> {
    let mut layers: BTreeMap<Point, BTreeSet<usize>> = BTreeMap::new();
    for module in modules {
        let (path, layer) = ModulePath::in_model(&module.path, 0).map_err(Error::Usage)?;
        // Which experts run depends on the tokens.
        let is_numbered =
            path.in_layer().is_some_and(|parts| parts.iter().any(|part| part.parse::<u32>().is_ok()));
        if let Some(layer) = layer.filter(|_| !is_numbered) {
            layers.entry(Point::Module(path)).or_default().insert(layer);
        }
    }
    let known: BTreeSet<_> = recorded.iter().map(|site| (site.point, site.layer, site.pass)).collect();
    let places: BTreeSet<_> = recorded.iter().map(|site| (site.point, site.pass)).collect();
    let expected = places.into_iter().flat_map(|(point, pass)| {
        let layers = layers.get(&point).into_iter().flatten();
        layers.map(move |&layer| Site { point, layer: Some(layer), pass })
    });
    let is_absent = |site: &Site| !known.contains(&(site.point, site.layer, site.pass)) && is_selected(*site);
    let missing = expected.filter(is_absent).map(|site| MissingSite {
        site,
        why: format!("{site}: not recorded, although other layers of the dump have it"),
    });
    Ok(missing.collect())
}

/// Returns the reason why the stated type cannot be right: most recorded values are not numbers of that type.
pub(super) fn contradiction(dump: &Dump, computed: DType, recorded: &[Site]) -> Result<Option<String>> {
    let Some(float) = Float::of(computed).filter(|float| *float != Float::F32) else { return Ok(None) };
    let mut others = 0;
    for &site in recorded {
        let Some(values) = dump.view(site)? else { continue };
        others += usize::from(
            values.to_vec().iter().any(|&value| value.is_finite() && float.round(value) != value),
        );
    }
    Ok((2 * others > recorded.len()).then(|| {
        format!(
            "the dump states {}, but {others} of {} arrays have other numbers; state the type that the engine computes \
             in (producer.settings.dtype)",
            computed.name(),
            recorded.len()
        )
    }))
}
