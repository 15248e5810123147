//! Rows of keys and values that a run computes: of every sequence of the dump, layer, pass and position.

use std::collections::BTreeMap;

use crate::align::AlignedDump;
use crate::check::{ContinuationValues, RunContext};
use crate::checkpoint::{Point, Site};
use crate::diagnose::causes::operation_search::SearchContext;
use crate::error::Result;
use crate::tap::Tap;
use crate::tensor::Tensor;

/// Maximum number of values that are kept.
const MOST_VALUES: usize = 1 << 26;

/// Largest relative error of a row that still matches. The exact evaluation decides afterwards.
const NEAR: f64 = 0.01;

/// A row with fewer values proves nothing.
const SHORTEST: usize = 8;

/// Place of a row in a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowPlace {
    /// Name of the sequence; `None` for the sequence that is judged.
    pub(super) sequence: Option<String>,
    /// Tap that recorded the row.
    pub(super) point: Point,
    /// Layer of the row; `None` for a tap outside the layers.
    pub(super) layer: Option<usize>,
    /// Position of the row's token.
    pub(super) position: usize,
    /// Pass that computed the row.
    pub(super) pass: usize,
}

/// Rows of one tap that one pass computed.
struct AddedRows {
    sequence: Option<String>,
    site: Site,
    /// Position of the first row of the pass.
    start: usize,
    /// Index of the first row of the pass in `values`. A cache has the rows of earlier passes before it.
    first: usize,
    values: Tensor,
}

/// Rows that a run computes at some taps.
pub(super) struct KnownRows {
    all: Vec<AddedRows>,
}

impl KnownRows {
    /// Runs the model along the dump and along the other sequences of the same file.
    ///
    /// # Errors
    /// The errors of a run of the model.
    pub(super) fn of(search: &SearchContext, points: &[Point]) -> Result<Self> {
        Self::collected(search, points, |context, rows| {
            context.evaluate(&context.script(), ContinuationValues::Held, rows).map(|_| ())
        })
    }

    /// Runs in the same way, and keeps values alone, without the operations that computed them.
    ///
    /// # Errors
    /// The errors of a run of the model.
    pub(super) fn computed(search: &SearchContext, points: &[Point]) -> Result<Self> {
        Self::collected(search, points, |context, rows| {
            context.run(context.numerics, &context.script(), ContinuationValues::Held, rows).map(|_| ())
        })
    }

    fn collected(
        search: &SearchContext,
        points: &[Point],
        run: impl Fn(&RunContext, &mut dyn Tap) -> Result<()>,
    ) -> Result<Self> {
        let context = search.context;
        let mut rows = RowCollector { points, sequence: None, passes: Vec::new(), found: Vec::new() };
        rows.passes = starts(context.held);
        run(context, &mut rows)?;
        for other in context.held.dump.siblings()? {
            let held = AlignedDump::new(&other)?;
            rows.sequence = other.manifest.sequence.clone();
            rows.passes = starts(&held);
            run(&context.along(&held), &mut rows)?;
        }
        Ok(Self { all: rows.found })
    }

    /// Returns the places of the rows that equal the given values, up to rounding.
    pub(super) fn places(&self, theirs: &[f64]) -> Vec<RowPlace> {
        let size: f64 = theirs.iter().map(|value| value * value).sum();
        if theirs.len() < SHORTEST || size == 0.0 || !size.is_finite() {
            return Vec::new();
        }
        let is_near = |row: &[f32]| {
            let mut rest = NEAR * NEAR * size;
            row.len() == theirs.len()
                && row.iter().zip(theirs).all(|(&own, their)| {
                    rest -= (f64::from(own) - their).powi(2);
                    rest >= 0.0
                })
        };
        let mut places: Vec<RowPlace> = Vec::new();
        for rows in &self.all {
            let near = (rows.first..rows.values.rows()).filter(|&row| is_near(rows.values.row(row)));
            places.extend(near.map(|row| rows.place(row)));
        }
        places
    }

