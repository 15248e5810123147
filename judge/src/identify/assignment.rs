//! Assignment of arrays to sites, given the possible sites of each array.

use std::collections::{HashMap, HashSet};

use crate::checkpoint::{Point, Site};
use crate::identify::ArraySite;
use crate::identify::distance::ROUNDED;
use crate::identify::finder::{FileArray, SiteMatch};
use crate::identify::sizes::AxisSizes;

/// Required ratio between the distances of an array to its best and its second-best site. In the shipped
/// dumps, distances to sites with equal values differ by at most a factor of 1.5. Distances to other sites
/// are 1000 times larger.
const MARGIN: f64 = 2.0;
/// Largest accepted distance (relative L2 error) between an array and a site.
const FAR: f64 = 0.5;
/// Minimum number of values for an array that is accepted although no other site is near. Noise with this many
/// values has a distance below [`FAR`] with a probability of 1e-10, and a search makes millions of trials.
const FEWEST: usize = 32;
/// Required ratio to the distance of the second-best site, if the error is larger than rounding to bf16.
const CLEAR: f64 = 8.0;
/// Errors below this limit count as equal: one unit in the last place of f32.
const NOTHING: f64 = f32::EPSILON as f64;

/// The search state that assigns arrays to taps.
#[derive(Default)]
pub(super) struct Assignment {
    /// Possible sites of each array, most likely first.
    found: Vec<Vec<SiteMatch>>,
    /// Sites assigned to each array: one, or one per fused tap.
    own: Vec<Vec<SiteMatch>>,
    /// Arrays that were assigned because later values match only with this assignment.
    supposed: HashSet<usize>,
}

impl Assignment {
    pub(crate) fn of(arrays: &[FileArray], mut found: Vec<Vec<SiteMatch>>) -> Self {
        for (array, found) in arrays.iter().zip(&mut found) {
            sort(found, &array.name);
        }
        let own = own(&found);
        Self { found, own, supposed: HashSet::new() }
    }

    /// Returns the number of arrays whose difference from a site is explained by rounding.
    pub(crate) fn count(&self) -> usize {
        self.own.iter().filter(|own| own.first().is_some_and(SiteMatch::is_honest)).count()
    }

    /// Returns the assumptions for the next run: each site without an array that matches within rounding, and the array
    /// nearest to the site.
    pub(crate) fn presumed(&self) -> HashMap<Site, (usize, SiteMatch)> {
        let one = |(index, own): (usize, &Vec<SiteMatch>)| match own.as_slice() {
            [one] if !one.is_honest() => Some((one.site, (index, one.clone()))),
            _ => None,
        };
        self.own.iter().enumerate().filter_map(one).collect()
    }

    /// Returns the sites with a matched or assumed array, and that array.
    pub fn known(&self) -> HashMap<Site, (usize, SiteMatch)> {
        let whole = |own: &&SiteMatch| own.way.part.is_none();
        let known = self.own.iter().enumerate().filter(|(index, _)| !self.is_open(*index));
        known
            .flat_map(|(index, own)| {
                own.iter().filter(whole).map(move |one| (one.site, (index, one.clone())))
            })
            .collect()
    }

    fn is_open(&self, index: usize) -> bool {
        !self.supposed.contains(&index) && !self.own[index].first().is_some_and(SiteMatch::is_honest)
    }

    /// Returns true for each array not yet assigned to a tap.
    pub(crate) fn open(&self) -> Vec<bool> {
        (0..self.own.len()).map(|index| self.is_open(index)).collect()
    }

    /// Accepts an assumed assignment of an array if it made other arrays match in a run. Returns true if accepted.
    pub(crate) fn takes(
        &mut self,
        arrays: &[FileArray],
        found: Vec<Vec<SiteMatch>>,
        supposed: Option<(usize, SiteMatch)>,
    ) -> bool {
        let Some((index, supposed)) = supposed else { return false };
        let near = found[index].iter().find(|one| one.site == supposed.site).cloned();
        let now = Self::of(arrays, found);
        let new = |other: usize| other != index && now.own[other].first().is_some_and(SiteMatch::is_honest);
        let new: Vec<usize> = (0..arrays.len()).filter(|&other| new(other)).collect();
        for &other in &new {
            self.own[other] = now.own[other].clone();
            self.found[other] = now.found[other].clone();
        }
        if !new.is_empty() {
            self.own[index] = vec![near.unwrap_or(supposed)];
            self.supposed.insert(index);
        }
        !new.is_empty()
    }

    /// Returns true if the array was identified by later values instead of by its own values.
    pub(crate) fn was_supposed(&self, index: usize) -> bool {
        self.supposed.contains(&index)
    }

