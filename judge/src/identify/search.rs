//! Search over several runs of the model; each run starts from the values found so far.

use std::collections::{HashMap, HashSet};

use crate::checkpoint::{Point, Site};
use crate::engine::{self, RunInput};
use crate::error::Result;
use crate::identify::array_layout::ways;
use crate::identify::assignment::Assignment;
use crate::identify::distance::TapDistance;
use crate::identify::finder::{FileArray, Finder, SiteMatch};
use crate::identify::sizes::AxisSizes;
use crate::model::Model;
use crate::numerics::Numerics;

/// Maximum number of runs. Each run can find values that depend on the values found before.
const MOST_RUNS: usize = 6;
/// Maximum number of runs that assume an array at a site it does not match.
const MOST_TRIALS: usize = 400;
/// Maximum number of guesses to confirm by later values, one run each.
const MOST_GUESSES: usize = 64;

/// The arrays of the file and the settings of a search for their taps.
pub(super) struct Search<'s> {
    pub(crate) numbers: &'s [FileArray],
    pub(crate) model: &'s dyn Model,
    pub(crate) numerics: &'s dyn Numerics,
    pub(crate) script: &'s RunInput,
}

/// Sites whose values are taken from an array: the array's index, and the match.
type PresumedSites = HashMap<Site, (usize, SiteMatch)>;
/// Result of a run: the possible sites of each array, and all sites with their shapes.
type RunMatches = (Vec<Vec<SiteMatch>>, Vec<(Site, Vec<usize>)>);

impl Search<'_> {
    fn run(&self, presumed: &PresumedSites, open: Vec<bool>) -> Result<RunMatches> {
        let dimensions = self.model.dimensions();
        let mut finder = Finder {
            arrays: self.numbers,
            sizes: AxisSizes::of(&dimensions),
            windows: (0..dimensions.n_layers).map(|layer| self.model.window(layer)).collect(),
            presumed,
            open,
            found: vec![Vec::new(); self.numbers.len()],
            seen: Vec::new(),
        };
        engine::run(self.model, self.numerics, self.script, &mut finder)?;
        Ok((finder.found, finder.seen))
    }

    /// Runs the model until no more arrays match, and returns the assignment of arrays to sites.
    pub(super) fn settled(&self) -> Result<Assignment> {
        let mut presumed = HashMap::new();
        let (mut settled, mut places) = (Assignment::default(), Vec::new());
        for run in 0..MOST_RUNS {
            let (found, seen) = self.run(&presumed, vec![true; self.numbers.len()])?;
            let now = Assignment::of(self.numbers, found);
            let is_better = run == 0 || now.count() > settled.count();
            if is_better {
                (settled, places) = (now, seen);
            }
            presumed = settled.presumed();
            if !is_better || presumed.is_empty() {
                break;
            }
        }
        // Without any matched array, an assumption cannot be confirmed.
        let mut left = if settled.count() > 0 { MOST_TRIALS } else { 0 };
        while self.supposed(&mut settled, &places, &mut left)? {}
        self.confirm(&mut settled)?;
        Ok(settled)
    }

    /// Confirms each guess without which fewer other arrays match.
    fn confirm(&self, settled: &mut Assignment) -> Result<()> {
        let sizes = AxisSizes::of(&self.model.dimensions());
        let guesses = settled.guesses(&sizes);
        let known = settled.known();
        let count = |guesses: &[(usize, SiteMatch)], but: usize| -> Result<usize> {
            let mut presumed = known.clone();
            presumed.extend(guesses.iter().map(|(index, one)| (one.site, (*index, as_read(one, &sizes)))));
            let (found, _) = self.run(&presumed, vec![true; self.numbers.len()])?;
            Ok(settled.count_as_found(&found, but))
        };
        let mut confirmed = Vec::new();
        for at in 0..guesses.len().min(MOST_GUESSES) {
            let index = guesses[at].0;
            let without = [&guesses[..at], &guesses[at + 1..]].concat();
            if count(&guesses, index)? > count(&without, index)? {
                confirmed.push(index);
            }
        }
        confirmed.into_iter().for_each(|index| settled.confirm(index));
        Ok(())
    }

    /// Assumes an array at a site that it does not match, for example after a fault. The assumption is
    /// accepted if it makes other arrays match. The residual stream is tried first, since later values start
    /// from it.
    fn supposed(
        &self,
        settled: &mut Assignment,
        places: &[(Site, Vec<usize>)],
        left: &mut usize,
    ) -> Result<bool> {
        let sizes = AxisSizes::of(&self.model.dimensions());
        let known = settled.known();
        let held: HashSet<Site> = known.keys().copied().collect();
        let mut free: Vec<&(Site, Vec<usize>)> =
            places.iter().filter(|(site, _)| !held.contains(site)).collect();
        free.sort_by_key(|(site, _)| {
            (!matches!(site.point, Point::AttnResidual | Point::BlockOut), site.flow_order())
        });
        let open = settled.open();
        // One array is assumed, and at least one other must match because of it.
        if open.iter().filter(|open| **open).count() < 2 {
            return Ok(false);
        }
        for (site, shape) in free {
            for index in (0..self.numbers.len()).filter(|&index| open[index]) {
                let fits = ways(*site, shape, &self.numbers[index].shape, &sizes).into_iter();
                let Some(way) = fits.into_iter().find(|way| way.part.is_none() && way.rows.is_none()) else {
                    continue;
                };
                let Some(rest) = left.checked_sub(1) else { return Ok(false) };
                *left = rest;
                let near = TapDistance { rel_l2: 1.0, scale: 1.0, is_noise: false };
                let mut presumed = known.clone();
                presumed.insert(*site, (index, SiteMatch { site: *site, near, way }));
                let (found, _) = self.run(&presumed, open.clone())?;
                if settled.takes(self.numbers, found, presumed.remove(site)) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Returns a guess without its scale, if the scale is not one that an engine would use.
fn as_read(one: &SiteMatch, sizes: &AxisSizes) -> SiteMatch {
    let scale = if sizes.is_meant(one.near.scale) { one.near.scale } else { 1.0 };
    SiteMatch { near: TapDistance { scale, ..one.near }, ..one.clone() }
}
