//! Detects that one side normalises over fewer tokens, so that all its log-probabilities are too large.
//!
//! After top-p or top-k, the log-probabilities of the kept tokens are renormalised. If only one token is kept, its
//! log-probability is exactly 0. A log-sum-exp over a part of the vocabulary, or over padding, gives no such zeros.

use serde_json::json;

use crate::gap::field_names::PolicySide;
use crate::gap::finding::GapFinding;
use crate::gap::pair_view::PairView;
use crate::gap::token_sample::ScoredToken;

/// Minimum mean difference, in units of the root mean square.
const SHARE: f64 = 0.3;
/// Maximum share of tokens whose difference has the opposite sign and exceeds rounding.
const OPPOSITE: f64 = 0.002;
/// Minimum share of tokens that are the only one kept by top-p.
const ALONE: f64 = 0.01;
/// Maximum difference of log-sum-exps over vocabulary ranges.
const FARTHEST: f64 = 1.5;
/// Share of the squared differences that a multiple of the log-probability must explain.
const PROPORTIONAL: f64 = 0.9;
/// Minimum mean, in standard errors over sequences.
const SIGMAS: f64 = 5.0;
/// Maximum probability that noise gives all differences beyond rounding the same sign.
const CHANCE: f64 = 1e-6;

/// Finds log-probabilities that are renormalised after top-p or top-k.
pub(super) fn find_processed(pair: &PairView) -> Option<GapFinding> {
    let (larger, _) = larger_side(pair)?;
    let tokens = &pair.sample.tokens;
    let values = tokens.iter().map(|token| match larger {
        PolicySide::Rollout => (f64::from(token.rollout), f64::from(token.trainer)),
        PolicySide::Trainer => (f64::from(token.trainer), f64::from(token.rollout)),
    });
    let alone = values.filter(|(own, other)| *own > -1e-6 && *other < -1e-3).map(|(_, other)| other);
    let alone: Vec<f64> = alone.collect();
    let kept = alone.iter().copied().fold(0.0, f64::min);
    // Without the part that the filter removes, all tokens differ by rounding.
    let is_bounded = |token: &ScoredToken| {
        token.delta().abs() <= -1.2 * kept + 6.0 * pair.error.sigma(token, pair.limit())
    };
    let is_sampled = alone.len() as f64 >= ALONE * tokens.len() as f64 && tokens.iter().all(is_bounded);
    is_sampled.then(|| processed(larger, kept, alone.len()))
}

/// Finds a log-sum-exp over fewer entries of the vocabulary.
pub(super) fn find_range(pair: &PairView) -> Option<GapFinding> {
    let (larger, mean) = larger_side(pair)?;
    let farthest = pair.sample.tokens.iter().map(|token| token.delta().abs()).fold(0.0, f64::max);
    let is_range = is_range(pair) || (is_beyond_rounding(pair) && !is_proportional(pair));
    (farthest <= FARTHEST && is_range).then(|| range(larger, farthest, mean))
}

/// Finds differences that exceed rounding in one direction only.
///
/// The tokens are sampled from the rollout's distribution. Even with unbiased noise of size d, the rollout's
/// log-probability is therefore larger than the trainer's exp(d) times as often as smaller.
pub(super) fn find_excess(pair: &PairView) -> Option<GapFinding> {
    let tokens = &pair.sample.tokens;
    let beyond: Vec<f64> =
        tokens.iter().filter(|token| !pair.is_rounding(token)).map(ScoredToken::delta).collect();
    let above = beyond.iter().filter(|delta| **delta > 0.0).count();
    let larger = match above {
        0 => PolicySide::Trainer,
        _ if above == beyond.len() => PolicySide::Rollout,
        _ => return None,
    };
    exceed_chance(beyond.iter().copied()).then(|| {
        let farthest = beyond.iter().fold(0.0, |most: f64, delta| most.max(delta.abs()));
        let text = format!(
            "{} of {} tokens differ by more than rounding, and at all of these the {}'s log-probability is larger, by up to \
             {farthest:.2e} nats. Candidates: the {}'s log-sum-exp leaves entries out (padding of the vocabulary, added \
             tokens, a masked end token), or log-probabilities of wrong token ids",
            beyond.len(),
            tokens.len(),
            larger.name(),
            larger.name()
        );
        GapFinding::fault("one-sided", text).with("larger", larger.name())
    })
}

/// Returns true if it is unlikely that noise gives all these differences the same sign.
pub(super) fn exceed_chance(deltas: impl Iterator<Item = f64>) -> bool {
    let evidence: f64 = deltas.map(|delta| (-delta.abs()).exp().ln_1p()).sum();
    evidence > -CHANCE.ln()
}

