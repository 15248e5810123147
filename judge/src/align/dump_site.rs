//! A tap of a dump at given positions, independent of how the dump splits tokens into passes.

use std::ops::Range;

use crate::align::aligned_dump::{AlignedDump, is_of_a_pass};
use crate::align::axis_slices::{among, axis};
use crate::align::choices::logits_after;
use crate::checkpoint::{Point, Site, TapAxis};
use crate::dump::Pass;
use crate::error::Result;
use crate::tensor::RopePairing;
use crate::view::View;
use crate::weight::DType;

/// Returns the temperature of the pass that ends with these positions.
pub(crate) fn temperature_at(held: &AlignedDump, positions: &Range<usize>) -> f32 {
    let pass = Pass::ending(held.passes(), positions.end);
    pass.and_then(|pass| held.passes()[pass].temperature).unwrap_or(1.0)
}

/// A tap of a dump at given positions, which may belong to several passes.
pub(crate) struct DumpSite<'p, 'd> {
    pub(crate) held: &'p AlignedDump<'d>,
    pub(crate) site: Site,
    pub(crate) positions: Range<usize>,
    pub(crate) pairing: Option<RopePairing>,
    /// Temperature of the pass that ends with the positions.
    pub(crate) temperature: f32,
}

/// Reasons for missing values although the dump records the site.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MissingValues {
    /// No pass ends at these positions. Values that exist once per pass therefore belong to other tokens.
    Elsewhere,
    /// The values of several passes cannot be combined. The text is the error message.
    Unlike(String),
}

/// The values of a site, or the reason why they are missing.
pub(crate) type SiteValues = std::result::Result<View<'static>, MissingValues>;

/// Returns the index of the largest logit, the first if several are equal. `None` if a logit is NaN.
fn largest(logits: &[f64]) -> Option<f64> {
    let best = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let is_known = !logits.iter().any(|logit| logit.is_nan());
    logits.iter().position(|&logit| is_known && logit == best).map(|index| index as f64)
}

