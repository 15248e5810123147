//! Restriction of a change to some heads.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::change::{HeadAxis, SiteContext};
use crate::checkpoint::{Point, TapAxis};
use crate::tensor::Tensor;

/// The heads to which a change applies, if it does not apply to all: query heads, or key and value heads at their taps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadRestriction(BTreeSet<usize>);

impl HeadRestriction {
    /// Creates the restriction to these heads.
    pub fn new(heads: BTreeSet<usize>) -> Self {
        Self(heads)
    }

    /// Returns true if the change applies to this head.
    pub fn contains(&self, head: usize) -> bool {
        self.0.contains(&head)
    }

    /// Returns the phrase for reports about a tap.
    pub fn meaning(&self, point: Point) -> String {
        let names: Vec<String> = self.0.iter().map(usize::to_string).collect();
        let kind = if point.axes().contains(&TapAxis::KvHead) { "KV head" } else { "head" };
        match names.as_slice() {
            [one] => format!("only in {kind} {one}"),
            all => format!("only in {kind}s {}", all.join(", ")),
        }
    }

    /// Returns the changed value in these heads, and the unchanged value in all others. Returns `None` if the value has
    /// none of these heads.
    pub(super) fn limited(&self, at: &SiteContext, changed: Tensor) -> Option<Tensor> {
        let layout = HeadAxis::of(at)?;
        let mut heads = 0..layout.heads;
        if heads.clone().all(|head| self.contains(head)) {
            return Some(changed);
        }
        let is_changed = |flat: usize| self.contains(layout.head(flat));
        heads.any(|head| self.contains(head)).then(|| {
            let from = |flat| (usize::from(is_changed(flat)), flat);
            at.n.gathered(&[at.value, &changed], at.value.shape(), from)
        })
    }
}

/// Parses `3` or `0+3`.
impl FromStr for HeadRestriction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let heads: Result<BTreeSet<usize>, _> = text.split('+').map(str::parse).collect();
        heads.map(Self).map_err(|_| {
            format!("invalid heads '{text}', expected e.g. @head-3, @head-0+3 or @decode@head-3")
        })
    }
}

/// Formats the restriction as users type it, after the `@`.
impl fmt::Display for HeadRestriction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(usize::to_string).collect();
        write!(f, "head-{}", names.join("+"))
    }
}