/// Returns true if most differences exceed rounding. If another fault than a shift of log-sum-exp is present, the
/// differences have both signs.
fn is_beyond_rounding(pair: &PairView) -> bool {
    let beyond = pair.sample.tokens.iter().filter(|token| !pair.is_rounding(token)).count();
    2 * beyond > pair.sample.tokens.len()
}

/// Returns true if the differences are a multiple of the log-probability.
fn is_proportional(pair: &PairView) -> bool {
    let sum = |of: &dyn Fn(&ScoredToken) -> f64| pair.sample.tokens.iter().map(of).sum::<f64>();
    let (own, both) = (sum(&|t| t.logprob().powi(2)), sum(&|t| t.logprob() * t.delta()));
    let all = sum(&|t| t.delta().powi(2));
    both * both >= PROPORTIONAL * own * all
}

/// Returns the side whose log-probabilities are systematically larger, by more than rounding can cause, and the
/// mean difference.
fn larger_side(pair: &PairView) -> Option<(PolicySide, f64)> {
    let tokens = &pair.sample.tokens;
    let sum: f64 = tokens.iter().map(ScoredToken::delta).sum();
    let (larger, sign) = if sum > 0.0 { (PolicySide::Rollout, 1.0) } else { (PolicySide::Trainer, -1.0) };
    let count = tokens.len().max(1) as f64;
    let opposite =
        tokens.iter().filter(|token| sign * token.delta() < 0.0 && !pair.is_rounding(token)).count();
    let square = tokens.iter().map(|token| token.delta().powi(2)).sum::<f64>() / count;
    let mean = sum.abs() / count;
    let is_systematic =
        mean > (SHARE * square.sqrt()).max(pair.largest_bias()) && mean_in_errors(pair) > SIGMAS;
    (is_systematic && tokens.len() >= 100 && opposite as f64 <= OPPOSITE * count).then_some((larger, mean))
}

/// Creates the finding for log-probabilities that are renormalised after top-p or top-k.
fn processed(side: PolicySide, kept: f64, alone: usize) -> GapFinding {
    let kept = kept.exp();
    let text = format!(
        "processed against raw log-probabilities: the {}'s are renormalised after top-p, top-k or min-p; {alone} tokens \
         have a log-probability of exactly 0, because the filter kept only them, and the filter keeps a probability of at \
         least {kept:.2}. \
         Use raw log-probabilities (vLLM: logprobs_mode raw_logprobs), or apply the same filter on both sides",
        side.name()
    );
    let value = json!({"side": side.name(), "least_kept": (1e4 * kept).round() / 1e4});
    GapFinding::fault("processed", text).with("renormalised", value)
}

/// Creates the finding for a log-sum-exp over fewer entries of the vocabulary.
fn range(side: PolicySide, farthest: f64, mean: f64) -> GapFinding {
    let text = format!(
        "log-sum-exp over another range of the vocabulary: the {}'s log-probabilities are larger (by {mean:.3} on \
         average, at most {farthest:.3} nats), so it sums over fewer entries than the {}'s (added tokens, \
         or padding of the vocabulary)",
        side.name(),
        side.other().name()
    );
    GapFinding::fault("vocabulary-range", text).with("fewer_entries", side.name())
}

/// Returns true if the differences are a shift of log-sum-exp, so that they do not depend on the token's own
/// probability.
fn is_range(pair: &PairView) -> bool {
    let mean = |is_in: &dyn Fn(f64) -> bool| {
        let chosen = pair.sample.tokens.iter().filter(|token| is_in(token.logprob()));
        let (sum, count) =
            chosen.fold((0.0, 0usize), |(sum, count), token| (sum + token.delta().abs(), count + 1));
        (count >= 10).then(|| sum / count as f64)
    };
    let (likely, unlikely) = (mean(&|logprob| logprob > -1.5), mean(&|logprob| logprob < -3.0));
    // Weights that differ, dropout or masks move unlikely tokens several times as far as likely ones.
    match (likely, unlikely) {
        (Some(likely), Some(unlikely)) => unlikely < 3.0 * likely,
        _ => false,
    }
}

/// Returns the mean difference in standard errors over sequences.
fn mean_in_errors(pair: &PairView) -> f64 {
    let sums: Vec<f64> =
        pair.sequences().map(|(_, tokens)| tokens.iter().map(|token| token.delta()).sum::<f64>()).collect();
    let mean = sums.iter().sum::<f64>() / sums.len().max(1) as f64;
    let variance =
        sums.iter().map(|sum| (sum - mean).powi(2)).sum::<f64>() / sums.len().saturating_sub(1).max(1) as f64;
    let error = (variance / sums.len().max(1) as f64).sqrt();
    if sums.len() < 5 { 0.0 } else { mean.abs() / error.max(f64::MIN_POSITIVE) }
}
