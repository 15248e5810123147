//! Parts of arrays by what their axes count.

use crate::checkpoint::{Axis, Point};
use crate::view::View;

/// The axis of a tap point that counts something, if it has one.
pub fn axis(point: Point, counts: Axis) -> Option<usize> {
    point.axes().iter().position(|&axis| axis == counts)
}

/// Rows of an axis among zeros: as many in all as `length`.
pub fn among_zeros(view: View<'static>, axis: usize, rows: &[usize], length: usize) -> View<'static> {
    let zeros = |count: usize| {
        let mut shape = view.shape().to_vec();
        shape[axis] = count;
        let values = vec![0.0; shape.iter().product()];
        View::owned(&shape, values)
    };
    let (mut parts, mut next, mut taken) = (Vec::new(), 0, 0);
    for run in rows.chunk_by(|one, following| one + 1 == *following) {
        parts.extend((next < run[0]).then(|| zeros(run[0] - next)));
        parts.push(view.clone().slice(axis, taken..taken + run.len()));
        (next, taken) = (run[0] + run.len(), taken + run.len());
    }
    parts.extend((next < length).then(|| zeros(length - next)));
    View::joined(parts, axis)
}

/// The latest `keys` keys of what has more of them.
pub fn latest_keys<'v>(view: &View<'v>, point: Point, keys: usize) -> View<'v> {
    match axis(point, Axis::Key) {
        Some(axis) => view.clone().slice(axis, view.shape()[axis] - keys..view.shape()[axis]),
        None => view.clone(),
    }
}