    /// Returns the rows of a tap and layer, with their relative distances from the given values.
    pub(super) fn distances(&self, site: Site, theirs: &[f64]) -> Vec<(RowPlace, f64)> {
        let size: f64 = theirs.iter().map(|value| value * value).sum();
        let is_of_tap = |rows: &&AddedRows| (rows.site.point, rows.site.layer) == (site.point, site.layer);
        let off = |row: &[f32]| {
            let off: f64 = row.iter().zip(theirs).map(|(&own, their)| (f64::from(own) - their).powi(2)).sum();
            (off / size.max(f64::MIN_POSITIVE)).sqrt()
        };
        if theirs.len() < SHORTEST {
            return Vec::new();
        }
        let of_pass = |rows: &AddedRows| {
            let all = rows.first..rows.values.rows();
            all.map(|row| (rows.place(row), off(rows.values.row(row)))).collect::<Vec<_>>()
        };
        self.all.iter().filter(is_of_tap).flat_map(of_pass).collect()
    }

    /// Returns the other sequences, each with its number of rows.
    pub(super) fn sequences(&self) -> Vec<(String, usize)> {
        let mut all: BTreeMap<String, usize> = BTreeMap::new();
        for rows in &self.all {
            if let Some(sequence) = &rows.sequence {
                let length = all.entry(sequence.clone()).or_default();
                *length = (*length).max(rows.start + rows.values.rows() - rows.first);
            }
        }
        all.into_iter().collect()
    }

    /// Returns the row of a cache of another sequence at a position.
    pub(super) fn cached(
        &self,
        sequence: &str,
        point: Point,
        layer: Option<usize>,
        position: usize,
    ) -> Option<&[f32]> {
        let is_there = |rows: &&AddedRows| {
            let is_its = (rows.site.point, rows.site.layer) == (point, layer);
            let end = rows.start + rows.values.rows() - rows.first;
            rows.sequence.as_deref() == Some(sequence) && is_its && (rows.start..end).contains(&position)
        };
        let rows = self.all.iter().find(is_there)?;
        Some(rows.values.row(rows.first + position - rows.start))
    }

    pub(super) fn row(&self, place: &RowPlace) -> Option<(&Tensor, usize)> {
        let is_there = |rows: &&AddedRows| {
            let site = (rows.site.point, rows.site.layer, rows.site.pass);
            rows.sequence == place.sequence && site == (place.point, place.layer, Some(place.pass))
        };
        let rows = self.all.iter().find(is_there)?;
        let row = rows.first + place.position.checked_sub(rows.start)?;
        (row < rows.values.rows()).then_some((&rows.values, row))
    }
}

impl AddedRows {
    fn place(&self, row: usize) -> RowPlace {
        RowPlace {
            sequence: self.sequence.clone(),
            point: self.site.point,
            layer: self.site.layer,
            position: self.start + row - self.first,
            pass: self.site.pass.unwrap_or(0),
        }
    }
}

/// Returns the first position of each pass.
fn starts(held: &AlignedDump) -> Vec<usize> {
    held.passes().iter().map(|pass| pass.position).collect()
}

/// A tap that collects the rows that each pass adds.
struct RowCollector<'p> {
    points: &'p [Point],
    sequence: Option<String>,
    passes: Vec<usize>,
    found: Vec<AddedRows>,
}

impl Tap for RowCollector<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let Some(&start) = site.pass.and_then(|pass| self.passes.get(pass)) else { return value };
        let kept: usize = self.found.iter().map(|rows| rows.values.data().len()).sum();
        if self.points.contains(&site.point) && kept < MOST_VALUES && !value.shape().is_empty() {
            let is_cache = matches!(site.point, Point::KCache | Point::VCache);
            let next = self.passes.get(site.pass.map_or(0, |pass| pass + 1)).copied();
            let added = next.map(|next| next - start);
            // A cache ends with the rows of its pass. The last pass is the only one whose length is its own.
            let first = match (is_cache, added) {
                (true, Some(added)) => value.rows().saturating_sub(added),
                (true, None) => start.min(value.rows()),
                (false, _) => 0,
            };
            let (sequence, values) = (self.sequence.clone(), value.clone());
            self.found.push(AddedRows { sequence, site, start, first, values });
        }
        value
    }
}
