//! Coverage of a dump of module outputs: recorded arrays that cannot be judged, and layers without a module that
//! the dump records in other layers.

use std::collections::{BTreeMap, BTreeSet};

use crate::checkpoint::{ModulePath, Point, Site};
use crate::dump::{DecodeMode, Dump, Pass};
use crate::error::{Error, Result};
use crate::evaluator::message::ModuleFacts;
use crate::exact::Float;
use crate::verdict::MissingSite;
use crate::weight::DType;

/// The reason why a recorded array has no result.
pub(super) const NOT_EVALUATED: &str =
    "the evaluator sent no values for it, which is a fault of the evaluator; please report it";

/// Returns the sites that a dump lacks although it records the same module or tap in similar layers of the pass.
pub(super) fn absent(
    modules: &[ModuleFacts],
    recorded: &[Site],
    is_selected: impl Fn(Site) -> bool,
) -> Result<Vec<MissingSite>> {
    let layers = Layers::new(modules)?;
    let known: BTreeSet<_> = recorded.iter().map(|site| (site.point, site.layer, site.pass)).collect();
    let expected: BTreeSet<_> = recorded
        .iter()
        .flat_map(|site| layers.with(*site).map(|layer| (site.point, Some(layer), site.pass)))
        .collect();
    let absent = expected.difference(&known).map(|&(point, layer, pass)| Site { point, layer, pass });
    let missing = absent.filter(|site| is_selected(*site)).map(|site| MissingSite {
        site,
        why: format!("{site}: not recorded, although other layers are; record it in every layer, or in none"),
    });
    Ok(missing.collect())
}

/// The modules of each layer.
struct Layers(BTreeMap<usize, BTreeSet<Point>>);

impl Layers {
    fn new(modules: &[ModuleFacts]) -> Result<Self> {
        let mut layers: BTreeMap<usize, BTreeSet<Point>> = BTreeMap::new();
        for module in modules {
            let (path, layer) = ModulePath::in_model(&module.path, 0).map_err(Error::Usage)?;
            // Which experts run depends on the tokens.
            let is_numbered =
                path.in_layer().is_some_and(|parts| parts.iter().any(|part| part.parse::<u32>().is_ok()));
            if let Some(layer) = layer.filter(|_| !is_numbered) {
                layers.entry(layer).or_default().insert(Point::Module(path));
            }
        }
        Ok(Self(layers))
    }

    /// Returns the layers in which a module was recorded. For a tap, returns the layers with the same modules as its
    /// layer.
    fn with(&self, site: Site) -> impl Iterator<Item = usize> {
        let own = site.layer.and_then(|layer| self.0.get(&layer));
        let has = move |modules: &BTreeSet<Point>| match site.point {
            Point::Module(_) => site.layer.is_some() && modules.contains(&site.point),
            _ => own == Some(modules),
        };
        self.0.iter().filter(move |(_, modules)| has(modules)).map(|(&layer, _)| layer)
    }
}

/// Returns the reasons why a dump cannot pass, apart from its sites.
pub(super) fn gaps(dump: &Dump, computed: DType, recorded: &[Site]) -> Result<Vec<String>> {
    let manifest = &dump.manifest;
    let is_empty = |pass: &usize| !dump.sites().any(|site| site.pass == Some(*pass));
    let empty = (0..manifest.passes.len()).filter(is_empty);
    let mut gaps: Vec<String> = empty
        .map(|pass| {
            format!("pass {pass}: the dump records no value of this pass; record a module in every pass")
        })
        .collect();
    let (read, prompt) = (manifest.passes.last().map_or(0, Pass::end), manifest.input.tokens.len());
    if read < prompt {
        gaps.push(format!(
            "the passes read {read} tokens, but the prompt has {prompt}; record the remaining passes"
        ));
    }
    gaps.extend(contradiction(dump, computed, recorded)?);
    gaps.extend(other_choice(dump)?);
    Ok(gaps)
}

/// Returns the first read token that differs from the one preferred by the recorded logits before it.
fn other_choice(dump: &Dump) -> Result<Option<String>> {
    let manifest = &dump.manifest;
    if manifest.input.decode == DecodeMode::Forced {
        return Ok(None);
    }
    for (pass, read) in manifest.passes.iter().enumerate() {
        let chosen = read.end().checked_sub(manifest.input.tokens.len()).and_then(|at| {
            let listed = manifest.generated.as_ref().and_then(|tokens| tokens.get(at).copied());
            manifest.passes.get(pass + 1).and_then(|next| next.tokens.first().copied()).or(listed)
        });
        let is_logits = |site: &Site| {
            site.pass == Some(pass)
                && site.layer.is_none()
                && matches!(site.point.name(), "logits" | "last_logits")
        };
        let Some((chosen, site)) = chosen.zip(dump.sites().find(is_logits)) else { continue };
        let Some(values) = dump.view(site)?.map(|view| view.to_vec()) else { continue };
        let width = dump
            .row(site)
            .and_then(|row| row.shape.last().copied())
            .unwrap_or(0)
            .clamp(1, values.len().max(1));
        let last = &values[values.len() - width.min(values.len())..];
        let best = last.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let logit = last.get(chosen as usize).copied();
        if logit.is_some_and(|logit| logit < best) {
            return Ok(Some(format!(
                "after pass {pass}, token {chosen} follows, but the recorded logits prefer another one; state \
                 \"decode\": \"forced\" if the tokens were given"
            )));
        }
    }
    Ok(None)
}

/// Returns the reason why the stated type cannot be right: most recorded values are not numbers of that type.
fn contradiction(dump: &Dump, computed: DType, recorded: &[Site]) -> Result<Option<String>> {
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
