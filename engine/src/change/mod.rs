//! Catalogue of known mistakes of ports. Each entry changes one operation.
//!
//! The catalogue injects faults in tests, identifies by replay what a dump's engine computes, and runs our engine with
//! a hypothesis (`--suppose`). A change is computed from the operation's own inputs, both by the numerics and, through
//! [`TracedNumerics`](crate::exact::TracedNumerics), by the exact evaluation. A replay can therefore explain results to
//! within rounding.

mod activation;
mod attention;
mod cache;
mod change_tap;
mod corruption;
mod element;
mod embedding;
mod experts;
mod factor_estimate;
mod fused_projections;
mod kind;
mod logits;
mod logprobs;
mod mask;
mod model_operations;
mod norm;
mod outer_operations;
mod product;
mod rope;
mod shared_expert;
mod site_context;
mod stream;
mod weight;
mod yarn;

use std::collections::BTreeSet;
use std::fmt;

pub use change_tap::{ChangeTap, Supposition};
use factor_estimate::FactorEstimate;
pub use kind::CauseKind;
pub use model_operations::{LinearParameters, ModelOperations};
pub use site_context::SiteContext;

use crate::checkpoint::{Point, Site};
use crate::tensor::Tensor;

/// Value of a change: a number, a word, or nothing if there is only one variant.
#[derive(Clone, Debug)]
pub enum ChangeValue {
    /// No value: there is only one variant.
    Nothing,
    /// A number, such as a value of the model's configuration.
    Number(f64),
    /// A named choice, or the name of a site.
    Word(String),
}

impl ChangeValue {
    /// A word.
    pub fn word(word: &str) -> Self {
        Self::Word(word.to_owned())
    }

    /// Returns the number, if the value is a number.
    pub fn number(&self) -> Option<f64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    /// Returns the word, if the value is a word.
    pub fn as_word(&self) -> Option<&str> {
        if let Self::Word(word) = self { Some(word) } else { None }
    }
}

/// Numbers are compared as `f32`, the precision of a model's configuration.
impl PartialEq for ChangeValue {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (ChangeValue::Nothing, ChangeValue::Nothing) => true,
            (ChangeValue::Number(one), ChangeValue::Number(other)) => *one as f32 == *other as f32,
            (ChangeValue::Word(one), ChangeValue::Word(other)) => one == other,
            _ => false,
        }
    }
}

/// Formats the value as users type it.
impl fmt::Display for ChangeValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeValue::Nothing => Ok(()),
            // Print a number with the fewest digits that identify its f32.
            ChangeValue::Number(number) => {
                let single = *number as f32;
                match number.abs() {
                    size if size != 0.0 && !(1e-3..1e7).contains(&size) => write!(f, "{single:e}"),
                    _ => write!(f, "{single}"),
                }
            }
            ChangeValue::Word(word) => f.write_str(word),
        }
    }
}

/// A known mistake: one operation computed in another way.
#[derive(Clone, Copy)]
pub struct CatalogueEntry {
    /// Kind of the cause.
    pub kind: CauseKind,
    /// Keys in the model's files: the key in `config.json`, and the GGUF key after the architecture's name.
    pub keys: Option<[&'static str; 2]>,
    /// Tap points whose operation the entry changes.
    pub at: &'static [Point],
    /// True if the mistake affects one site, such as one weight, and not every layer.
    pub is_local: bool,
    /// Values for `--suppose`: an example, or the allowed words; empty if it takes no value.
    pub takes: &'static str,
    /// Returns the model's own value at a site.
    pub own: fn(&SiteContext) -> ChangeValue,
    /// Computes the changed operation from the same inputs; `None` if the change does not apply.
    pub compute: fn(&SiteContext, &ChangeValue) -> Option<Tensor>,
    /// Estimates values from an engine's results, nearest first. Results without a meaning are NaN.
    pub read: fn(&SiteContext, &[f64]) -> Vec<ChangeValue>,
    /// Returns values to try if none can be estimated.
    pub usual: fn(&SiteContext) -> Vec<ChangeValue>,
}

impl CatalogueEntry {
    /// Returns true if the entry accepts a value of this kind. Every entry with values accepts a number; it accepts a
    /// word only if an example is a word.
    fn may_take(&self, value: &ChangeValue) -> bool {
        let takes_words = || self.takes.split('|').any(|example| example.parse::<f64>().is_err());
        match value {
            ChangeValue::Nothing => self.takes.is_empty(),
            ChangeValue::Number(_) => !self.takes.is_empty(),
            ChangeValue::Word(_) => !self.takes.is_empty() && takes_words(),
        }
    }

