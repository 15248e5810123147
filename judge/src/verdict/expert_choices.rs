//! Expert choices: equal, tied, or divergent; and the values computed after a choice that rounding decides.
//!
//! A different choice is a tie if rounding can explain the difference between the experts' logits. Later
//! operations start from the dump's own choice, in every run. If the dump does not record its choice, later
//! errors may come from a different expert, so they are inconclusive.

use crate::check::Preferences;
use crate::noise::{NoiseFloor, RunNoiseFloors};
use std::collections::HashMap;

use crate::checkpoint::{Point, Site, ValueKind};
use crate::verdict::site_result::{SiteResult, Verdict};

/// Returns the sites of the values from which experts are chosen: scores, if a model has them, and router logits.
pub(crate) fn routers_of(experts: Site) -> [Site; 2] {
    [Point::ExpertScores, Point::RouterLogits].map(|point| Site { point, ..experts })
}

/// The data that decides whether rounding explains a different expert choice.
pub(crate) struct Routing<'p> {
    pub(crate) preferences: &'p Preferences,
    pub(crate) floors: &'p RunNoiseFloors,
    /// Tolerance of the router logits if the tolerance table decides, else 0.
    pub(crate) tolerance: f64,
    /// Expert choices that our run made between a site and its inputs.
    pub(crate) behind: &'p HashMap<Site, Vec<Site>>,
}

impl Routing<'_> {
    /// Judges differing expert choices, and then the rows after choices that rounding decides.
    pub(crate) fn judge(&self, rows: &mut [SiteResult]) {
        for row in rows.iter_mut().filter(|row| row.site.point == Point::Experts && is_another(row)) {
            let judged = self.judge_choice(row);
            (row.verdict, row.reason) = (judged.0, Some(judged.1));
        }
        let (accumulated, local) = (self.doubtful_in_accumulated(rows), self.doubtful_since_held(rows));
        let is_explained =
            rows.iter().filter(|row| row.site.point.kind() == ValueKind::Real).all(SiteResult::is_settled);
        let follows = |row: &SiteResult| is_explained && is_same_since_held(row) && is_token(row);
        let is_open = |row: &&mut SiteResult| match row.verdict {
            Verdict::Fail => is_measured(row),
            Verdict::Inconclusive => follows(row) && is_measured(row),
            _ => false,
        };
        for row in rows.iter_mut().filter(is_open) {
            let before = match is_of_total(row) {
                true => accumulated.iter().find(|(site, _)| site.flow_order() < row.site.flow_order()),
                false => {
                    let behind = self.behind.get(&row.site).map_or(&[][..], Vec::as_slice);
                    local.iter().find(|(site, _)| behind.contains(site))
                }
            };
            if let Some((site, why)) = before {
                let before = row.reason.take().map_or(String::new(), |reason| format!("{reason}; "));
                let what = format!(
                    "{before}this depends on the choice of experts at {site}, which rounding decides: {why}"
                );
                // The token follows from the dump's own logits, so only a change of earlier values can
                // explain it.
                row.verdict = if follows(row) { Verdict::Tie } else { Verdict::Inconclusive };
                row.reason = Some(what);
            }
        }
    }

    fn judge_choice(&self, row: &SiteResult) -> (Verdict, String) {
        let (preferences, floors) = match row.local {
            Some(_) => (&self.preferences.local, &self.floors.local),
            None => (&self.preferences.accumulated, &self.floors.accumulated),
        };
        let told = chosen(row);
        match preferences.get(&row.site) {
            None => (
                Verdict::Inconclusive,
                format!(
                    "{told}; to decide whether this is a tie, record router_logits and expert_scores, and give the \
                     model if its experts have groups"
                ),
            ),
            Some(known) => {
                let parted = known.parted.map(|[parted, _]| parted);
                let (verdict, near) = self.weigh(row.site, known.margin, parted, floors);
                let what = "the scores of experts differ by";
                (
                    verdict,
                    format!(
                        "{told}; {what} {:.1e}, and rounding can change that by up to {near:.1e}",
                        known.margin
                    ),
                )
            }
        }
    }

    fn weigh(
        &self,
        site: Site,
        margin: f64,
        parted: Option<f64>,
        floors: &HashMap<Site, NoiseFloor>,
    ) -> (Verdict, f64) {
        match parted {
            Some(parted) if margin <= parted => (Verdict::Tie, parted),
            Some(parted) => (Verdict::Fail, parted),
            None => {
                let floor = routers_of(site).iter().find_map(|site| floors.get(site));
                floor.copied().unwrap_or_default().parts(margin, self.tolerance)
            }
        }
    }

    /// Returns choices of the accumulated run that rounding may decide and the dump does not record. If the
    /// dump records a choice, the run continues with it.
    fn doubtful_in_accumulated(&self, rows: &[SiteResult]) -> Vec<(Site, String)> {
        let told: HashMap<Site, &SiteResult> = experts(rows).collect();
        let untold = self.preferences.accumulated.iter().filter(|(site, _)| !told.contains_key(site));
        let doubtful = untold
            .filter_map(|(site, known)| self.told_of(*site, known.closest, None, &self.floors.accumulated));
        let mut doubtful: Vec<(Site, String)> = doubtful.collect();
        doubtful.sort_by_key(|(site, _)| site.flow_order());
        doubtful
    }

    /// Returns expert choices that rounding may decide, in the run that continues with the dump's values.
    fn doubtful_since_held(&self, rows: &[SiteResult]) -> Vec<(Site, String)> {
        let told: HashMap<Site, &SiteResult> = experts(rows).collect();
        let known = self.preferences.local.iter().filter_map(|(site, known)| {
            let is_other = told.get(site).is_some_and(|row| is_another(row));
            let at = usize::from(!is_other);
            let margin = [known.margin, known.closest][at];
            self.told_of(*site, margin, known.parted.map(|parted| parted[at]), &self.floors.local)
        });
        known.collect()
    }

    fn told_of(
        &self,
        site: Site,
        margin: f64,
        parted: Option<f64>,
        floors: &HashMap<Site, NoiseFloor>,
    ) -> Option<(Site, String)> {
        let (verdict, near) = self.weigh(site, margin, parted, floors);
        let what = format!(
            "the scores of experts differ by {margin:.1e}, and rounding can change that by up to \
                {near:.1e}"
        );
        (verdict != Verdict::Fail).then_some((site, what))
    }
}

