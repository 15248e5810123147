//! A rule of a map: the tap of all arrays whose name matches a pattern.

use serde::{Deserialize, Serialize};

use crate::checkpoint::{Point, TapAxis, TapScope};
use crate::dump::ArrayPart;
use crate::format::EscapedText;
use crate::map::pattern::{NameNumbers, NamePattern};
use crate::weight::DType;

/// A rule as written in a map file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RuleDefinition {
    /// Name pattern of the arrays, or several patterns.
    pub(crate) name: Names,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tap: Option<String>,
    /// Taps that are fused in one array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fused: Option<Vec<String>>,
    /// Layout of the fused taps in the array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) form: Option<FusedForm>,
    /// Axes of the array, if they differ from the default. For stacked taps: the axes of one tap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) axes: Option<Vec<String>>,
    /// The layer, if the array name does not contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) layer: Option<usize>,
    /// True if the layer is the model's last one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) last_layer: bool,
    /// The pass, if the array name does not contain it; 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pass: Option<usize>,
    /// Number to add to the layer in the array name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) offset: Option<isize>,
    /// Rows of the pass that the array has, if not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rows: Option<Vec<usize>>,
    /// Part of the array that is the tap, as in a dump's manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) of: Option<ArrayPart>,
    /// Factor from the array's values to the tap's values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) scale: Option<f64>,
    /// Type of the stored bits, such as `bf16` for 16-bit integers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) dtype: Option<String>,
    /// Type to which values were rounded before they were stored in a larger type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) computed: Option<String>,
    /// True if the array has padding after the keys of the pass.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) padded: bool,
    /// Architectures that the rule applies to; all if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) architectures: Option<Vec<String>>,
}

/// One pattern, or several.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(crate) enum Names {
    /// One pattern.
    One(String),
    /// Several patterns.
    Many(Vec<String>),
}

impl Default for Names {
    fn default() -> Self {
        Names::Many(Vec::new())
    }
}

/// The layout of several taps in one array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FusedForm {
    /// In each row, all values of one tap, followed by all values of the next.
    #[default]
    Beside,
    /// For each key-value head: its query heads, its key, its value.
    Heads,
    /// The taps alternate value by value.
    Interleaved,
    /// The taps are stacked along an additional first axis.
    Stacked,
    /// One entry per layer, numbered by `{layer}` or along an additional first axis, plus one before them. The first
    /// entry is the first tap, the last entry is the last tap, and entry i between them is the second tap of layer i -
    /// 1.
    Stream,
}

impl FusedForm {
    /// Checks that these taps can be fused in this layout.
    fn check(self, taps: &[Point]) -> Result<(), String> {
        let axes: Vec<&[TapAxis]> = taps.iter().map(|tap| tap.axes()).collect();
        let of_tokens = axes.iter().all(|axes| axes.first() == Some(&TapAxis::Token));
        let of_heads = of_tokens && axes.iter().all(|axes| axes.last() == Some(&TapAxis::HeadDim));
        let alike = of_tokens && axes.iter().all(|own| *own == axes[0]);
        let (fits, expected) = match self {
            FusedForm::Beside => (of_heads || alike, "rows of heads, or rows of one width"),
            FusedForm::Heads => (of_heads, "rows of heads"),
            FusedForm::Interleaved => (alike && !of_heads, "rows of one width, not of heads"),
            FusedForm::Stacked => (true, ""),
            FusedForm::Stream => (
                matches!(taps, [_, block] | [_, block, _] if block.scope() == TapScope::Layer)
                    && taps[0].scope() != TapScope::Layer,
                "a tap for the first array, a tap for the array of each layer and, if the last array is of another tap, a third one",
            ),
        };
        let names: Vec<String> = taps.iter().map(ToString::to_string).collect();
        let problem = || format!("this form needs {expected}, which {} are not", names.join(", "));
        fits.then_some(()).ok_or_else(problem)
    }
}

