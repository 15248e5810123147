//! Converts the axes of arrays to the order that a tap has.

use crate::checkpoint::TapAxis;
use crate::view::View;

/// Axes that together may replace a single axis, in this order.
const PARTS: &[(TapAxis, &[&[TapAxis]])] = &[
    (TapAxis::Head, &[&[TapAxis::KvHead, TapAxis::Group]]),
    (
        TapAxis::Hidden,
        &[&[TapAxis::Head, TapAxis::HeadDim], &[TapAxis::KvHead, TapAxis::Group, TapAxis::HeadDim]],
    ),
];

/// Returns the indices of the found axes that together form the axis `wanted`.
fn made_of(wanted: TapAxis, found: &[TapAxis]) -> Option<Vec<usize>> {
    let position = |axis: &TapAxis| found.iter().position(|known| known == axis);
    let parts = PARTS.iter().filter(|(axis, _)| *axis == wanted).flat_map(|(_, parts)| parts.iter().copied());
    std::iter::once([wanted].as_slice())
        .chain(parts)
        .find_map(|axes| axes.iter().map(position).collect::<Option<Vec<usize>>>())
}

/// Returns the lengths of the `wanted` axes in an array with the axes `found`. `None` if an axis is missing.
pub(super) fn lengths(shape: &[usize], found: &[TapAxis], wanted: &[TapAxis]) -> Option<Vec<usize>> {
    let length = |axes: Vec<usize>| axes.into_iter().map(|axis| shape[axis]).product();
    wanted.iter().map(|&axis| made_of(axis, found).map(length)).collect()
}

/// Converts a view with axes `found` to axes `wanted`: permutes axes, and merges several into one if needed.
/// Axes of length 1 may be added or removed.
///
/// # Errors
/// If an axis is missing, or an extra axis is longer than 1.
pub fn to_axes<'v>(view: View<'v>, found: &[TapAxis], wanted: &[TapAxis]) -> Result<View<'v>, String> {
    if found == wanted {
        return Ok(view);
    }
    let Some(groups) = wanted.iter().map(|&axis| made_of(axis, found)).collect::<Option<Vec<_>>>() else {
        return Err(format!("axes {} lack some of {}", names(found), names(wanted)));
    };
    let order = groups.concat();
    let extra = (0..found.len()).find(|axis| !order.contains(axis) && view.shape()[*axis] != 1);
    if let Some(axis) = extra {
        let (name, length) = (found[axis].name(), view.shape()[axis]);
        return Err(format!(
            "unexpected axis '{name}' of length {length}; only an axis of length 1 can be \
            dropped"
        ));
    }
    let mut view = view.permuted(&order);
    let mut end = order.len();
    for group in groups.iter().rev() {
        for axis in (end - group.len()..end - 1).rev() {
            view = view.merged(axis);
        }
        end -= group.len();
    }
    Ok(view)
}

fn names(axes: &[TapAxis]) -> String {
    format!("[{}]", TapAxis::names(axes.iter().copied()).join(", "))
}
