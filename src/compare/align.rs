//! Bringing an array of a dump into the canonical layout: the tap point's own axes, and one pairing of RoPE.

use crate::checkpoint::{Axis, Point, Site};
use crate::dump::{Dump, Values};
use crate::error::{Error, Result};
use crate::tensor::RopePairing;

/// How the heads of q and k lie in a dump, and how they are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// As the manifest says, or as its values have shown.
    pub found: Option<RopePairing>,
    /// As the other side has them; `None` for a model without RoPE.
    pub wanted: Option<RopePairing>,
}

/// Why q and k cannot be compared.
pub const UNKNOWN_PAIRING: &str = "the manifest lacks layout.rope_pairing (\"half\" or \"interleaved\"), without which heads cannot be aligned";

impl Heads {
    /// As the dump has them.
    pub const AS_THEY_ARE: Self = Self { found: None, wanted: None };
}

/// The values of a place with canonical axes and heads as wanted; `None` if the dump does not hold it.
///
/// # Errors
/// If the array cannot be read, has other axes, or follows a pairing that the manifest does not name.
pub fn aligned(dump: &Dump, site: Site, heads: Heads) -> Result<Option<Values>> {
    let (Some(values), Some(row)) = (dump.read(site)?, dump.row(site)) else { return Ok(None) };
    let refuse = |problem: String| Error::dump(&dump.path, format!("{}: {problem}", row.file));
    let axes = row.axes().map_err(refuse)?;
    let values = to_axes(values, &axes, site.point.axes()).map_err(refuse)?;
    match heads.wanted.filter(|_| site.point.follows_rope_pairing()) {
        None => Ok(Some(values)),
        Some(wanted) => {
            let found = heads.found.ok_or_else(|| refuse(UNKNOWN_PAIRING.into()))?;
            Ok(Some(repaired(values, found, wanted)))
        }
    }
}

/// The pairing by which values are those of the other side; `None` where they do not tell. A wrong one gives values that
/// have nothing to do with each other. `rel_l2` is the relative error by a pairing.
///
/// Values taken before RoPE tell more than the manifest, since there the pairing is a mere order. Those after it are
/// listened to only where the manifest is silent.
pub fn shown_pairing(
    point: Point,
    declared: Option<RopePairing>,
    rel_l2: impl Fn(RopePairing) -> Result<f64>,
) -> Result<Option<RopePairing>> {
    use Point::*;
    /// Of two pairings one is right and the other gives an error as large as the values.
    const UNRELATED: f64 = 0.1;
    let before_rope = matches!(point, Q | K | QNorm | KNorm);
    let first = match declared {
        Some(declared) if before_rope => declared,
        None if point.follows_rope_pairing() => RopePairing::Half,
        _ => return Ok(None),
    };
    let (error, other) = (rel_l2(first)?, first.other());
    if declared.is_some() && error <= UNRELATED {
        return Ok(declared);
    }
    let others = rel_l2(other)?;
    Ok(match (others < UNRELATED * error, error < UNRELATED * others) {
        (true, _) => Some(other),
        (_, true) => Some(first),
        _ => None,
    })
}

/// Permutes the axes of `values` from `found` to `wanted`; axes of length 1 may come or go.
fn to_axes(values: Values, found: &[Axis], wanted: &[Axis]) -> Result<Values, String> {
    if found == wanted {
        return Ok(values);
    }
    let position = |axis: &Axis| found.iter().position(|known| known == axis);
    let order: Option<Vec<usize>> = wanted.iter().map(position).collect();
    let extra =
        found.iter().zip(&values.shape).find(|(axis, length)| !wanted.contains(axis) && **length != 1);
    match (order, extra) {
        (Some(order), None) => Ok(permuted(&values, &order)),
        (None, _) => Err(format!("its axes {} lack one of {}", names(found), names(wanted))),
        (_, Some((axis, length))) => {
            Err(format!("its axis '{}' of length {length} cannot be left out", axis.name()))
        }
    }
}

fn names(axes: &[Axis]) -> String {
    let names: Vec<_> = axes.iter().map(|axis| axis.name()).collect();
    format!("[{}]", names.join(", "))
}

/// Axis `i` of the result is axis `order[i]` of `values`; axes that `order` leaves out have length 1.
fn permuted(values: &Values, order: &[usize]) -> Values {
    let mut strides = vec![1; values.shape.len()];
    for axis in (1..values.shape.len()).rev() {
        strides[axis - 1] = strides[axis] * values.shape[axis];
    }
    let shape: Vec<usize> = order.iter().map(|&axis| values.shape[axis]).collect();
    let data = (0..values.data.len()).map(|flat| {
        let mut rest = flat;
        let along = order.iter().zip(&shape).rev().map(|(&axis, &length)| {
            let index = rest % length;
            rest /= length;
            index * strides[axis]
        });
        values.data[along.sum::<usize>()]
    });
    Values { data: data.collect(), shape }
}

/// Moves the two values of each pair from where `found` has them to where `wanted` has them.
fn repaired(mut values: Values, found: RopePairing, wanted: RopePairing) -> Values {
    let head_dim = values.shape.last().copied().unwrap_or(0);
    if found == wanted || head_dim < 2 {
        return values;
    }
    for head in values.data.chunks_exact_mut(head_dim) {
        let before = head.to_vec();
        for pair in 0..head_dim / 2 {
            let (from, to) = (found.members(pair, head_dim), wanted.members(pair, head_dim));
            head[to.0] = before[from.0];
            head[to.1] = before[from.1];
        }
    }
    values
}
