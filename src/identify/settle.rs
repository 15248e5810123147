//! Which of the places that an array may be it is.

use std::collections::{HashMap, HashSet};

use crate::checkpoint::Site;
use crate::identify::Place;
use crate::identify::finder::{Match, Numbers};

/// How much nearer a place must be than any other to be taken although it is not near.
const MARGIN: f64 = 2.0;
/// What is further away is never taken.
const FAR: f64 = 0.5;

/// What arrays were found to be.
#[derive(Default)]
pub(super) struct Settled {
    /// For each array its places, likeliest first.
    found: Vec<Vec<Match>>,
    /// For each array the places that are its: one, or one for each tap that is fused.
    own: Vec<Vec<Match>>,
}

impl Settled {
    pub fn of(arrays: &[Numbers], mut found: Vec<Vec<Match>>) -> Self {
        for (array, found) in arrays.iter().zip(&mut found) {
            sort(found, &array.name);
        }
        let own = own(&found);
        Self { found, own }
    }

    /// How many arrays have a place that nothing but rounding is between.
    pub fn count(&self) -> usize {
        self.own.iter().filter(|own| own.first().is_some_and(Match::is_honest)).count()
    }

    /// What is taken for a place in the next run: no array is honestly there, and one is nearer than all others.
    pub fn presumed(&self) -> HashMap<Site, (usize, Match)> {
        let one = |(index, own): (usize, &Vec<Match>)| match own.as_slice() {
            [one] if !one.is_honest() => Some((one.site, (index, one.clone()))),
            _ => None,
        };
        self.own.iter().enumerate().filter_map(one).collect()
    }

    pub fn places(&self, index: usize) -> Vec<Place> {
        let others = |one: &Match| -> Vec<Site> {
            let mut others: Vec<Site> = self.found[index]
                .iter()
                .filter(|other| is_tied(one, other))
                .map(|other| other.site)
                .collect();
            others.retain(|site| *site != one.site);
            others
        };
        self.own[index].iter().map(|one| Place::of(one, others(one))).collect()
    }

    pub fn nearest(&self, index: usize) -> Option<Place> {
        let nearest = self.found[index].first().filter(|_| self.own[index].is_empty())?;
        Some(Place::of(nearest, Vec::new()))
    }
}

/// Whether an array may as well be the other.
fn is_tied(one: &Match, other: &Match) -> bool {
    let limit = (one.near.rel_l2 * 3.0).max(1e-6);
    other.near.rel_l2 <= limit
        && (one.near.scale == 1.0) == (other.near.scale == 1.0)
        && one.way.part == other.way.part
}

/// Without a scale before with one, nearest first. Those that are alike in the order of the names' numbers, then of the
/// run.
fn sort(found: &mut [Match], name: &str) {
    let numbers: Vec<usize> =
        name.split(|one: char| !one.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect();
    let is_unscaled = |one: &Match| one.near.scale == 1.0;
    let class = |one: &Match| match (one.is_honest(), is_unscaled(one)) {
        (true, true) => 0,
        (true, false) => 1,
        _ => 2,
    };
    let is_plain = |one: &Match| one.way.rows.is_none() && one.way.part.is_none();
    // In steps of a factor of about three: rounding decides nothing.
    let step = |one: &Match| (one.near.rel_l2.max(1e-7).log10() * 2.0).ceil() as i64;
    let is_named = |one: &Match| one.site.layer.is_some_and(|layer| numbers.contains(&layer));
    found.sort_by_key(|one| (class(one), step(one), !is_plain(one), !is_named(one), one.site.flow_order()));
}

/// Each array's own place. Where several may be of one, each has another if there is one.
fn own(found: &[Vec<Match>]) -> Vec<Vec<Match>> {
    let mut taken: HashSet<(Site, Option<(usize, usize)>)> = HashSet::new();
    let mut own: Vec<Vec<Match>> = vec![Vec::new(); found.len()];
    // Those with fewest places to choose from choose first.
    let choice = |found: &Vec<Match>| {
        found.first().map_or(0, |first| found.iter().filter(|one| is_tied(first, one)).count())
    };
    let mut order: Vec<(usize, &Vec<Match>)> = found.iter().enumerate().collect();
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

/// The taps that are fused in an array: those of the layer of the nearest.
fn parts(found: &[Match]) -> Vec<Match> {
    let layer = found[0].site.layer;
    let of_layer = |one: &&Match| one.is_honest() && one.way.part.is_some() && one.site.layer == layer;
    let mut parts: Vec<Match> = found.iter().filter(of_layer).cloned().collect();
    parts.sort_by_key(|one| one.way.theirs);
    parts
}

/// Arrays that are not near any place, and yet much nearer to one than to all others, which no other array is as near to.
fn likely(
    found: &[Vec<Match>],
    own: &[Vec<Match>],
    taken: &HashSet<(Site, Option<(usize, usize)>)>,
) -> Vec<(usize, Match)> {
    let mut likely: Vec<(usize, Match)> = Vec::new();
    for (index, found) in found.iter().enumerate().filter(|(index, _)| own[*index].is_empty()) {
        let is_free = |one: &&Match| !taken.contains(&(one.site, one.way.rows)) && one.way.part.is_none();
        let free: Vec<&Match> = found.iter().filter(is_free).collect();
        let Some(first) = free.first().filter(|first| first.near.rel_l2 < FAR && first.way.len() >= 32)
        else {
            continue;
        };
        let next = free.iter().find(|other| other.near.rel_l2 > first.near.rel_l2 * 1.2);
        if next.is_none_or(|next| next.near.rel_l2 > first.near.rel_l2 * MARGIN) {
            likely.push((index, (*first).clone()));
        }
    }
    let nearest = |one: &Match| {
        let rivals = likely.iter().filter(|(_, other)| other.site == one.site);
        rivals.map(|(_, other)| other.near.rel_l2).fold(f64::INFINITY, f64::min)
    };
    likely.iter().filter(|(_, one)| one.near.rel_l2 <= nearest(one)).cloned().collect()
}