/// Computes the softmax in f64.
fn softmax(logits: &[f64]) -> Vec<f64> {
    let best = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|logit| (logit - best).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

impl DumpSite<'_, '_> {
    /// Returns the passes whose values cover the positions. For values with one row per token: every
    /// overlapping pass. For a cache: the first pass that reaches the last position. For values that exist
    /// once per pass: the pass that ends there.
    pub(crate) fn passes(&self) -> Vec<usize> {
        let Range { start, end } = self.positions;
        let passes = self.held.passes();
        match self.site.point.axes() {
            [TapAxis::Token, ..] | [TapAxis::Head, TapAxis::Token, TapAxis::Key] => {
                let first = Pass::reaching(passes, start + 1).unwrap_or(passes.len());
                (first..passes.len()).take_while(|&pass| passes[pass].position < end).collect()
            }
            [TapAxis::Key, ..] => Pass::reaching(passes, end).into_iter().collect(),
            _ => Pass::ending(passes, end).into_iter().collect(),
        }
    }

    /// Returns a message about missing values at these positions, if any.
    pub(crate) fn lacking(&self) -> Option<String> {
        let path = self.held.dump.path.display();
        if self.held.tells_by_reading && self.site.point == Point::Argmax {
            return None; // tokens that were read do not show the choice after the last one
        }
        if !is_of_a_pass(self.site) {
            return (!self.held.holds(self.site)).then(|| format!("{}: not in {path}", self.site));
        }
        let of_pass = |pass| Site { pass: Some(pass), ..self.site };
        let is_missing = |site: &Site| !self.holds(*site) && !self.held.has_last_row_of(*site);
        let missing = self.passes().into_iter().map(of_pass).find(is_missing)?;
        Some(format!("{missing}: not in {path}"))
    }

    /// Returns the recorded rows, counted from the first position. `None` if all rows are recorded.
    pub(crate) fn rows_held(&self) -> Option<Vec<usize>> {
        let passes = self.passes();
        let held_rows = |pass: &usize| self.held.dump.held_rows(Site { pass: Some(*pass), ..self.site });
        passes.iter().find_map(held_rows)?;
        let of_pass = |&index: &usize| {
            let pass = &self.held.passes()[index];
            let rows = held_rows(&index).map_or_else(|| (0..pass.tokens.len()).collect(), <[usize]>::to_vec);
            rows.into_iter().map(move |row| pass.position + row)
        };
        let positions = passes.iter().flat_map(of_pass).filter(|position| self.positions.contains(position));
        Some(positions.map(|position| position - self.positions.start).collect())
    }

    /// Returns true if the values are recorded or can be derived. `last_logits` can be taken from `logits`.
    fn holds(&self, site: Site) -> bool {
        self.held.holds(site)
            || self.held.dump.sketches(site)
            || self.held.dump.held_rows(site).is_some()
            || site.point == Point::LastLogits && self.held.holds(Site { point: Point::Logits, ..site })
    }

    /// Returns the values. The caller has already checked for missing values.
    pub(crate) fn values(&self) -> Result<SiteValues> {
        let whole = match self.site.point.axes() {
            [TapAxis::Token, ..] => return self.rows(0),
            [TapAxis::Head, TapAxis::Token, TapAxis::Key] => return self.rows(1),
            [TapAxis::Key, ..] => self.first()?.map(|values| {
                let read = self.passes().first().map_or(0, |&pass| self.held.passes()[pass].end());
                let keys = values.shape()[0];
                match read.checked_sub(keys) {
                    None => values, // more keys than tokens read: reported, not compared
                    Some(dropped) => values.slice(0, 0..self.positions.end.saturating_sub(dropped)),
                }
            }),
            _ => self.once()?,
        };
        Ok(whole.ok_or(MissingValues::Elsewhere))
    }

    /// Returns true if a pass records a sketch instead of values.
    pub(crate) fn is_sketched(&self) -> bool {
        self.passes().into_iter().any(|pass| self.held.dump.sketches(Site { pass: Some(pass), ..self.site }))
    }

    /// Returns the site in the pass that covers exactly these positions, if there is one.
    pub(crate) fn whole_pass(&self) -> Option<Site> {
        let passes = self.passes();
        let of_pass = passes.first().map(|&pass| Site { pass: Some(pass), ..self.site });
        of_pass.filter(|&site| passes.len() == 1 && self.held.positions(site) == self.positions)
    }

    /// Returns true if passes are stored in different types or with different decimal steps.
    pub(crate) fn is_stored_unlike(&self) -> bool {
        let stored = |&pass: &usize| self.stored_in(Some(pass));
        self.passes().windows(2).any(|pair| stored(&pair[0]) != stored(&pair[1]))
    }

    /// Returns the type to which the values of the first pass were rounded when stored, and their decimal
    /// step.
    pub(crate) fn stored(&self) -> (Option<DType>, f64) {
        self.stored_in(self.passes().first().copied())
    }

    fn stored_in(&self, pass: Option<usize>) -> (Option<DType>, f64) {
        let site = Site { pass, ..self.site };
        (self.held.stored(site), self.held.step(site))
    }

    /// Returns another tap at the same layer and positions.
    pub(crate) fn tap(&self, point: Point) -> Self {
        let Self { held, pairing, temperature, .. } = *self;
        DumpSite {
            held,
            site: Site { point, ..self.site },
            positions: self.positions.clone(),
            pairing,
            temperature,
        }
    }

    /// Returns the attention weights of the site's layer and positions, if recorded.
    pub(crate) fn weights(&self) -> Result<Option<View<'static>>> {
        let at = self.tap(Point::AttnWeights);
        if at.lacking().is_none() && at.rows_held().is_none() { Ok(at.values()?.ok()) } else { Ok(None) }
    }

    /// Returns true if the attention weights of the first `count` of `all` keys are zero. `None` if the
    /// weights are not recorded.
    pub(crate) fn hides(&self, count: usize, all: usize) -> Result<Option<bool>> {
        let weights = self.weights()?.filter(|weights| weights.width() == all);
        Ok(weights.map(|weights| {
            let are_zero = |row| (0..count).all(|key| weights.get(row * all + key) == 0.0);
            (0..weights.rows()).all(are_zero)
        }))
    }

    /// Returns the number of listed entries in each row. Passes may list different numbers of top tokens.
    pub(crate) fn widths(&self) -> Result<Vec<usize>> {
        let mut widths = vec![0; self.positions.len()];
        for index in self.passes() {
            let Some(values) = self.of_pass(index)? else { continue };
            let overlap = self.overlap(index);
            let first = self.positions.start;
            widths[overlap.start - first..overlap.end - first].fill(values.width());
        }
        Ok(widths)
    }

    /// Returns the range of the positions that belong to a pass.
    fn overlap(&self, pass: usize) -> Range<usize> {
        let pass = &self.held.passes()[pass];
        self.positions.start.max(pass.position)..self.positions.end.min(pass.end())
    }

    /// Returns the values of a pass, with zeros for rows that are not recorded.
    fn of_pass(&self, pass: usize) -> Result<Option<View<'static>>> {
        let site = Site { pass: Some(pass), ..self.site };
        let values = self.held.values(site, self.pairing)?;
        let (Some(rows), Some(axis)) = (self.held.dump.held_rows(site), axis(site.point, TapAxis::Token))
        else {
            return Ok(values);
        };
        let whole = |values: View<'static>| {
            let mut shape = values.shape().to_vec();
            shape[axis] = self.held.passes()[pass].tokens.len();
            let zeros = View::owned(&shape, vec![0.0; shape.iter().product()]);
            among(&zeros, &values, axis, rows)
        };
        Ok(values.map(whole))
    }

    /// Returns the values of the first pass, if recorded.
    fn first(&self) -> Result<Option<View<'static>>> {
        self.passes().first().map_or(Ok(None), |&pass| self.of_pass(pass))
    }

    /// Returns the value after the last position. If no pass ends there, choices and logits may still be
    /// derived from other taps.
    fn once(&self) -> Result<Option<View<'static>>> {
        let position = self.positions.end - 1;
        if let Some(values) = self.first()? {
            return Ok(Some(values));
        }
        match self.site.point {
            Point::Argmax => {
                let told = self.held.choices.at(position).map(f64::from);
                let token = match told {
                    None => logits_after(self.held.dump, position)?.and_then(|logits| largest(&logits)),
                    told => told,
                };
                Ok(token.map(|token| View::owned(&[], vec![token])))
            }
            Point::Probs if self.temperature == 1.0 => {
                let logits = logits_after(self.held.dump, position)?;
                Ok(logits.map(|logits| View::owned(&[logits.len()], softmax(&logits))))
            }
            Point::LastLogits => {
                let logits = logits_after(self.held.dump, position)?;
                Ok(logits.map(|logits| View::owned(&[logits.len()], logits)))
            }
            _ => Ok(None),
        }
    }

    /// Returns one row per token in the order of positions. The array has `outer` axes before the token axis.
    /// Rows with fewer top tokens are padded with zeros.
    fn rows(&self, outer: usize) -> Result<SiteValues> {
        let mut parts = Vec::new();
        for index in self.passes() {
            let (pass, overlap) = (&self.held.passes()[index], self.overlap(index));
            let Some(values) = self.of_pass(index)? else { return Ok(Err(MissingValues::Elsewhere)) };
            let part = values.slice(outer, overlap.start - pass.position..overlap.end - pass.position);
            let foreign = outer == 1 && part.width() != pass.end();
            parts.push(match outer {
                0 => part,
                _ if foreign => return Ok(Ok(part)), // another number of keys: reported, not compared
                // The padding belongs to later positions, which are never compared.
                _ => part.with_width(self.positions.end),
            });
        }
        if self.site.point.axes().contains(&TapAxis::Rank) {
            let widest = parts.iter().map(View::width).max().unwrap_or(0);
            parts = parts.into_iter().map(|part| part.with_width(widest)).collect();
        }
        let Some(first) = parts.first().map(|part| part.shape()[outer + 1..].to_vec()) else {
            return Ok(Err(MissingValues::Elsewhere));
        };
        Ok(match parts.iter().find(|part| part.shape()[outer + 1..] != first) {
            None => Ok(View::joined(parts, outer)),
            Some(other) => Err(MissingValues::Unlike(format!(
                "{}: shapes differ between passes of {}: a token has {first:?} values in one pass and {:?} \
                    in another",
                self.site,
                self.held.dump.path.display(),
                &other.shape()[outer + 1..]
            ))),
        })
    }
}
