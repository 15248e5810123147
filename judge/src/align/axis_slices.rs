//! Slices of arrays along an axis with a given meaning, such as tokens or keys, and differences in its length.

use crate::checkpoint::{Point, TapAxis};
use crate::view::View;

/// Returns the index of the tap's axis with this meaning, if it has one.
pub(crate) fn axis(point: Point, counts: TapAxis) -> Option<usize> {
    point.axes().iter().position(|&axis| axis == counts)
}

/// Returns `others` with the entries at these indices of an axis replaced by those of `view`.
pub(crate) fn among<'v>(others: &View<'v>, view: &View<'v>, axis: usize, indices: &[usize]) -> View<'v> {
    let (mut parts, mut next, mut taken) = (Vec::new(), 0, 0);
    for run in indices.chunk_by(|one, following| one + 1 == *following) {
        parts.extend((next < run[0]).then(|| others.clone().slice(axis, next..run[0])));
        parts.push(view.clone().slice(axis, taken..taken + run.len()));
        (next, taken) = (run[0] + run.len(), taken + run.len());
    }
    let length = others.shape()[axis];
    parts.extend((next < length).then(|| others.clone().slice(axis, next..length)));
    View::joined(parts, axis)
}

/// Returns the latest `keys` keys of a longer array.
pub(crate) fn latest_keys<'v>(view: &View<'v>, point: Point, keys: usize) -> View<'v> {
    match axis(point, TapAxis::Key) {
        Some(axis) => view.clone().slice(axis, view.shape()[axis] - keys..view.shape()[axis]),
        None => view.clone(),
    }
}

/// Returns `own` with its latest keys replaced by `view`, or `view` if the shapes agree.
pub(crate) fn with_latest<'v>(own: &View<'v>, point: Point, view: &View<'v>) -> View<'v> {
    let Some(along) = axis(point, TapAxis::Key).filter(|_| own.shape() != view.shape()) else {
        return view.clone();
    };
    let kept = own.shape()[along] - view.shape()[along];
    View::joined(vec![own.clone().slice(along, 0..kept), view.clone()], along)
}

/// Removes keys after the latest position, the padding of a fixed-size cache. Keys are removed only from
/// attention scores, or if all their values are zero.
pub(crate) fn without_padding<'v>(point: Point, own: &View, dumped: View<'v>) -> View<'v> {
    let Some(along) = axis(point, TapAxis::Key).filter(|_| own.shape().len() == dumped.shape().len()) else {
        return dumped;
    };
    let (keys, all) = (own.shape()[along], dumped.shape()[along]);
    let is_nothing = |part: View| part.to_vec().iter().all(|&value| value == 0.0);
    let is_padded =
        keys < all && (point == Point::AttnScores || is_nothing(dumped.clone().slice(along, keys..all)));
    if is_padded { dumped.slice(along, 0..keys) } else { dumped }
}

/// The difference between the shapes of a tap on two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShapeDifference {
    /// Equal shapes.
    None,
    /// Different numbers of keys, a finding about the cache. `is_alone` is true if all other axes agree.
    Keys { numbers: [usize; 2], is_alone: bool },
    /// Different numbers of chosen experts per token.
    Experts([usize; 2]),
    /// Shapes of different models.
    Model,
}

impl ShapeDifference {
    /// Finds the difference between two shapes of a tap.
    pub(crate) fn of(point: Point, one: &[usize], other: &[usize]) -> Self {
        if one == other {
            return Self::None;
        }
        let without = |shape: &[usize], axis: usize| {
            [&shape[..axis.min(shape.len())], &shape[shape.len().min(axis + 1)..]].concat()
        };
        let is_alone = |axis| one.len() == other.len() && without(one, axis) == without(other, axis);
        if let Some(keys) = axis(point, TapAxis::Key).filter(|_| one.len() == other.len())
            && one[keys] != other[keys]
        {
            return Self::Keys { numbers: [one[keys], other[keys]], is_alone: is_alone(keys) };
        }
        match axis(point, TapAxis::Chosen).filter(|&chosen| is_alone(chosen)) {
            Some(chosen) => Self::Experts([one[chosen], other[chosen]]),
            None => Self::Model,
        }
    }
}
