//! Experts that tokens have chosen. Engines tell the same ones in different orders: whatever has an entry for each is read in
//! the order of their numbers.

use std::collections::HashSet;

use crate::checkpoint::{Point, Site};
use crate::dump::Dump;
use crate::dump::layout::to_axes;
use crate::error::{Error, Result};
use crate::measure::{ColumnSelection, Measurement, measure_placed};
use crate::view::View;

/// Message for values of unknown experts.
pub const UNKNOWN_EXPERTS: &str = "the dump has no \"experts\" here, so the experts that these values belong to are unknown; record \
        \"experts\"";

/// Returns the site with the expert numbers of a site.
fn experts_of(site: Site) -> Site {
    Site { point: Point::Experts, ..site }
}

/// Returns true if a dump records the experts that a site belongs to.
pub fn are_known(dump: &Dump, site: Site) -> bool {
    let experts = experts_of(site);
    let is_whole = dump.holds(experts) && dump.held_rows(site).is_none();
    is_whole || (dump.row(experts).is_some() && dump.held_rows(experts) == dump.held_rows(site))
}

/// Returns the values of a site in the order of expert numbers; unchanged if these are unknown.
///
/// # Errors
/// If the numbers cannot be read, or are of other tokens or another number of experts.
pub fn in_order<'v>(dump: &Dump, site: Site, view: View<'v>) -> Result<View<'v>> {
    Ok(match order_of(dump, site, view.shape())? {
        Some(order) => {
            let len = view.len() / order.len();
            view.with_runs(&order, len)
        }
        None => view,
    })
}

/// Returns the order of a dump's entries by expert; `None` if they are in order or their experts are unknown.
///
/// # Errors
/// The errors of [`in_order`].
pub fn order_of(dump: &Dump, site: Site, shape: &[usize]) -> Result<Option<Vec<usize>>> {
    if !are_known(dump, site) {
        return Ok(None);
    }
    let (Some(numbers), Some(axes)) = (dump.view(experts_of(site))?, dump.axes(experts_of(site))) else {
        return Ok(None);
    };
    let refuse = |problem: String| Error::dump(&dump.path, format!("{}: {problem}", experts_of(site)));
    let numbers = to_axes(numbers, &axes, Point::Experts.axes()).map_err(refuse)?;
    if !shape.starts_with(numbers.shape()) {
        let problem = format!("shape {:?} does not fit {} of shape {shape:?}", numbers.shape(), site.point);
        return Err(refuse(problem));
    }
    let (listed, used) = (numbers.to_vec(), numbers.width());
    let mut order: Vec<usize> = (0..listed.len()).collect();
    order
        .chunks_mut(used.max(1))
        .for_each(|of_token| of_token.sort_by(|&a, &b| listed[a].total_cmp(&listed[b])));
    Ok((!order.is_sorted()).then_some(order))
}

/// The order that undoes another.
pub fn inverse(order: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, &from)| inverse[from] = place);
    inverse
}

/// Compares the experts that tokens have chosen, in these rows: which they are, in whatever order.
pub fn measure_experts(candidate: &View, reference: &View, rows: &[usize]) -> Measurement {
    let (mut ours, mut theirs, mut places) = (Vec::new(), Vec::new(), Vec::new());
    let used = reference.width();
    let [one, other] = [candidate, reference].map(View::to_vec);
    for &row in rows {
        let [one, other] = [&one, &other].map(|all| &all[row * used..][..used]);
        let [ones, known] =
            [one, other].map(|row| row.iter().map(|number| number.to_bits()).collect::<HashSet<_>>());
        let mut others = other.iter().filter(|number| !ones.contains(&number.to_bits()));
        let in_place = |number: &f64| match known.contains(&number.to_bits()) {
            true => *number,
            false => *others.next().unwrap_or(number),
        };
        theirs.extend(one.iter().map(in_place));
        ours.extend(one);
        places.extend((0..used).map(|slot| [row, slot]));
    }
    measure_placed(&ours, &theirs, &places)
}

/// The entries of `[T, k]` that belong to the same expert on both sides; all if unknown.
#[derive(Default)]
pub struct CommonExperts(Option<Vec<bool>>);

impl CommonExperts {
    /// Finds the experts that both sides have chosen.
    pub fn of(one: &View, other: &View) -> Self {
        let alike: Vec<bool> =
            one.to_vec().iter().zip(other.to_vec()).map(|(one, other)| *one == other).collect();
        Self(alike.contains(&false).then_some(alike))
    }

    /// Returns the common columns of a row.
    pub fn columns(&self, shape: &[usize], row: usize, columns: ColumnSelection) -> ColumnSelection {
        let is_seen = |alike: &Vec<bool>| match shape {
            // Weights are divided by the sum of all.
            &[_, used] => alike[row * used..][..used].iter().all(|alike| *alike),
            _ => alike[row],
        };
        if self.0.as_ref().is_none_or(is_seen) { columns } else { ColumnSelection::Range(0..0) }
    }
}
