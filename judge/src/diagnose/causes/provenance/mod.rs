//! Provenance of wrong rows: where the content of a wrong row comes from. Rows of a wrong cache are looked up among
//! all rows of keys and values that the run computes. Rows of other taps are looked up among the rows of their own
//! tap.
//!
//! The same mistake usually affects keys and values in all layers. It counts as one cause if all rows have the same
//! provenance.

mod description;
mod hypotheses;
mod known_rows;
mod other_rows;

use std::collections::{BTreeMap, BTreeSet};

pub(super) use hypotheses::{of_blocks, onset};
pub(super) use other_rows::of_other_rows;

use crate::change::CauseKind;
use crate::check::UnexplainedOperation;
use crate::checkpoint::{Point, Site, TapAxis};
use crate::diagnose::causes::operation_search::SearchContext;
use crate::diagnose::causes::provenance::description::{RowSpan, described};
use crate::diagnose::causes::provenance::known_rows::{KnownRows, RowPlace};
use crate::error::Result;
use crate::tensor::Tensor;
use crate::verdict::{Cause, CauseSearch};

/// Taps of the cache.
const CACHES: [Point; 2] = [Point::KCache, Point::VCache];

/// Taps whose rows may be in the cache.
const SOURCES: [Point; 5] = [Point::K, Point::V, Point::KNorm, Point::KCache, Point::VCache];

/// A row with at least this cosine to the correct row was scaled or rounded, not replaced.
const SCALED: f64 = 0.97;

/// Provenance of a row of the cache, relative to the row's own tap and layer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RowOrigin {
    /// The row of another layer, pass, position or sequence.
    Place {
        /// Sequence that the row comes from; `None` for the sequence that it belongs to.
        sequence: Option<String>,
        /// Tap of the row, if it is not the cache's own.
        tap: Option<Point>,
        /// Layer that the row comes from, if it is not the layer that the row belongs to.
        layer: Option<usize>,
        /// Pass that computed the row, if it is not the pass that the row belongs to. Rows of a cache belong to any pass.
        pass: Option<usize>,
        /// Position that the row comes from.
        position: usize,
    },
    /// The row is no known row of the run.
    Unknown,
    /// A row of zeros, which was never written or was cleared.
    Zero,
}

/// Wrong rows of one cache.
struct WrongRows<'o> {
    one: &'o UnexplainedOperation,
    /// Position of the first row of the pass.
    start: usize,
    /// Number of positions before the first row of the cache.
    dropped: usize,
    /// Wrong rows with their possible origins.
    rows: BTreeMap<usize, BTreeSet<RowOrigin>>,
}

/// Explains rows of caches and other taps that no change of the catalogue explains. Returns the causes; their sites
/// are removed from the unexplained causes.
///
/// # Errors
/// The errors of a run of the model.
pub(super) fn of_rows(
    search: &SearchContext,
    open: &[&UnexplainedOperation],
    causes: Vec<Cause>,
) -> Result<Vec<Cause>> {
    let causes = of_taps(search, open, causes, &CACHES)?;
    let points: BTreeSet<Point> = open.iter().map(|one| one.site.point).collect();
    let has_tokens = |point: &Point| point.axes().first() == Some(&TapAxis::Token) && point.axes().len() > 1;
    let mut others = points.into_iter().filter(|point| has_tokens(point) && !CACHES.contains(point));
    others.try_fold(causes, |causes, point| of_taps(search, open, causes, &[point]))
}

