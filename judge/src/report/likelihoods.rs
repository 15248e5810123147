//! Summary of log-probabilities, one line per tap, used in all formats for people.

use crate::checkpoint::Point;
use crate::measure::Agreement;
use crate::report::text::{count, figure};
use crate::verdict::{Outcome, SiteResult};

/// Returns lines such as "top_logprobs: max |Δ log p| 1.2e-7; KL(reference‖candidate) ≥ 3.1e-9 in the mean,
/// 8.0e-9 at most; …".
pub(crate) fn lines(outcome: &Outcome) -> Vec<String> {
    [Point::TokenLogprobs, Point::TopLogprobs].iter().filter_map(|&point| line(outcome, point)).collect()
}

fn line(outcome: &Outcome, point: Point) -> Option<String> {
    let rows: Vec<&SiteResult> = outcome.rows.iter().filter(|row| row.site.point == point).collect();
    let found = rows.iter().filter_map(|row| row.judged()?.agreement.as_ref());
    let all = Agreement { places: found.flat_map(|agreement| agreement.places.iter().cloned()).collect() };
    if all.places.is_empty() {
        return None;
    }
    let positions = count(all.places.len(), "position");
    let delta = all.places.iter().map(|place| place.delta).fold(0.0, crate::measure::larger);
    let [mean, most] = all.divergence();
    let covered = all.places.iter().map(|place| place.covered).sum::<f64>() / all.places.len() as f64;
    let mut told = format!(
        "{point}: max |Δ log p| {} over {positions}; KL(reference‖candidate) ≥ {} mean, {} max, from listed \
         tokens with {:.1} % of the probability and the rest as one",
        figure(delta),
        figure(mean),
        figure(most),
        100.0 * covered
    );
    if let Some(same) = all.same_top() {
        told += &format!("; the top token is the same at {same}");
    }
    if let Some(start) = rows.iter().find_map(|row| row.drift()) {
        told += &format!("; errors persist from position {start} on");
    }
    Some(told)
}