    pub fn places(&self, index: usize, sizes: &AxisSizes) -> Vec<ArraySite> {
        let others = |one: &SiteMatch| -> Vec<Site> {
            let mut others: Vec<Site> = self.found[index]
                .iter()
                .filter(|other| is_tied(one, other))
                .map(|other| other.site)
                .collect();
            let told = |copy: &Site| self.is_supposed(one.site) || self.is_supposed(*copy);
            let copy = copied(one.site).filter(told).filter(|copy| !others.contains(copy));
            others.extend(copy);
            others.retain(|site| *site != one.site);
            others
        };
        let certain = |one: &SiteMatch| self.is_certain(index, one, sizes);
        self.own[index].iter().map(|one| ArraySite::of(one, others(one), certain(one))).collect()
    }

    /// Returns true if the site of an array is certain: later values confirm it, or all of these hold:
    /// rounding explains the error, the scale is plausible, and no other site or array fits nearly as well.
    fn is_certain(&self, index: usize, one: &SiteMatch, sizes: &AxisSizes) -> bool {
        let is_explained = one.is_honest() && (one.near.scale == 1.0 || sizes.is_meant(one.near.scale));
        self.supposed.contains(&index)
            || is_explained && self.is_clear(index, one) && !self.is_outdone(index, one)
    }

    /// Returns true if every other site is at least [`CLEAR`] times further away. No margin is required if
    /// the error is below rounding to bf16.
    fn is_clear(&self, index: usize, one: &SiteMatch) -> bool {
        let is_rival = |other: &&SiteMatch| {
            other.site != one.site && other.way.part == one.way.part && copied(one.site) != Some(other.site)
        };
        let is_far = |other: &SiteMatch| other.near.rel_l2 > one.near.rel_l2 * CLEAR;
        one.near.rel_l2 <= ROUNDED || self.found[index].iter().filter(is_rival).all(is_far)
    }

    /// Returns true if another array fits the site much better, or fits it without a scale.
    fn is_outdone(&self, index: usize, one: &SiteMatch) -> bool {
        let is_better = |other: &SiteMatch| {
            let is_nearer = other.near.rel_l2 * CLEAR < one.near.rel_l2 && one.near.rel_l2 > ROUNDED;
            is_nearer || one.near.scale != 1.0 && other.near.scale == 1.0
        };
        let others = self.own.iter().enumerate().filter(|(other, _)| *other != index);
        let mut at_place =
            others.flat_map(|(_, own)| own).filter(|other| other.site == one.site && other.is_honest());
        at_place.any(is_better)
    }

    /// Returns the arrays with an uncertain site, and that site.
    pub(crate) fn guesses(&self, sizes: &AxisSizes) -> Vec<(usize, SiteMatch)> {
        let guess = |index: usize| match self.own[index].as_slice() {
            [one] if !self.is_certain(index, one, sizes) => Some((index, one.clone())),
            _ => None,
        };
        (0..self.own.len()).filter_map(guess).collect()
    }

    /// Marks a guess as certain, because later values match only with this guess.
    pub(crate) fn confirm(&mut self, index: usize) {
        self.supposed.insert(index);
    }

    /// Returns the number of arrays, except `but`, that match their assigned sites in a run.
    pub(crate) fn count_as_found(&self, found: &[Vec<SiteMatch>], but: usize) -> usize {
        let is_there = |(index, own): (usize, &Vec<SiteMatch>)| {
            let at = |site: Site| found[index].iter().any(|one| one.site == site && one.is_honest());
            index != but && own.first().is_some_and(|one| one.is_honest() && at(one.site))
        };
        self.own.iter().enumerate().filter(|one| is_there(*one)).count()
    }

    /// Returns true if the assignment of a site was assumed. Then another site with equal values is possible too.
    fn is_supposed(&self, site: Site) -> bool {
        let is_far = |index: usize, one: &SiteMatch| self.supposed.contains(&index) || !one.is_honest();
        let mut own = self.own.iter().enumerate();
        own.any(|(index, own)| own.iter().any(|one| one.site == site && is_far(index, one)))
    }

    pub fn nearest(&self, index: usize) -> Option<ArraySite> {
        let nearest = self.found[index].first().filter(|_| self.own[index].is_empty())?;
        Some(ArraySite::of(nearest, Vec::new(), false))
    }
}

/// Returns the other site with the same values, if one of the two is a copy of the other.
fn copied(site: Site) -> Option<Site> {
    let point = match site.point {
        Point::KRope => Some(Point::KCache),
        Point::KCache => Some(Point::KRope),
        Point::V => Some(Point::VCache),
        Point::VCache => Some(Point::V),
        _ => None,
    };
    point.map(|point| Site { point, ..site })
}

