//! Restriction of a change to some passes: the prompt, later chunks, decoding, one pass, or from a position on.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::change::SiteContext;
use crate::checkpoint::TapAxis;
use crate::tensor::Tensor;

/// The passes to which a change applies, if it does not apply to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassRestriction {
    /// The first pass, which reads the prompt.
    Prompt,
    /// Later passes of several tokens, which continue a prompt.
    Chunk,
    /// Later passes of one token.
    Decode,
    /// The pass with this number, counted from 0.
    Pass(usize),
    /// Tokens at this position and after it.
    From(usize),
}

impl PassRestriction {
    /// Returns the restriction to passes like this one.
    pub fn of_pass(pass: usize, tokens: usize) -> Self {
        match (pass, tokens) {
            (0, _) => Self::Prompt,
            (_, 1) => Self::Decode,
            _ => Self::Chunk,
        }
    }

    /// Returns true if the change applies to some token of a pass.
    pub(crate) fn contains(self, pass: Option<usize>, positions: &Range<usize>) -> bool {
        match (self, pass) {
            (Self::From(first), _) => positions.end > first,
            (Self::Pass(number), pass) => pass == Some(number),
            (_, None) => false,
            (_, Some(pass)) => self == Self::of_pass(pass, positions.len()),
        }
    }

    /// Returns the phrase for reports.
    pub fn meaning(self) -> String {
        match self {
            Self::Prompt => "only in the prompt".to_owned(),
            Self::Chunk => "only in later chunks".to_owned(),
            Self::Decode => "only while decoding".to_owned(),
            Self::Pass(number) => format!("only in pass {number}"),
            Self::From(position) => format!("from position {position} on"),
        }
    }

    /// Returns the changed value where the restriction allows it, and the unchanged value elsewhere. `None` if the
    /// change applies to no value of the pass.
    pub(super) fn limited(self, at: &SiteContext, changed: Tensor) -> Option<Tensor> {
        let Self::From(first) = self else { return Some(changed) };
        if first <= at.positions.start {
            return Some(changed);
        }
        let shape = at.value.shape();
        let axis = at.site.point.axes().iter().position(|axis| *axis == TapAxis::Token)?;
        let inner: usize = shape.get(axis + 1..)?.iter().product();
        let skipped = first - at.positions.start;
        let is_changed = |flat: usize| flat / inner % shape[axis] >= skipped;
        Some(at.n.gathered(&[at.value, &changed], shape, |flat| (usize::from(is_changed(flat)), flat)))
    }
}

impl FromStr for PassRestriction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |prefix: &str| text.strip_prefix(prefix)?.parse().ok();
        let position = || number("from-").map(Self::From).or(number("pass-").map(Self::Pass));
        match text {
            "prompt" => Ok(Self::Prompt),
            "chunk" => Ok(Self::Chunk),
            "decode" => Ok(Self::Decode),
            _ => position().ok_or_else(|| {
                format!("unknown passes '{text}', expected prompt, chunk, decode, pass-1 or from-12")
            }),
        }
    }
}

/// Formats the restriction as users type it.
impl fmt::Display for PassRestriction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prompt => f.write_str("prompt"),
            Self::Chunk => f.write_str("chunk"),
            Self::Decode => f.write_str("decode"),
            Self::Pass(number) => write!(f, "pass-{number}"),
            Self::From(position) => write!(f, "from-{position}"),
        }
    }
}
