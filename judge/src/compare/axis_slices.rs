//! Parts of arrays by what their axes count.

use crate::checkpoint::{Point, TapAxis};
use crate::view::View;

/// The axis of a tap point that counts something, if it has one.
pub fn axis(point: Point, counts: TapAxis) -> Option<usize> {
    point.axes().iter().position(|&axis| axis == counts)
}

/// Returns `others` with the entries of `view` at these indices along an axis.
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

/// The latest `keys` keys of what has more of them.
pub fn latest_keys<'v>(view: &View<'v>, point: Point, keys: usize) -> View<'v> {
    match axis(point, TapAxis::Key) {
        Some(axis) => view.clone().slice(axis, view.shape()[axis] - keys..view.shape()[axis]),
        None => view.clone(),
    }
}
