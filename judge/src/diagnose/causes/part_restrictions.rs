//! Wrong parts of an operation whose other parts are correct: some heads, or the tokens after a position.
//!
//! A change that is restricted to the wrong part must explain every value of that part. Its parameters are read
//! only from that part.

use std::collections::BTreeSet;

use crate::catalogue::{HeadRestriction, OperationChange, PassRestriction};
use crate::change::{HeadAxis, SiteContext};
use crate::check::UnexplainedOperation;
use crate::checkpoint::{Point, TapAxis};

/// Least number of wrong values in a part, and their least share of the part's values.
const LEAST: usize = 8;
const LEAST_SHARE: f64 = 0.125;

/// The wrong part of an operation.
pub(super) enum WrongPart {
    /// The heads with a wrong value.
    Heads(HeadAxis, HeadRestriction),
    /// The first wrong token and all later tokens.
    Tokens {
        /// Number of consecutive values of one token.
        inner: usize,
        /// Number of tokens.
        tokens: usize,
        /// Index of the first wrong token, and its position.
        first: usize,
        position: usize,
    },
}

impl WrongPart {
    /// Returns the parts that contain all wrong values and leave out some heads or tokens. A few wrong values are no
    /// evidence of a change of the whole part.
    pub(super) fn all(at: &SiteContext, one: &UnexplainedOperation) -> Vec<Self> {
        let wrong = one.beyond();
        let parts = [Self::heads(at, &wrong), Self::tokens(at, &wrong)];
        let size = |part: &Self| (0..one.theirs.len()).filter(|flat| part.contains(*flat)).count();
        let share = |part: &Self| LEAST_SHARE * size(part) as f64;
        // A penalty changes the logits of the tokens that were read alone.
        let is_evident = |part: &Self| {
            at.site.point == Point::Logits || (wrong.len() >= LEAST && wrong.len() as f64 >= share(part))
        };
        parts.into_iter().flatten().filter(is_evident).collect()
    }

    fn heads(at: &SiteContext, wrong: &[usize]) -> Option<Self> {
        let layout = HeadAxis::of(at)?;
        let heads: BTreeSet<usize> = wrong.iter().map(|flat| layout.head(*flat)).collect();
        let is_part = !heads.is_empty() && heads.len() < layout.heads;
        is_part.then(|| Self::Heads(layout, HeadRestriction::new(heads)))
    }

    /// Returns the first wrong token and all later tokens. A single wrong token counts only at the logits, since engines
    /// sample from the last token's logits.
    fn tokens(at: &SiteContext, wrong: &[usize]) -> Option<Self> {
        let (point, shape) = (at.site.point, at.value.shape());
        let axis = point.axes().iter().position(|axis| *axis == TapAxis::Token)?;
        let (inner, tokens) = (shape.get(axis + 1..)?.iter().product::<usize>(), shape[axis]);
        let rows: BTreeSet<usize> = wrong.iter().map(|flat| flat / inner % tokens).collect();
        let first = *rows.first()?;
        let is_evident = rows.len() > 1 || point == Point::Logits;
        let position = at.positions.start + first;
        (first > 0 && is_evident).then_some(Self::Tokens { inner, tokens, first, position })
    }

    fn contains(&self, flat: usize) -> bool {
        match self {
            Self::Heads(layout, heads) => heads.contains(layout.head(flat)),
            Self::Tokens { inner, tokens, first, .. } => flat / inner % tokens >= *first,
        }
    }

    /// Returns the dump's values in the part, and NaN elsewhere.
    pub(super) fn values(&self, theirs: &[f64]) -> Vec<f64> {
        let value = |(flat, &value)| if self.contains(flat) { value } else { f64::NAN };
        theirs.iter().enumerate().map(value).collect()
    }

    /// Restricts a change to the part.
    pub(super) fn restrict(&self, change: OperationChange) -> OperationChange {
        match self {
            Self::Heads(_, heads) => change.in_heads(Some(heads.clone())),
            Self::Tokens { position, .. } => change.limited_to(Some(PassRestriction::From(*position))),
        }
    }
}
