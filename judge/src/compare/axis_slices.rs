//! Slices of arrays along an axis with a given meaning, such as tokens or keys.

use crate::checkpoint::{Point, TapAxis};
use crate::view::View;

/// Returns the index of the tap's axis with this meaning, if it has one.
pub fn axis(point: Point, counts: TapAxis) -> Option<usize> {
    point.axes().iter().position(|&axis| axis == counts)
}

/// Returns `others` with the entries at these indices of an axis replaced by those of `view`.
pub fn among<'v>(others: &View<'v>, view: &View<'v>, axis: usize, indices: &[usize]) -> View<'v> {
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
pub fn latest_keys<'v>(view: &View<'v>, point: Point, keys: usize) -> View<'v> {
    match axis(point, TapAxis::Key) {
        Some(axis) => view.clone().slice(axis, view.shape()[axis] - keys..view.shape()[axis]),
        None => view.clone(),
    }
}
