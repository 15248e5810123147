//! Known mistakes of ports: the framework that each operation's faults (`ops/<operation>/faults.rs`) plug into, as
//! [`CatalogueEntry`] values. Each entry changes one operation.
//!
//! The [`catalogue`](crate::catalogue) of all entries injects faults in tests, identifies by replay what a dump's
//! engine computes, and runs our engine with a hypothesis (`--suppose`). A change is computed from the operation's own
//! inputs, both by the numerics and, through [`TracedNumerics`](crate::tracing::TracedNumerics), by the exact
//! evaluation. A replay can therefore explain results to within rounding.

mod element_edits;
mod factor_estimate;
mod family;
mod head_axis;
mod kind;
mod least_squares;
mod model_operations;
pub(crate) mod outer_operations;
mod site_context;

use std::fmt;
use std::ops::Range;

pub(crate) use element_edits::{MOST_ELEMENTS, element_numbers, plainest};
pub(crate) use factor_estimate::FactorEstimate;
pub use family::CauseFamily;
pub use head_axis::HeadAxis;
pub use kind::CauseKind;
pub(crate) use least_squares::{LeastSquares, plain_gain};
pub(crate) use model_operations::LinearParameters;
pub use model_operations::ModelOperations;
pub(crate) use model_operations::embedded_tokens;
pub use site_context::SiteContext;

use crate::checkpoint::Point;
use crate::tensor::Tensor;

/// Value of a change: a number, a word, or nothing if there is only one variant of the change.
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

    pub(crate) fn as_word(&self) -> Option<&str> {
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
    /// True if the same kind and value at another tap is a different mistake.
    pub names_tap: bool,
    /// Values for `--suppose`: an example, or the allowed words; empty if it takes no value.
    pub takes: &'static str,
    /// Returns the model's own value at a site.
    pub(crate) own: fn(&SiteContext) -> ChangeValue,
    /// Computes the changed operation from the same inputs; `None` if the change does not apply.
    pub(crate) compute: fn(&SiteContext, &ChangeValue) -> Option<Tensor>,
    /// Estimates values from an engine's results, nearest first. Meaningless results are NaN.
    pub(crate) read: fn(&SiteContext, &[f64]) -> Vec<ChangeValue>,
    /// Returns values to try if none can be estimated; `None` for the words that the entry takes, or for the change
    /// without a value.
    pub(crate) usual: Option<fn(&SiteContext) -> Vec<ChangeValue>>,
    /// Returns more values, which are tried if a run is cheap and no usual value explains a dump.
    pub(crate) sweep: fn(&SiteContext) -> Vec<ChangeValue>,
}

/// Compares two entries: they are equal if they change the same taps in the same way. Their addresses may differ,
/// because the compiler may copy what a static's reference points to.
impl PartialEq for CatalogueEntry {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.at == other.at
    }
}

impl CatalogueEntry {
    /// Returns true if the entry accepts a value of this kind. Every entry that takes a value accepts a number. It
    /// accepts a word only if an example is a word.
    pub fn may_take(&self, value: &ChangeValue) -> bool {
        let takes_words = || self.takes.split('|').any(|example| example.parse::<f64>().is_err());
        match value {
            ChangeValue::Nothing => self.takes.is_empty(),
            ChangeValue::Number(_) => !self.takes.is_empty(),
            ChangeValue::Word(_) => !self.takes.is_empty() && takes_words(),
        }
    }

    /// Returns the values to try at a site if none can be estimated, without those of an inner operation.
    pub(crate) fn usual(&self, at: &SiteContext) -> Vec<ChangeValue> {
        match self.usual {
            Some(usual) => usual(at),
            None if self.takes.is_empty() => vec![ChangeValue::Nothing],
            None => self.takes.split('|').map(ChangeValue::word).collect(),
        }
    }

    /// Default entry: no value, not local.
    pub(crate) const PLAIN: Self = Self {
        kind: CauseKind::Unknown,
        keys: None,
        at: &[],
        is_local: false,
        names_tap: true,
        takes: "",
        own: |_| ChangeValue::Nothing,
        compute: |_, _| None,
        read: |_, _| Vec::new(),
        usual: None,
        sweep: |_| Vec::new(),
    };
}

/// Returns the numbers of `known` within a relative distance of an estimate, nearest first.
pub(crate) fn snapped(read: f64, known: &[f64], within: f64) -> Vec<f64> {
    let off = |number: f64| (number / read).ln().abs();
    let mut near: Vec<f64> = known.iter().copied().filter(|&number| off(number) <= within).collect();
    near.sort_by(|a, b| off(*a).total_cmp(&off(*b)));
    near
}

/// Parses `4` or `4-7` as a range of indices.
pub(crate) fn index_range(word: &str) -> Option<Range<usize>> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last).then_some(first..last.checked_add(1)?)
}

/// Rounds a number to `digits` significant digits.
pub(crate) fn rounded_to(digits: i32, number: f64) -> f64 {
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