/// Explains rows of taps that have one provenance.
fn of_taps(
    search: &SearchContext,
    open: &[&UnexplainedOperation],
    mut causes: Vec<Cause>,
    taps: &[Point],
) -> Result<Vec<Cause>> {
    let is_unnamed =
        |site: &Site| causes.iter().any(|cause| cause.is_nothing() && cause.sites.contains(site));
    let lost: Vec<&UnexplainedOperation> =
        open.iter().copied().filter(|one| taps.contains(&one.site.point) && is_unnamed(&one.site)).collect();
    if lost.is_empty() || search.deadline.is_over() {
        return Ok(causes);
    }
    let is_cache = taps == CACHES;
    let known = KnownRows::of(search, if is_cache { &SOURCES } else { taps })?;
    let wrong: Vec<WrongRows> = lost.iter().map(|one| WrongRows::of(search, one, &known)).collect();
    let Some(spans) = common_origins(&wrong) else { return Ok(causes) };
    if !wrong.iter().all(|cache| cache.is_explained(search, &known, &spans)) {
        return Ok(causes);
    }
    let sites: Vec<Site> = wrong.iter().map(|cache| cache.one.site).collect();
    for cause in causes.iter_mut().filter(|cause| cause.is_nothing()) {
        cause.sites.retain(|site| !sites.contains(site));
    }
    causes.retain(|cause| !cause.sites.is_empty());
    let kind = if is_cache { CauseKind::CacheRow } else { CauseKind::RowSource };
    let what = format!("{kind}: {}", described(search, &spans, &sites));
    causes.push(Cause::described(CauseSearch::Stages, kind, sites, what));
    Ok(causes)
}

impl<'o> WrongRows<'o> {
    fn of(search: &SearchContext, one: &'o UnexplainedOperation, known: &KnownRows) -> Self {
        let positions = search.context.held.positions(one.site);
        let width = one.traced.row_len();
        let wrong: BTreeSet<usize> = one.beyond().into_iter().map(|flat| flat / width).collect();
        let dropped = match is_cache(one.site) {
            true => positions.end.saturating_sub(one.traced.rows()),
            false => positions.start,
        };
        let rows = wrong.into_iter().map(|row| (row, origins(one, row, dropped, known))).collect();
        Self { one, start: positions.start, dropped, rows }
    }

    /// Returns true if rows with these origins explain every value of the cache. Wrong rows without an origin in the
    /// run must belong to earlier passes, and be at most half of their rows.
    fn is_explained(&self, search: &SearchContext, known: &KnownRows, spans: &[RowSpan]) -> bool {
        let pass = self.one.site.pass.unwrap_or(0);
        let origin = |row: &usize| {
            let position = row + self.dropped;
            spans.iter().find_map(|span| span.origin(pass, position))
        };
        let all: Option<Vec<(usize, RowOrigin)>> =
            self.rows.keys().map(|row| Some((*row, origin(row)?))).collect();
        let Some(all) = all else { return false };
        let lost = all.iter().filter(|(_, origin)| !matches!(origin, RowOrigin::Place { .. }));
        let lost: Vec<usize> = lost.map(|(row, _)| *row).collect();
        let earlier = self.start.saturating_sub(self.dropped);
        let is_overwritten = |row: &usize| *row < earlier && self.is_foreign(*row);
        if 2 * lost.len() > earlier || !lost.iter().all(is_overwritten) {
            return false;
        }
        self.with_rows(search, known, &all).is_some_and(|computed| {
            let theirs = UnexplainedOperation { theirs: self.without(&lost), ..self.one.clone() };
            let judged = theirs.judge(&computed, search.context.may_differ);
            judged.is_some_and(|judged| judged.dump.is_explained())
        })
    }

    /// Returns the dump's values, with these rows replaced by the correct ones.
    fn without(&self, rows: &[usize]) -> Vec<f64> {
        let width = self.one.traced.row_len();
        let mut theirs = self.one.theirs.clone();
        for &row in rows {
            let own = self.one.traced.row(row).iter().map(|&value| f64::from(value));
            theirs[row * width..][..width].iter_mut().zip(own).for_each(|(theirs, own)| *theirs = own);
        }
        theirs
    }

    /// Returns true if nearly all values of a row are wrong, and the row is not the correct row times a factor.
    fn is_foreign(&self, row: usize) -> bool {
        let width = self.one.traced.row_len();
        let theirs = &self.one.theirs[row * width..][..width];
        let own = self.one.traced.row(row);
        let (mut dot, mut sizes, mut equal) = (0.0, [0.0, 0.0], 0);
        for (&own, &theirs) in own.iter().zip(theirs) {
            let own = f64::from(own);
            dot += own * theirs;
            sizes = [sizes[0] + own * own, sizes[1] + theirs * theirs];
            equal += usize::from(own == theirs);
        }
        let cosine = dot / (sizes[0] * sizes[1]).sqrt().max(f64::MIN_POSITIVE);
        8 * equal <= width && cosine.abs() < SCALED
    }

