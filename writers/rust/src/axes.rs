//! What the axes of an array count.

use crate::error::{refuse, Result};
use crate::taps::Tap;

/// What one axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Sequences run side by side.
    Batch,
    /// Rows of the pass.
    Token,
    /// Query heads.
    Head,
    /// Query heads of one key-value head.
    Group,
    /// Key and value heads.
    KvHead,
    /// Values of one head.
    HeadDim,
    /// The hidden size, or all heads merged.
    Hidden,
    /// The feed-forward size.
    Ffn,
    /// What attention looks at.
    Key,
    /// Vocabulary entries.
    Vocab,
    /// The likeliest tokens, in descending order.
    Rank,
    /// Experts of a layer.
    Expert,
    /// Those that a token has chosen, in any order.
    Chosen,
    /// Columns of the matrix of a head.
    State,
}

use Axis::*;

impl Axis {
    /// The name in the manifest.
    pub fn name(self) -> &'static str {
        match self {
            Batch => "batch",
            Token => "token",
            Head => "head",
            Group => "group",
            KvHead => "kv_head",
            HeadDim => "head_dim",
            Hidden => "hidden",
            Ffn => "ffn",
            Key => "key",
            Vocab => "vocab",
            Rank => "rank",
            Expert => "expert",
            Chosen => "chosen",
            State => "state",
        }
    }

    /// Axes that may stand for it, in this order.
    fn parts(self) -> &'static [&'static [Axis]] {
        match self {
            Head => &[&[KvHead, Group]],
            Hidden => &[&[Head, HeadDim], &[KvHead, Group, HeadDim]],
            _ => &[],
        }
    }

    /// Which of the axes found it is, or is made of.
    fn made_of(self, found: &[Axis]) -> Option<Vec<Axis>> {
        let alone = std::iter::once(vec![self]);
        let parts = self.parts().iter().map(|parts| parts.to_vec());
        alone.chain(parts).find(|axes| axes.iter().all(|axis| found.contains(axis)))
    }
}

/// Whether several axes stand for one of the tap's, as version 2 alone can say.
pub(crate) fn splits(tap: &Tap, named: &[Axis]) -> bool {
    tap.axes.iter().any(|axis| !named.contains(axis))
}

/// The axes of an array: those that are named, or the tap's own, after a batch where there is one more.
pub(crate) fn axes_of(
    tap: &Tap,
    shape: &[usize],
    named: Option<&[Axis]>,
    batches: bool,
) -> Result<Vec<Axis>> {
    let has_batch = shape.len() == tap.axes.len() + 1 && (batches || shape[0] == 1);
    let own = || [Batch].into_iter().filter(|_| has_batch).chain(tap.axes.iter().copied()).collect();
    let axes: Vec<Axis> = named.map_or_else(own, <[Axis]>::to_vec);
    if axes.len() != shape.len() {
        let (given, expected, names) = (shape.len(), axes.len(), names(&axes));
        return refuse(format!(
            "{given} axes were given, expected {expected} ({names}); name others in Options::axes"
        ));
    }
    if let Some(twice) = (1..axes.len()).find(|&at| axes[..at].contains(&axes[at])) {
        return refuse(format!("axis '{}' is named twice", axes[twice].name()));
    }
    let mut used = Vec::new();
    for &axis in tap.axes {
        match axis.made_of(&axes) {
            Some(parts) => used.extend(parts),
            None => return refuse(format!("its axes ({}) lack '{}'", names(&axes), axis.name())),
        }
    }
    let may_come = |axis: Axis, length: usize| length == 1 || axis == Batch && batches;
    for (&axis, &length) in axes.iter().zip(shape) {
        if !used.contains(&axis) && !may_come(axis, length) {
            let (own, tap) = (names(tap.axes), tap.name);
            return refuse(format!("axis '{}' of length {length} is none of {tap} ({own})", axis.name()));
        }
    }
    Ok(axes)
}

fn names(axes: &[Axis]) -> String {
    axes.iter().map(|axis| axis.name()).collect::<Vec<_>>().join(", ")
}
