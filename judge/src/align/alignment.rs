//! Converts an array of a dump to the canonical layout: the tap's own axes and one RoPE pairing.

use crate::align::expert_slots::{self, UNKNOWN_EXPERTS};
use crate::checkpoint::{Point, Site};
use crate::dump::Dump;
use crate::dump::layout::to_axes;
use crate::error::{Error, Result};
use crate::tensor::RopePairing;
use crate::view::View;

/// Error message for q and k if the manifest does not state the order of heads.
pub(crate) const UNKNOWN_PAIRING: &str = "the manifest has no layout.rope_pairing, which aligning the heads \
    requires; set it to \"half\" or \"interleaved\"";

/// Returns the error message for a tap whose order of heads or experts is unknown.
pub(crate) fn unaligned(point: Point) -> String {
    if point.is_of_chosen() { UNKNOWN_EXPERTS.to_owned() } else { UNKNOWN_PAIRING.to_owned() }
}

/// Returns the values of a site with canonical axes. `None` if not recorded.
///
/// # Errors
/// If the array cannot be read or has other axes.
pub fn aligned(dump: &Dump, site: Site) -> Result<Option<View<'static>>> {
    in_pairing(dump, site, None, None)
}

/// Returns the values of a site with canonical axes, with q and k heads reordered from the dump's pairing `found` to
/// `wanted`. `None` if not recorded.
///
/// # Errors
/// If the array cannot be read, has other axes, or its RoPE pairing is unknown.
pub(crate) fn in_pairing(
    dump: &Dump,
    site: Site,
    found: Option<RopePairing>,
    wanted: Option<RopePairing>,
) -> Result<Option<View<'static>>> {
    let (Some(view), Some(row)) = (dump.view(site)?, dump.row(site)) else { return Ok(None) };
    let refuse = |problem: String| Error::dump(&dump.path, format!("{}: {problem}", row.file));
    let axes = row.axes().map_err(refuse)?;
    let view = to_axes(view, &axes, site.point.axes()).map_err(refuse)?;
    if site.point.is_of_chosen() {
        return expert_slots::in_order(dump, site, view).map(Some);
    }
    match wanted.filter(|_| site.point.follows_rope_pairing()) {
        None => Ok(Some(view)),
        Some(wanted) => {
            let found = found.ok_or_else(|| refuse(UNKNOWN_PAIRING.into()))?;
            Ok(Some(repaired(view, found, wanted)))
        }
    }
}

/// Finds the RoPE pairing for which the values of both sides agree. `None` if the values do not show a pairing.
/// `rel_l2` returns the relative error under a pairing; with the wrong pairing, it is about as large as the
/// values.
///
/// Values before RoPE overrule the manifest, since the pairing only reorders them. Values after RoPE are used
/// only if the manifest states no pairing.
pub(crate) fn shown_pairing(
    point: Point,
    declared: Option<RopePairing>,
    rel_l2: impl Fn(RopePairing) -> Result<f64>,
) -> Result<Option<RopePairing>> {
    use Point::*;
    /// Error above which values count as unrelated. With the wrong pairing, the error is as large as the
    /// values.
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

/// Reorders the two values of each rotated pair from the pairing `found` to `wanted`.
pub(crate) fn repaired<'v>(view: View<'v>, found: RopePairing, wanted: RopePairing) -> View<'v> {
    let head_dim = view.width();
    if found == wanted || head_dim < 2 {
        return view;
    }
    let mut order: Vec<usize> = (0..head_dim).collect();
    for pair in 0..head_dim / 2 {
        let (from, to) = (found.members(pair, head_dim), wanted.members(pair, head_dim));
        order[to.0] = from.0;
        order[to.1] = from.1;
    }
    view.reordered(&order)
}
