//! Parts of arrays by what their axes count.

use crate::checkpoint::{Axis, Point};
use crate::view::View;

/// The axis of a tap point that counts something, if it has one.
pub fn axis(point: Point, counts: Axis) -> Option<usize> {
    point.axes().iter().position(|&axis| axis == counts)
}

/// The latest `keys` keys of what has more of them.
pub fn latest_keys<'v>(view: &View<'v>, point: Point, keys: usize) -> View<'v> {
    match axis(point, Axis::Key) {
        Some(axis) => view.clone().slice(axis, view.shape()[axis] - keys..view.shape()[axis]),
        None => view.clone(),
    }
}