    /// Default entry: no value, not local.
    const PLAIN: Self = Self {
        kind: CauseKind::Unknown,
        keys: None,
        at: &[],
        is_local: false,
        takes: "",
        own: |_| ChangeValue::Nothing,
        compute: |_, _| None,
        read: |_, _| Vec::new(),
        usual: |_| vec![ChangeValue::Nothing],
    };
}

/// Returns all entries in the order in which they are reported if several explain an operation: configuration first.
pub fn catalogue() -> impl Iterator<Item = &'static CatalogueEntry> {
    let families = [
        embedding::ENTRIES,
        norm::ENTRIES,
        rope::ENTRIES,
        attention::ENTRIES,
        mask::ENTRIES,
        cache::ENTRIES,
        activation::ENTRIES,
        experts::ENTRIES,
        shared_expert::ENTRIES,
        stream::ENTRIES,
        logits::ENTRIES,
        logprobs::ENTRIES,
        product::ENTRIES,
        fused_projections::ENTRIES,
        weight::ENTRIES,
        corruption::ENTRIES,
        element::ENTRIES,
    ];
    families.into_iter().flatten()
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
}

impl OperationChange {
    /// Creates a change for every tap where it applies.
    pub fn new(entry: &'static CatalogueEntry, value: ChangeValue) -> Self {
        Self { entry, value, point: None }
    }

    /// Limits the change to a tap.
    pub fn at(self, point: Point) -> Self {
        Self { point: Some(point), ..self }
    }

    /// Parses `KEY=VALUE`, or `KEY` for a change with one variant; `KEY@TAP=VALUE` applies at one tap.
    ///
    /// # Errors
    /// If the name is unknown, or the entry takes another kind of value.
    pub fn named(text: &str) -> Result<Vec<Self>, String> {
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
            .map(|entry| Self { entry, value: value.clone(), point })
            .collect();
        match changes.is_empty() {
            true => Err(refusal(kind, &known, point)),
            false => Ok(changes),
        }
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

    /// Returns the entry's only tap point if another entry has the same kind and values, so that the tap distinguishes them.
    fn place(&self) -> Option<Point> {
        let CatalogueEntry { kind, at, takes, .. } = *self.entry;
        let &[only] = at else { return None };
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
        let changed = self.entry.compute_at(at, &self.value)?;
        (changed.data().len() == at.value.data().len()).then(|| changed.reshaped(at.value.shape()))
    }
}

/// Returns a message for a configuration key whose value may be counted differently from the change's value.
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
        let same_entry = self.entry.kind == other.entry.kind && self.entry.at == other.entry.at;
        same_entry && self.value == other.value
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
        }
    }
}

/// Returns the numbers of `known` within a relative distance of an estimate, nearest first.
fn snapped(read: f64, known: &[f64], within: f64) -> Vec<f64> {
    let off = |number: f64| (number / read).ln().abs();
    let mut near: Vec<f64> = known.iter().copied().filter(|&number| off(number) <= within).collect();
    near.sort_by(|a, b| off(*a).total_cmp(&off(*b)));
    near
}

/// Rounds a number to `digits` significant digits.
fn rounded_to(digits: i32, number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return number;
    }
    let scale = 10f64.powi(digits - 1 - number.abs().log10().floor() as i32);
    (number * scale).round() / scale
}

/// Returns the relative distance of a tensor from an engine's values. Values without a meaning are NaN.
pub fn distance(computed: &Tensor, theirs: &[f64]) -> f64 {
    let (mut up, mut down) = (0.0, 0.0);
    for (&ours, &theirs) in computed.data().iter().zip(theirs).filter(|(_, theirs)| !theirs.is_nan()) {
        up += (f64::from(ours) - theirs).powi(2);
        down += theirs * theirs;
    }
    // If `theirs` are zeros, any other value is infinitely far.
    (up / down.max(f64::MIN_POSITIVE)).sqrt()
}
