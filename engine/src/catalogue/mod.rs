//! Catalogue of known mistakes of ports: the entries of all operations, and changes that users name (`--suppose`).

mod change_tap;
mod head_restriction;
mod pass_restriction;

use std::collections::BTreeSet;
use std::fmt;

pub use change_tap::{ChangeTap, Supposition};
pub use head_restriction::HeadRestriction;
pub use pass_restriction::PassRestriction;

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext};
use crate::checkpoint::{Point, Site};
use crate::tensor::Tensor;

/// Faults of each operation. A new operation adds one line.
const OPERATIONS: &[&[CatalogueEntry]] = &[
    crate::ops::embedding::faults::ENTRIES,
    crate::ops::norm::faults::ENTRIES,
    crate::ops::rope::faults::ENTRIES,
    crate::ops::attention::faults::ENTRIES,
    crate::ops::attention::faults::mask::ENTRIES,
    crate::ops::attention::faults::softmax_sum::ENTRIES,
    crate::ops::alibi::faults::ENTRIES,
    crate::ops::attention::faults::merge::ENTRIES,
    crate::ops::attention::faults::key_rotation::ENTRIES,
    crate::ops::cache::faults::ENTRIES,
    crate::ops::cache::faults::scale::ENTRIES,
    crate::ops::activation::faults::ENTRIES,
    crate::ops::experts::faults::ENTRIES,
    crate::ops::experts::faults::mixture::ENTRIES,
    crate::ops::shared_expert::faults::ENTRIES,
    crate::ops::row_factor::faults::ENTRIES,
    crate::ops::sparse_gate::faults::ENTRIES,
    crate::ops::altup::faults::ENTRIES,
    crate::ops::scaling::faults::ENTRIES,
    crate::ops::short_convolution::faults::ENTRIES,
    crate::ops::l2_norm::faults::ENTRIES,
    crate::ops::decay::faults::ENTRIES,
    crate::ops::delta_rule::faults::ENTRIES,
    crate::ops::activation::faults::gates::ENTRIES,
    crate::ops::gating::faults::ENTRIES,
    crate::ops::state_space::faults::ENTRIES,
    crate::ops::norm::faults::gate::ENTRIES,
    crate::ops::addition::faults::ENTRIES,
    crate::ops::addition::faults::low_rank::ENTRIES,
    crate::ops::addition::faults::stream::ENTRIES,
    crate::ops::logits::faults::ENTRIES,
    crate::ops::logits::faults::penalties::ENTRIES,
    crate::ops::log_probabilities::faults::ENTRIES,
    crate::ops::linear::faults::ENTRIES,
    crate::ops::linear::faults::fused_projections::ENTRIES,
    crate::ops::linear::faults::bias::ENTRIES,
    crate::ops::linear::faults::columns::ENTRIES,
    crate::ops::linear::faults::weight::ENTRIES,
    crate::ops::linear::faults::precision::ENTRIES,
    crate::ops::linear::faults::groups::ENTRIES,
    crate::ops::linear::faults::input_scales::ENTRIES,
    crate::ops::linear::faults::input_factors::ENTRIES,
    crate::ops::linear::faults::shards::ENTRIES,
    crate::ops::linear::faults::split_sums::ENTRIES,
    crate::ops::linear::faults::unwritten_rows::ENTRIES,
    crate::ops::linear::faults::corruption::ENTRIES,
    crate::ops::norm::faults::element::ENTRIES,
    crate::ops::embedding::faults::element::ENTRIES,
];

/// Returns all entries, in the order in which they are reported if several explain an operation: configuration first.
pub fn catalogue() -> impl Iterator<Item = &'static CatalogueEntry> {
    OPERATIONS.iter().copied().flatten()
}

/// A change with its value.
#[derive(Clone)]
pub struct OperationChange {
    /// Catalogue entry.
    pub entry: &'static CatalogueEntry,
    /// Value of the change.
    pub value: ChangeValue,
    /// Tap that it applies to; `None` for all.
    pub point: Option<Point>,
    /// Passes that it applies to; `None` for all.
    pub passes: Option<PassRestriction>,
    /// Heads that it applies to; `None` for all.
    pub heads: Option<HeadRestriction>,
}

impl OperationChange {
    /// Creates a change for every tap where it applies.
    pub fn new(entry: &'static CatalogueEntry, value: ChangeValue) -> Self {
        Self { entry, value, point: None, passes: None, heads: None }
    }

