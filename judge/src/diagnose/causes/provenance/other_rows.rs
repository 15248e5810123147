//! Rows of recorded taps with several operations before them, such as logits alone: rows that are swapped, repeated
//! from another pass, or taken from another sequence.

use std::collections::BTreeSet;

use crate::change::CauseKind;
use crate::checkpoint::{Point, Site, TapAxis};
use crate::diagnose::causes::operation_search::SearchContext;
use crate::diagnose::causes::provenance::description::{RowSpan, described};
use crate::diagnose::causes::provenance::known_rows::{KnownRows, RowPlace};
use crate::diagnose::causes::provenance::{CACHES, relative};
use crate::error::Result;
use crate::verdict::{Cause, CauseSearch, SiteResult};

/// Largest relative error of a row that matches, if the noise floor is smaller.
const NEAR: f64 = 0.01;

/// Largest relative error of a row that matches, in any type.
const FAR: f64 = 0.1;

/// The matching row is nearer than any other row by at least this factor.
const CLEARLY: f64 = 4.0;

/// Finds the origins of all wrong rows among the rows of the same taps. `None` if a wrong row has none.
///
/// # Errors
/// The errors of a run of the model.
pub(in crate::diagnose::causes) fn of_other_rows(
    search: &SearchContext,
    coarse: &[&SiteResult],
) -> Result<Option<Cause>> {
    let of_tokens = |site: Site| {
        let axes = site.point.axes();
        axes.first() == Some(&TapAxis::Token) && axes.len() == 2 && !CACHES.contains(&site.point)
    };
    let points: BTreeSet<Point> = coarse.iter().map(|row| row.site.point).collect();
    if search.deadline.is_over() || coarse.is_empty() || !coarse.iter().all(|row| of_tokens(row.site)) {
        return Ok(None);
    }
    let known = KnownRows::computed(search, &points.into_iter().collect::<Vec<_>>())?;
    let mut spans: Vec<RowSpan> = Vec::new();
    for row in coarse {
        match wrong_rows(search, row, &known)? {
            Some(found) => spans.extend(found),
            None => return Ok(None),
        }
    }
    let sites: Vec<Site> = coarse.iter().map(|row| row.site).collect();
    let kind = CauseKind::RowSource;
    let what = format!("{kind}: {}", described(search, &RowSpan::joined(spans), &sites));
    Ok(Some(Cause::described(CauseSearch::Parts, kind, sites, what)))
}

/// Returns the wrong rows of a site with their origins; `None` if there is no wrong row, or a row has no clear origin.
fn wrong_rows(search: &SearchContext, row: &SiteResult, known: &KnownRows) -> Result<Option<Vec<RowSpan>>> {
    let (held, site) = (search.context.held, row.site);
    let is_whole = held.dump.held_rows(site).is_none();
    let Some(values) = held.values(site, None)?.filter(|_| is_whole) else { return Ok(None) };
    let (width, values) = (values.width(), values.to_vec());
    let floor = row.floor.or(row.accumulated_floor).map_or(0.0, |floor| floor.rel_l2);
    let near = (3.0 * floor).clamp(NEAR, FAR);
    let mut spans = Vec::new();
    for (index, theirs) in values.chunks(width).enumerate() {
        let position = row.positions.start + index;
        let is_own = |place: &RowPlace| {
            place.sequence.is_none() && place.layer == site.layer && place.position == position
        };
        let all = known.distances(site, theirs);
        let own = all.iter().find(|(place, _)| is_own(place)).map_or(f64::INFINITY, |(_, off)| *off);
        if own <= near {
            continue;
        }
        let Some((place, best)) = all.iter().min_by(|a, b| a.1.total_cmp(&b.1)) else { return Ok(None) };
        let is_clear =
            |(other, off): &(RowPlace, f64)| other == place || *off > CLEARLY * best.max(near / CLEARLY);
        if is_own(place) || *best > near || !all.iter().all(is_clear) {
            return Ok(None);
        }
        spans.push(RowSpan::new(site.pass.unwrap_or(0), position, relative(place, site), Vec::new()));
    }
    Ok(Some(spans).filter(|spans| !spans.is_empty()))
}