    /// Returns the cache with the rows of these origins.
    fn with_rows(
        &self,
        search: &SearchContext,
        known: &KnownRows,
        rows: &[(usize, RowOrigin)],
    ) -> Option<Tensor> {
        let own = &self.one.traced;
        let mut tensors = vec![own];
        let mut from: Vec<(usize, usize)> = (0..own.rows()).map(|row| (0, row)).collect();
        for (row, origin) in rows {
            let RowOrigin::Place { .. } = origin else { continue };
            let (tensor, index) = known.row(&self.place(*row, origin, known)?)?;
            from[*row] = (tensors.len(), index);
            tensors.push(tensor);
        }
        let width = own.row_len();
        Some(search.traced.gathered(&tensors, own.shape(), |flat| {
            let (tensor, row) = from[flat / width];
            (tensor, row * width + flat % width)
        }))
    }

    /// Returns a known place of an origin that matches a row.
    fn place(&self, row: usize, origin: &RowOrigin, known: &KnownRows) -> Option<RowPlace> {
        let width = self.one.traced.row_len();
        let theirs = &self.one.theirs[row * width..][..width];
        known.places(theirs).into_iter().find(|place| relative(place, self.one.site) == *origin)
    }
}

/// Returns the possible origins of a wrong row.
fn origins(one: &UnexplainedOperation, row: usize, dropped: usize, known: &KnownRows) -> BTreeSet<RowOrigin> {
    let width = one.traced.row_len();
    let theirs = &one.theirs[row * width..][..width];
    if theirs.iter().all(|&value| value == 0.0) {
        return BTreeSet::from([RowOrigin::Zero]);
    }
    let is_itself = |place: &RowPlace| {
        let own = (None, one.site.point, one.site.layer, row + dropped);
        (place.sequence.clone(), place.point, place.layer, place.position) == own
    };
    let places = known.places(theirs).into_iter().filter(|place| !is_itself(place));
    let found: BTreeSet<RowOrigin> = places.map(|place| relative(&place, one.site)).collect();
    if found.is_empty() { BTreeSet::from([RowOrigin::Unknown]) } else { found }
}

fn is_cache(site: Site) -> bool {
    CACHES.contains(&site.point)
}

/// Returns the origin of a row relative to the layer, pass and position of the wrong row.
fn relative(place: &RowPlace, site: Site) -> RowOrigin {
    RowOrigin::Place {
        sequence: place.sequence.clone(),
        tap: (place.point != site.point).then_some(place.point),
        layer: place.layer.filter(|_| place.layer != site.layer),
        pass: Some(place.pass).filter(|_| !is_cache(site) && Some(place.pass) != site.pass),
        position: place.position,
    }
}

/// Returns the origin of each row that all wrong caches of a pass have in common. `None` if there is none, or
/// several are equally simple.
fn common_origins(wrong: &[WrongRows]) -> Option<Vec<RowSpan>> {
    let mut common: BTreeMap<(usize, usize), BTreeSet<RowOrigin>> = BTreeMap::new();
    for cache in wrong {
        let pass = cache.one.site.pass.unwrap_or(0);
        for (row, origins) in &cache.rows {
            let rows = common.entry((pass, row + cache.dropped)).or_insert_with(|| origins.clone());
            rows.retain(|origin| origins.contains(origin));
        }
    }
    let rows = common.into_iter().map(|((pass, position), origins)| {
        let simplest = origins.iter().map(RowOrigin::rank).min()?;
        let mut simple = origins.iter().filter(|origin| origin.rank() == simplest);
        let origin = simple.next()?.clone();
        let others: Vec<RowOrigin> = simple.cloned().collect();
        Some(RowSpan::new(pass, position, origin, others))
    });
    Some(RowSpan::joined(rows.collect::<Option<Vec<RowSpan>>>()?))
}

impl RowOrigin {
    /// Returns the number of properties, such as layer or sequence, in which the origin differs from the place of the
    /// row.
    fn rank(&self) -> usize {
        match self {
            RowOrigin::Place { sequence, tap, layer, pass, .. } => {
                usize::from(sequence.is_some())
                    + usize::from(tap.is_some())
                    + usize::from(pass.is_some() && sequence.is_none())
                    + 2 * usize::from(layer.is_some())
            }
            RowOrigin::Unknown | RowOrigin::Zero => 0,
        }
    }
}
