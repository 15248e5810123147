//! Patterns in the wrong values of an operation: rows, heads, channels, and their period.

use std::collections::BTreeSet;

use crate::check::UnexplainedOperation;
use crate::checkpoint::TapAxis;

/// Describes the rows, heads or channels that the wrong values share. `None` if all values are wrong, or no
/// value is.
pub(super) fn of(one: &UnexplainedOperation) -> Option<String> {
    let (shape, wrong) = (one.traced.shape(), one.beyond());
    if wrong.is_empty() || wrong.len() == one.theirs.len() {
        return None;
    }
    let axes = one.site.point.axes();
    let told: Vec<String> = (0..shape.len())
        .filter_map(|axis| {
            let stride: usize = shape[axis + 1..].iter().product();
            let indices: BTreeSet<usize> = wrong.iter().map(|flat| flat / stride % shape[axis]).collect();
            let name = axes.get(axis).map_or("index", |axis| TapAxis::name(*axis));
            (indices.len() < shape[axis]).then(|| format!("{name} {}", series(&indices, shape[axis])))
        })
        .collect();
    let count = format!("{} of {} values are wrong", wrong.len(), one.theirs.len());
    Some(match told.is_empty() {
        true => format!("{count}, spread over every axis"),
        false => format!("{count}: {}", told.join(", ")),
    })
}

/// Formats indices as "5", "4 to 7", "3, 9" or "3 to 27 in steps of 4", or as a count.
fn series(indices: &BTreeSet<usize>, all: usize) -> String {
    let list: Vec<usize> = indices.iter().copied().collect();
    let steps: BTreeSet<usize> = list.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let (first, last) = (list[0], list[list.len() - 1]);
    match (list.len(), steps.first(), steps.len()) {
        (1, ..) => first.to_string(),
        (_, Some(1), 1) => format!("{first} to {last}"),
        (count, Some(step), 1) if count > 3 => format!("{first} to {last} in steps of {step}"),
        (count, ..) if count <= 8 => list.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
        (count, ..) => format!("{first} to {last}, {count} of {all}"),
    }
}
