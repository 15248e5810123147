//! A tap point of a dump at given positions, wherever its passes are cut.

use std::ops::Range;

use crate::checkpoint::{Point, Site, TapAxis};
use crate::compare::axis_slices::{among, axis};
use crate::compare::choices::logits_after;
use crate::compare::compared_dump::{ComparedDump, is_of_a_pass};
use crate::dump::Pass;
use crate::error::Result;
use crate::tensor::RopePairing;
use crate::view::View;

/// The temperature of the probabilities after the last of these positions.
pub(super) fn temperature_at(held: &ComparedDump, positions: &Range<usize>) -> f32 {
    let pass = Pass::ending(held.passes(), positions.end);
    pass.and_then(|pass| held.passes()[pass].temperature).unwrap_or(1.0)
}

/// A tap point of a dump at given positions, wherever the dump's passes are cut.
pub(super) struct DumpSite<'p, 'd> {
    pub(super) held: &'p ComparedDump<'d>,
    pub(super) site: Site,
    pub(super) positions: Range<usize>,
    pub(super) pairing: Option<RopePairing>,
    /// Temperature of the site's pass.
    pub(super) temperature: f32,
}

/// Reasons for missing values at a site although the dump has the site.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum MissingValues {
    /// No pass ends at these positions, so a value that a pass has once belongs to other tokens.
    Elsewhere,
    /// In words: what its passes hold cannot be put together.
    Unlike(String),
}

/// The values of a site, or the reason why there are none.
pub(super) type SiteValues = std::result::Result<View<'static>, MissingValues>;

/// The index of the largest, the lowest of equals; `None` where one is no number.
fn largest(logits: &[f64]) -> Option<f64> {
    let best = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let is_known = !logits.iter().any(|logit| logit.is_nan());
    logits.iter().position(|&logit| is_known && logit == best).map(|index| index as f64)
}

/// softmax, in f64.
fn softmax(logits: &[f64]) -> Vec<f64> {
    let best = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|logit| (logit - best).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

impl DumpSite<'_, '_> {
    /// The passes that hold the positions between them: all they overlap for what has a row per token, the first
    /// that reaches them for a cache, the one that ends with them for what a pass has once.
    pub(super) fn passes(&self) -> Vec<usize> {
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

    /// Returns a message about what the dump does not record here, if anything.
    pub(super) fn lacking(&self) -> Option<String> {
        let path = self.held.dump.path.display();
        if self.held.tells_by_reading && self.site.point == Point::Argmax {
            return None; // of the last token that was read, reading tells no choice
        }
        if !is_of_a_pass(self.site) {
            return (!self.held.holds(self.site)).then(|| format!("{}: not in {path}", self.site));
        }
        let of_pass = |pass| Site { pass: Some(pass), ..self.site };
        let is_missing = |site: &Site| !self.holds(*site) && !self.held.has_last_row_of(*site);
        let missing = self.passes().into_iter().map(of_pass).find(is_missing)?;
        Some(format!("{missing}: not in {path}"))
    }

    /// Returns the rows that the dump records, counted from the first position; `None` for all.
    pub(super) fn rows_held(&self) -> Option<Vec<usize>> {
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

    /// Logits after a token are known, too, where those of every position are.
    fn holds(&self, site: Site) -> bool {
        self.held.holds(site)
            || self.held.dump.sketches(site)
            || self.held.dump.held_rows(site).is_some()
            || site.point == Point::LastLogits && self.held.holds(Site { point: Point::Logits, ..site })
    }

    /// The values. What is lacking was looked at before.
    pub(super) fn values(&self) -> Result<SiteValues> {
        let whole = match self.site.point.axes() {
            [TapAxis::Token, ..] => return self.rows(0),
            [TapAxis::Head, TapAxis::Token, TapAxis::Key] => return self.rows(1),
            [TapAxis::Key, ..] => self.first()?.map(|values| {
                let read = self.passes().first().map_or(0, |&pass| self.held.passes()[pass].end());
                let keys = values.shape()[0];
                match read.checked_sub(keys) {
                    None => values, // more than were read: told, not compared
                    Some(dropped) => values.slice(0, 0..self.positions.end.saturating_sub(dropped)),
                }
            }),
            _ => self.once()?,
        };
        Ok(whole.ok_or(MissingValues::Elsewhere))
    }

    /// Returns the number of valid entries in each row. Passes may list different numbers of top tokens.
    pub(super) fn widths(&self) -> Result<Vec<usize>> {
        let mut widths = vec![0; self.positions.len()];
        for index in self.passes() {
            let Some(values) = self.of_pass(index)? else { continue };
            let overlap = self.overlap(index);
            let first = self.positions.start;
            widths[overlap.start - first..overlap.end - first].fill(values.width());
        }
        Ok(widths)
    }

    /// Returns the range of the positions that a pass reads.
    fn overlap(&self, pass: usize) -> Range<usize> {
        let pass = &self.held.passes()[pass];
        self.positions.start.max(pass.position)..self.positions.end.min(pass.end())
    }

    /// Values of a pass of the dump; zeros for rows that it has not.
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

    /// Returns the values of the first pass that records them.
    fn first(&self) -> Result<Option<View<'static>>> {
        self.passes().first().map_or(Ok(None), |&pass| self.of_pass(pass))
    }

    /// Returns the values after the last position. If no pass ends there, choices and logits may still be
    /// known.
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

    /// Returns one row per token, in the order of positions, with `outer` axes before the token axis. Rows
    /// with fewer top tokens are padded with zeros.
    fn rows(&self, outer: usize) -> Result<SiteValues> {
        let mut parts = Vec::new();
        for index in self.passes() {
            let (pass, overlap) = (&self.held.passes()[index], self.overlap(index));
            let Some(values) = self.of_pass(index)? else { return Ok(Err(MissingValues::Elsewhere)) };
            let part = values.slice(outer, overlap.start - pass.position..overlap.end - pass.position);
            let foreign = outer == 1 && part.width() != pass.end();
            parts.push(match outer {
                0 => part,
                _ if foreign => return Ok(Ok(part)), // of another number of keys: told, not compared
                // What is filled is in the future and never compared.
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