/// Returns the layout of fused taps and checks that the fields agree.
fn form_of(written: &RuleDefinition, taps: &[Point]) -> Result<Option<FusedForm>, String> {
    let form = written.fused.is_some().then(|| written.form.unwrap_or_default());
    let is_part = form.is_some() || written.of.is_some();
    let problems = [
        (form.is_none() && written.form.is_some(), "form needs fused taps"),
        (
            form.is_some() && written.of.is_some(),
            "of needs a single tap; write one rule with this name per \
            tap",
        ),
        (
            written.padded && is_part,
            "padded cannot be used with fused or of: the tap needs an array of its own; omit padded",
        ),
        (written.rows.as_ref().is_some_and(Vec::is_empty), "rows is empty"),
        (
            written.scale.is_some_and(|scale| !(scale.is_finite() && scale != 0.0)),
            "invalid scale, expected a finite number other than 0",
        ),
    ];
    if let Some((_, problem)) = problems.into_iter().find(|(is_so, _)| *is_so) {
        return Err(problem.into());
    }
    form.map_or(Ok(()), |form| form.check(taps))?;
    Ok(form)
}

/// A rule of a name map that was validated.
#[derive(Clone, Debug)]
pub(crate) struct MapRule {
    patterns: Vec<NamePattern>,
    /// The taps of the rule: one, or several fused in one array.
    pub(super) taps: Vec<Point>,
    pub(super) form: Option<FusedForm>,
    pub(super) axes: Option<Vec<TapAxis>>,
    pub(super) written: RuleDefinition,
    pub(super) dtype: Option<DType>,
}

impl MapRule {
    /// Validates a rule.
    ///
    /// # Errors
    /// If the rule is invalid; the message describes the problem.
    pub(super) fn new(written: RuleDefinition, [before, behind]: &[String; 2]) -> Result<Self, String> {
        let names = match &written.name {
            Names::One(name) => std::slice::from_ref(name),
            Names::Many(names) => names,
        };
        let patterns = names
            .iter()
            .map(|name| NamePattern::new(&format!("{before}{name}{behind}")))
            .collect::<Result<Vec<_>, _>>()?;
        let first = names.first().ok_or("a rule has no name pattern")?;
        let refuse = |problem: String| format!("the rule of '{}': {problem}", EscapedText(first));
        let taps = match (&written.tap, &written.fused) {
            (Some(tap), None) => vec![tap.parse()],
            (None, Some(taps)) if taps.len() > 1 => taps.iter().map(|tap| tap.parse()).collect(),
            _ => return Err(refuse("expected either tap = \"…\" or fused = [\"…\", \"…\"]".into())),
        };
        let taps = taps.into_iter().collect::<Result<Vec<Point>, _>>().map_err(refuse)?;
        let axis = |name: &String| {
            name.parse().map_err(|()| refuse(format!("unknown axis '{}'", EscapedText(name))))
        };
        let axes =
            written.axes.as_ref().map(|axes| axes.iter().map(axis).collect::<Result<Vec<TapAxis>, _>>());
        let no_dtype = |name: &String| {
            refuse(format!("unknown dtype '{}', expected one of f32, f64, f16, bf16", EscapedText(name)))
        };
        let dtype = |name: &String| DType::named(name).ok_or_else(|| no_dtype(name));
        let dtype = written.dtype.as_ref().map(dtype).transpose()?;
        let form = form_of(&written, &taps).map_err(refuse)?;
        Ok(Self { patterns, taps, form, axes: axes.transpose()?, dtype, written })
    }

    /// Returns the numbers in an array name; `None` if the rule does not apply to this name and architecture.
    pub(super) fn of(&self, name: &str, architecture: &str) -> Option<NameNumbers> {
        let others = |architectures: &Vec<String>| !architectures.iter().any(|one| one == architecture);
        if self.written.architectures.as_ref().is_some_and(others) {
            return None;
        }
        let numbers = self.patterns.iter().find_map(|pattern| pattern.of(name))?;
        let counted = |layer: usize| layer.checked_add_signed(self.written.offset.unwrap_or(0));
        let layer = match numbers.layer {
            Some(layer) => Some(counted(layer)?),
            None => self.written.layer,
        };
        Some(NameNumbers { layer, pass: numbers.pass.or(self.written.pass) })
    }

    /// Returns true if one of the rule's patterns matches the name, for any architecture.
    pub(super) fn names(&self, name: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.of(name).is_some())
    }

    /// Returns true if both rules describe different parts of the same arrays.
    pub(super) fn is_part_as(&self, first: &Self) -> bool {
        let is_part = |rule: &Self| rule.written.of.is_some();
        is_part(self) && is_part(first) && self.written.name == first.written.name
    }

    /// Returns the first pattern of the rule, for messages.
    pub(super) fn name(&self) -> &str {
        match &self.written.name {
            Names::One(name) => name,
            Names::Many(names) => &names[0],
        }
    }
}