/// Returns true if two sites are equally likely for an array. An array that matches no site within rounding
/// is accepted only without a tie.
fn is_tied(one: &SiteMatch, other: &SiteMatch) -> bool {
    other.is_honest()
        && other.near.rel_l2 <= one.near.rel_l2.max(NOTHING) * MARGIN
        && (one.near.scale == 1.0) == (other.near.scale == 1.0)
        && one.way.part == other.way.part
}

/// Sorts possible sites: matches without a scale first, then by distance. Ties are ordered by the numbers in
/// the array's name, then in data-flow order.
fn sort(found: &mut [SiteMatch], name: &str) {
    let numbers: Vec<usize> =
        name.split(|one: char| !one.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect();
    let is_unscaled = |one: &SiteMatch| one.near.scale == 1.0;
    let class = |one: &SiteMatch| match (one.is_honest(), is_unscaled(one)) {
        (true, true) => 0,
        (true, false) => 1,
        _ => 2,
    };
    let is_plain = |one: &SiteMatch| one.way.rows.is_none() && one.way.part.is_none();
    // In logarithmic steps, so that rounding does not decide the order.
    let step = |one: &SiteMatch| one.near.rel_l2.max(NOTHING).log(MARGIN).ceil() as i64;
    let is_named = |one: &SiteMatch| one.site.layer.is_some_and(|layer| numbers.contains(&layer));
    found.sort_by_key(|one| (class(one), step(one), !is_plain(one), !is_named(one), one.site.flow_order()));
}

/// Assigns each array to one site. If several arrays fit one site, the others get another site if possible.
fn own(found: &[Vec<SiteMatch>]) -> Vec<Vec<SiteMatch>> {
    let mut taken: HashSet<(Site, Option<(usize, usize)>)> = HashSet::new();
    let mut own: Vec<Vec<SiteMatch>> = vec![Vec::new(); found.len()];
    // Arrays with the fewest possible sites choose first.
    let choice = |found: &Vec<SiteMatch>| {
        found.first().map_or(0, |first| found.iter().filter(|one| is_tied(first, one)).count())
    };
    let mut order: Vec<(usize, &Vec<SiteMatch>)> = found.iter().enumerate().collect();
    order.sort_by_key(|(_, found)| choice(found));
    for (index, found) in order {
        let Some(first) = found.first().filter(|first| first.is_honest()) else { continue };
        if first.way.part.is_some() {
            own[index] = parts(found);
            continue;
        }
        let tied = found.iter().filter(|other| is_tied(first, other));
        let free = tied.clone().find(|one| !taken.contains(&(one.site, one.way.rows)));
        let one = free.unwrap_or(first).clone();
        taken.insert((one.site, one.way.rows));
        own[index] = vec![one];
    }
    for (index, one) in likely(found, &own, &taken) {
        own[index] = vec![one];
    }
    own
}

/// Returns the fused taps of an array, all from the layer of the nearest match.
fn parts(found: &[SiteMatch]) -> Vec<SiteMatch> {
    let layer = found[0].site.layer;
    let of_layer = |one: &&SiteMatch| one.is_honest() && one.way.part.is_some() && one.site.layer == layer;
    let mut parts: Vec<SiteMatch> = found.iter().filter(of_layer).cloned().collect();
    parts.sort_by_key(|one| one.way.theirs);
    parts
}

/// Returns arrays without a site within rounding that are much nearer to one site than to all others. No
/// other array may be as near to that site.
fn likely(
    found: &[Vec<SiteMatch>],
    own: &[Vec<SiteMatch>],
    taken: &HashSet<(Site, Option<(usize, usize)>)>,
) -> Vec<(usize, SiteMatch)> {
    let mut likely: Vec<(usize, SiteMatch)> = Vec::new();
    for (index, found) in found.iter().enumerate().filter(|(index, _)| own[*index].is_empty()) {
        let is_free = |one: &&SiteMatch| !taken.contains(&(one.site, one.way.rows)) && one.way.part.is_none();
        let free: Vec<&SiteMatch> = found.iter().filter(is_free).collect();
        let Some(first) = free.first().filter(|first| first.near.rel_l2 < FAR && first.way.len() >= FEWEST)
        else {
            continue;
        };
        let mut others = free.iter().skip(1).filter(|other| copied(first.site) != Some(other.site));
        if others.all(|other| other.near.rel_l2 > first.near.rel_l2 * MARGIN) {
            likely.push((index, (*first).clone()));
        }
    }
    let nearest = |one: &SiteMatch| {
        let rivals = likely.iter().filter(|(_, other)| other.site == one.site);
        rivals.map(|(_, other)| other.near.rel_l2).fold(f64::INFINITY, f64::min)
    };
    likely.iter().filter(|(_, one)| one.near.rel_l2 <= nearest(one)).cloned().collect()
}