fn experts(rows: &[SiteResult]) -> impl Iterator<Item = (Site, &SiteResult)> {
    rows.iter().filter(|row| row.site.point == Point::Experts).map(|row| (row.site, row))
}

/// Returns true if the two sides chose different experts in the run that is judged.
pub(crate) fn is_another(row: &SiteResult) -> bool {
    row.judged().is_some_and(|found| found.errors.max_abs != 0.0)
}

fn chosen(row: &SiteResult) -> String {
    let Some(worst) = row.judged().and_then(|found| found.worst.as_ref()) else {
        return "the chosen experts differ".into();
    };
    let token = worst.index.first().map_or(row.positions.start, |token| row.positions.start + token);
    format!(
        "at position {token} the candidate chose expert {}, the reference {}",
        worst.candidate, worst.reference
    )
}

/// Returns true if a different expert could have made the row's failing values: they are finite, and not all
/// zero on one side only.
fn is_measured(row: &SiteResult) -> bool {
    let found = || [row.local.as_ref(), row.accumulated.as_ref()].into_iter().flatten();
    let is_number = found().all(|found| found.nonfinite == Default::default());
    let is_zero = found().any(|found| found.candidate_all_zero != found.reference_all_zero);
    row.judged().is_some() && is_number && !is_zero
}

/// Returns true if the row fails by its accumulated error.
fn is_of_total(row: &SiteResult) -> bool {
    row.local.is_none() || is_token(row) && is_same_since_held(row) || row.accumulated_floor.is_some()
}

/// Returns true if both sides get the same result when computed from the dump's own values.
fn is_same_since_held(row: &SiteResult) -> bool {
    row.local.as_ref().is_some_and(|found| found.errors.max_abs == 0.0)
}

fn is_token(row: &SiteResult) -> bool {
    row.site.point.kind() == ValueKind::Token && row.site.point != Point::Experts
}