    /// Returns every change that applies at a site, with the values that are tried if none can be estimated.
    pub fn applicable(at: &SiteContext) -> Vec<Self> {
        let known = catalogue().filter(|entry| entry.at.contains(&at.site.point));
        let all = known.flat_map(|entry| entry.usual_at(at).into_iter().map(move |value| (entry, value)));
        let changes = all.map(|(entry, value)| Self::new(entry, value));
        changes.filter(|change| change.compute(at).is_some_and(|made| made != *at.value)).collect()
    }

    /// Returns changes with the less usual values that apply at a site.
    pub fn sweep(at: &SiteContext) -> Vec<Self> {
        let known = catalogue().filter(|entry| entry.at.contains(&at.site.point));
        let all = known.flat_map(|entry| (entry.sweep)(at).into_iter().map(move |value| (entry, value)));
        let changes = all.map(|(entry, value)| Self::new(entry, value));
        changes.filter(|change| change.compute(at).is_some_and(|made| made != *at.value)).collect()
    }

    /// Limits the change to a tap.
    pub fn at(self, point: Point) -> Self {
        Self { point: Some(point), ..self }
    }

    /// Limits the change to some passes; `None` for all.
    pub fn limited_to(self, passes: Option<PassRestriction>) -> Self {
        Self { passes, ..self }
    }

    /// Limits the change to some heads; `None` for all.
    pub fn in_heads(self, heads: Option<HeadRestriction>) -> Self {
        Self { heads, ..self }
    }

    /// Parses `KEY=VALUE`, or `KEY` for a change with one variant. `KEY@TAP=VALUE` applies at one tap,
    /// `KEY=VALUE@decode` in some passes, `KEY=VALUE@head-3` in one head.
    ///
    /// # Errors
    /// If the name is unknown, or the entry takes another kind of value.
    pub fn named(text: &str) -> Result<Vec<Self>, String> {
        let (text, heads) = without_heads(text)?;
        let (text, passes) = without_passes(text)?;
        let (name, value) =
            text.split_once('=').map_or((text, ""), |(name, value)| (name.trim(), value.trim()));
        let (name, point) = name.split_once('@').map_or((name, None), |(name, point)| (name, Some(point)));
        let kind: CauseKind = name.parse().map_err(|refusal| of_a_key(name).unwrap_or(refusal))?;
        let point = point.map(str::parse::<Point>).transpose()?;
        let value = match value.parse::<f64>() {
            _ if value.is_empty() => ChangeValue::Nothing,
            Ok(number) if number.is_finite() => ChangeValue::Number(number),
            _ => ChangeValue::word(value),
        };
        let known: Vec<&CatalogueEntry> = catalogue().filter(|entry| entry.kind == kind).collect();
        let changes: Vec<Self> = known
            .iter()
            .filter(|entry| entry.may_take(&value) && point.is_none_or(|point| entry.at.contains(&point)))
            .map(|entry| Self { entry, value: value.clone(), point, passes, heads: heads.clone() })
            .collect();
        match changes.is_empty() {
            true => Err(refusal(kind, &known, point)),
            false => Ok(changes),
        }
    }

    /// Returns the taps that it applies to.
    pub fn taps(&self) -> &[Point] {
        self.point.as_ref().map_or(self.entry.at, std::slice::from_ref)
    }

    /// Returns the model's own value at a site.
    pub fn own(&self, at: &SiteContext) -> ChangeValue {
        let is_its_place = self.entry.at.contains(&at.site.point);
        match if is_its_place { self.entry.own_at(at) } else { ChangeValue::Nothing } {
            ChangeValue::Nothing => {
                // Several operations may produce this tap's value, so the layer's own operation for the change is used.
                let layers = [at.site.layer, Some(0), None];
                let sites = layers.into_iter().flat_map(|layer| {
                    self.entry.at.iter().map(move |&point| Site { point, layer, pass: at.site.pass })
                });
                let owns = sites.map(|site| self.entry.own_at(&at.elsewhere(site)));
                owns.into_iter().find(|own| *own != ChangeValue::Nothing).unwrap_or(ChangeValue::Nothing)
            }
            own => own,
        }
    }

