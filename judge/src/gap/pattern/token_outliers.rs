//! Detects single tokens with large differences, in sequences that otherwise differ only by rounding.

use serde_json::json;

use crate::gap::field_names::PolicySide;
use crate::gap::finding::{GapFinding, counted};
use crate::gap::logprob_error::median;
use crate::gap::pair_view::{PairView, rms};
use crate::gap::pattern::one_sided::exceed_chance;
use crate::gap::token_route::TokenRoute;

/// Minimum difference of an outlier token, in standard deviations of the other tokens.
const SIGMAS: f64 = 12.0;
/// Minimum difference of an outlier token, in units of the standard deviation that rounding to the coarsest type
/// causes.
const LARGEST_SIGMAS: f64 = 8.0;
/// Maximum share of tokens that may count as outliers.
const MOST: f64 = 0.1;
/// Minimum number of outlier tokens for a pattern.
const LEAST: usize = 3;
/// Minimum share of outlier tokens that have the same sign in a one-sided pattern.
const ONE_SIDED: f64 = 0.9;
/// Maximum excess of one sign among medium-sized differences, per outlier token, that is not yet a tail. One
/// standard deviation of random signs is added.
const LEAN: f64 = 0.25;

/// Finds outlier tokens: single tokens with large differences.
pub(super) fn find(pair: &PairView) -> Option<GapFinding> {
    let usual = 1.5 * median(pair.scaled.iter().map(|scaled| scaled.abs()));
    let is_far = |index: &usize| {
        let token = &pair.sample.tokens[*index];
        let rounding = LARGEST_SIGMAS * pair.error.sigma(token, pair.limit());
        token.delta().abs() > rounding.max(SIGMAS * pair.error.sigma(token, usual))
    };
    let far: Vec<usize> = (0..pair.sample.tokens.len()).filter(is_far).collect();
    let is_few = far.len() as f64 <= MOST * pair.sample.tokens.len() as f64;
    let is_stretch = far.len() >= LEAST && !are_scattered(pair, &far);
    if far.is_empty() || !is_few || is_stretch || !are_others_right(pair, &far) {
        return None;
    }
    let is_there = |index: usize| far.binary_search(&index).is_ok();
    let share = pair.share(is_there);
    let above = far.iter().filter(|&&index| pair.sample.tokens[index].delta() > 0.0).count();
    let one_sided = above.max(far.len() - above) as f64 / far.len() as f64;
    let sequences: Vec<usize> = pair
        .sample
        .sequences
        .iter()
        .filter(|sequence| sequence.tokens.clone().any(is_there))
        .map(|sequence| sequence.index)
        .collect();
    let larger = if 2 * above > far.len() { PolicySide::Rollout } else { PolicySide::Trainer };
    let count = counted(far.len(), "token");
    let of = pair.sample.tokens.len();
    let farthest = far.iter().map(|&index| pair.sample.tokens[index].delta().abs()).fold(0.0, f64::max);
    let is_pattern = far.len() >= LEAST && one_sided >= ONE_SIDED && !can_flip(pair, &far, larger);
    let finding = if is_pattern && is_tail(pair, far.len(), usual, larger) {
        let text = format!(
            "{count} of {of} are up to {farthest:.2} nats off, the {}'s are the larger ones, and smaller differences lean \
             to that side, too; no known pattern explains them. Candidates: a log-sum-exp over \
             padding of the vocabulary, other tokens than the sampled ones",
            larger.name()
        );
        GapFinding::fault("one-sided", text).with("larger", larger.name())
    } else if is_pattern {
        let text = format!(
            "log-probabilities of other tokens than the sampled ones: {count} of {of} are up to {farthest:.2} nats off, \
             the others differ by rounding, and the {}'s are the larger ones",
            larger.name()
        );
        GapFinding::fault("other-token", text).with("larger", larger.name())
    } else {
        let text = format!(
            "{count} of {of} are up to {farthest:.2} nats off, and the others differ by rounding. Candidates: experts that \
             flip in a mixture of experts (routed_experts of both sides, or --model, shows them), log-probabilities of \
             other tokens than the sampled ones"
        );
        GapFinding::doubt("far-tokens", text)
    };
    Some(finding.with("tokens", json!(far.len())).at(sequences, share))
}

/// Returns true if flipped experts can cause differences in one direction. The sampled tokens are those that the
/// rollout's experts made likely, so the rollout's log-probabilities are then the larger ones.
fn can_flip(pair: &PairView, far: &[usize], larger: PolicySide) -> bool {
    let has_same_experts = far.iter().all(|&index| pair.sample.routes[index] == TokenRoute::Same);
    let deltas = far.iter().map(|&index| pair.sample.tokens[index].delta());
    let is_all = deltas.clone().all(|delta| delta > 0.0);
    larger == PolicySide::Rollout && !has_same_experts && !(is_all && exceed_chance(deltas))
}

/// Returns true if medium-sized differences, between rounding and the outliers, mostly have the outliers' sign. If
/// a side scores another token than the sampled one, there are outliers without such a tail.
fn is_tail(pair: &PairView, far: usize, usual: f64, larger: PolicySide) -> bool {
    let sign = if larger == PolicySide::Rollout { 1.0 } else { -1.0 };
    let sigmas = pair.sample.tokens.iter().map(|token| sign * token.delta() / pair.error.sigma(token, usual));
    let between: Vec<f64> = sigmas.filter(|sigmas| (2.0..SIGMAS).contains(&sigmas.abs())).collect();
    let lean: f64 = between.iter().map(|sigmas| sigmas.signum()).sum();
    lean > LEAN * far as f64 + (between.len() as f64).sqrt()
}

/// Returns true if few outlier tokens are adjacent, and no sequence has most of them. Faults of positions or
/// sequences would make adjacent tokens outliers.
fn are_scattered(pair: &PairView, far: &[usize]) -> bool {
    let most = pair.sample.sequences.iter().map(|sequence| {
        far.partition_point(|&index| index < sequence.tokens.end)
            - far.partition_point(|&index| index < sequence.tokens.start)
    });
    let adjacent = far.windows(2).filter(|both| both[1] - both[0] <= 2).count();
    5 * adjacent <= far.len() && 2 * most.max().unwrap_or(0) <= far.len().max(4)
}

/// Returns true if all sequences differ only by rounding once the outlier tokens are removed.
fn are_others_right(pair: &PairView, far: &[usize]) -> bool {
    pair.sample.sequences.iter().all(|sequence| {
        let others = sequence.tokens.clone().filter(|index| far.binary_search(index).is_err());
        let others: Vec<f64> = others.map(|index| pair.scaled[index]).collect();
        let uncertainty = 1.0 + 3.0 / (others.len().max(1) as f64).sqrt();
        rms(&others) <= 2.0 * uncertainty * pair.limit()
    })
}
