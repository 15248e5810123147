//! Values per chosen expert, such as expert weights. Engines list the chosen experts in different orders. The
//! values are therefore sorted by expert number.

use crate::checkpoint::{Point, Site};
use crate::dump::Dump;
use crate::dump::layout::to_axes;
use crate::error::{Error, Result};
use crate::measure::ColumnSelection;
use crate::view::View;

/// Error message for values whose experts are not recorded.
pub(crate) const UNKNOWN_EXPERTS: &str = "the dump has no \"experts\" here, so the experts that these values belong to are unknown; record \
        \"experts\"";

/// Returns the site that records the expert numbers for a site.
fn experts_of(site: Site) -> Site {
    Site { point: Point::Experts, ..site }
}

/// Returns true if a dump records the experts of a site.
pub(crate) fn are_known(dump: &Dump, site: Site) -> bool {
    let experts = experts_of(site);
    let is_whole = dump.holds(experts) && dump.held_rows(site).is_none();
    is_whole || (dump.row(experts).is_some() && dump.held_rows(experts) == dump.held_rows(site))
}

/// Returns the values of a site sorted by expert number. Unchanged if the numbers are unknown.
///
/// # Errors
/// If the numbers cannot be read, or cover other tokens or another number of experts.
pub(crate) fn in_order<'v>(dump: &Dump, site: Site, view: View<'v>) -> Result<View<'v>> {
    Ok(match order_of(dump, site, view.shape())? {
        Some(order) => {
            let len = view.len() / order.len();
            view.with_runs(&order, len)
        }
        None => view,
    })
}

/// Returns the order that sorts a dump's entries by expert number. `None` if they are sorted already or the
/// experts are unknown.
///
/// # Errors
/// The errors of [`in_order`].
pub(crate) fn order_of(dump: &Dump, site: Site, shape: &[usize]) -> Result<Option<Vec<usize>>> {
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

/// Returns the inverse of a permutation.
pub(crate) fn inverse(order: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, &from)| inverse[from] = place);
    inverse
}

/// Marks the entries of `[T, k]` that belong to the same expert on both sides. `None` marks all.
#[derive(Default)]
pub(crate) struct CommonExperts(Option<Vec<bool>>);

impl CommonExperts {
    /// Finds the entries with the same expert on both sides.
    pub(crate) fn of(one: &View, other: &View) -> Self {
        let alike: Vec<bool> =
            one.to_vec().iter().zip(other.to_vec()).map(|(one, other)| *one == other).collect();
        Self(alike.contains(&false).then_some(alike))
    }

    /// Returns the columns of a row that belong to common experts.
    pub(crate) fn columns(&self, shape: &[usize], row: usize, columns: ColumnSelection) -> ColumnSelection {
        let is_seen = |alike: &Vec<bool>| match shape {
            // Expert weights are normalized over all chosen experts, so all of a token's experts must agree.
            &[_, used] => alike[row * used..][..used].iter().all(|alike| *alike),
            _ => alike[row],
        };
        if self.0.as_ref().is_none_or(is_seen) { columns } else { ColumnSelection::Range(0..0) }
    }
}