    /// Returns a sentence that explains the value, if the value alone is unclear.
    pub fn meaning(&self) -> Option<&'static str> {
        let is_of_keys = self.entry.kind == CauseKind::CacheRotation;
        self.value
            .as_word()
            .filter(|_| is_of_keys)
            .and_then(crate::ops::attention::faults::key_rotation::meaning)
    }

    /// Returns the entry's tap, if the entry has exactly one and another entry has the same kind and values. The tap
    /// then distinguishes the two entries.
    fn place(&self) -> Option<Point> {
        let CatalogueEntry { kind, at, takes, names_tap, .. } = *self.entry;
        let &[only] = at else { return None };
        if !names_tap {
            return None;
        }
        let is_elsewhere =
            |other: &CatalogueEntry| (other.kind, other.takes) == (kind, takes) && other.at != at;
        catalogue().any(is_elsewhere).then_some(only)
    }

    /// Computes the changed operation from the same inputs; `None` if the change does not apply or changes nothing.
    pub fn compute(&self, at: &SiteContext) -> Option<Tensor> {
        let is_elsewhere = self.point.is_some_and(|point| point != at.site.point);
        if is_elsewhere
            || !self.entry.at.contains(&at.site.point)
            || self.value == self.entry.own_at(at) && self.value != ChangeValue::Nothing
        {
            return None;
        }
        if self.passes.is_some_and(|passes| !passes.contains(at.site.pass, &at.positions)) {
            return None;
        }
        let changed = self.entry.compute_at(at, &self.value)?;
        let fits = changed.data().len() == at.value.data().len();
        let changed = fits.then(|| changed.reshaped(at.value.shape()))?;
        let changed = match self.passes {
            Some(passes) => passes.limited(at, changed)?,
            None => changed,
        };
        match &self.heads {
            Some(heads) => heads.limited(at, changed),
            None => Some(changed),
        }
    }
}

/// Splits off the heads at the end of a typed change.
fn without_heads(text: &str) -> Result<(&str, Option<HeadRestriction>), String> {
    let Some((change, heads)) = text.rsplit_once("@head-") else { return Ok((text, None)) };
    Ok((change, Some(heads.trim().parse()?)))
}

/// Splits off the passes at the end of a typed change: the part after the last `@`, unless it belongs to a tap.
fn without_passes(text: &str) -> Result<(&str, Option<PassRestriction>), String> {
    let Some((change, passes)) = text.rsplit_once('@') else { return Ok((text, None)) };
    match passes.trim().parse() {
        Ok(passes) => Ok((change, Some(passes))),
        Err(refusal) if change.contains('=') => Err(refusal),
        Err(_) => Ok((text, None)),
    }
}

/// Returns a message for a configuration key whose value may be defined differently from the change's value.
fn of_a_key(name: &str) -> Option<String> {
    let entry = catalogue().find(|entry| entry.keys.is_some_and(|keys| keys.contains(&name)))?;
    Some(format!("'{name}' is a configuration key; the cause is called {}={}", entry.kind, entry.takes))
}

/// Returns the reason why no change of a kind matches the typed text.
fn refusal(kind: CauseKind, known: &[&CatalogueEntry], point: Option<Point>) -> String {
    let takes: Vec<&str> = known.iter().map(|entry| entry.takes).collect();
    let points: BTreeSet<Point> = known.iter().flat_map(|entry| entry.at).copied().collect();
    match (takes.as_slice(), point.filter(|point| !points.contains(point))) {
        ([], _) => format!("{kind} cannot be supposed: it can only be found"),
        (_, Some(point)) => {
            let points: Vec<_> = points.into_iter().map(Point::name).collect();
            format!("{kind} does not change {point}, only {}", points.join(", "))
        }
        ([""], _) => format!("{kind} takes no value"),
        _ => format!("{kind} takes a value: {kind}={}", takes.join(" or ")),
    }
}

impl PartialEq for OperationChange {
    fn eq(&self, other: &Self) -> bool {
        let is_restricted_alike = self.passes == other.passes && self.heads == other.heads;
        self.entry == other.entry && self.value == other.value && is_restricted_alike
    }
}

impl fmt::Debug for OperationChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Formats the change as users type it.
impl fmt::Display for OperationChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.entry.kind)?;
        self.point.or(self.place()).map_or(Ok(()), |point| write!(f, "@{point}"))?;
        match self.value {
            ChangeValue::Nothing => Ok(()),
            _ => write!(f, "={}", self.value),
        }?;
        self.passes.map_or(Ok(()), |passes| write!(f, "@{passes}"))?;
        self.heads.as_ref().map_or(Ok(()), |heads| write!(f, "@{heads}"))
    }
}
