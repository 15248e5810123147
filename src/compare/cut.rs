//! Parts of arrays, and arrays put together of parts.

use std::ops::Range;

use crate::checkpoint::{Axis, Point};
use crate::dump::Values;

/// The entries `range` along `axis`.
pub fn slice(values: &Values, axis: usize, range: Range<usize>) -> Values {
    let inner: usize = values.shape[axis + 1..].iter().product();
    let block = values.shape[axis] * inner;
    let picked =
        values.data.chunks(block.max(1)).flat_map(|block| &block[range.start * inner..range.end * inner]);
    let mut shape = values.shape.clone();
    shape[axis] = range.len();
    Values { data: picked.copied().collect(), shape }
}

/// Parts put behind each other along `axis`.
pub fn joined(parts: &[Values], axis: usize) -> Values {
    let mut shape = parts[0].shape.clone();
    shape[axis] = parts.iter().map(|part| part.shape[axis]).sum();
    let outer: usize = shape[..axis].iter().product();
    let rows = (0..outer).flat_map(|block| parts.iter().map(move |part| (block, part)));
    let data = rows.flat_map(|(block, part)| {
        let len = part.data.len() / outer;
        &part.data[block * len..][..len]
    });
    Values { data: data.copied().collect(), shape }
}

/// `[H, T, S]` cut or filled up to `keys` keys; what is filled is in the future and never compared.
pub fn with_keys(values: &Values, keys: usize) -> Values {
    let &[heads, tokens, found] = values.shape.as_slice() else { unreachable!("the caller has three axes") };
    let fill = std::iter::repeat_n(0.0, keys.saturating_sub(found));
    let rows = values.data.chunks(found);
    let data = rows.flat_map(|row| row[..found.min(keys)].iter().copied().chain(fill.clone()));
    Values { data: data.collect(), shape: vec![heads, tokens, keys] }
}

/// The axis of a tap point that counts something, if it has one.
pub fn axis(point: Point, counts: Axis) -> Option<usize> {
    point.axes().iter().position(|&axis| axis == counts)
}

/// The latest `keys` keys of what has more of them.
pub fn latest_keys(values: &Values, point: Point, keys: usize) -> Values {
    match axis(point, Axis::Key) {
        Some(axis) => slice(values, axis, values.shape[axis] - keys..values.shape[axis]),
        None => values.clone(),
    }
}
