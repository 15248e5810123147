//! Detects a temperature that only one side applies.
//!
//! With temperature T, the log-odds x of a token become x/T + (1/T - 1)·h, where h >= 0 measures how many other
//! tokens are likely. The difference of the log-odds is then a linear function of the log-odds, whose slope and
//! intercept have the same sign.

use serde_json::json;

use crate::gap::field_names::PolicySide;
use crate::gap::finding::GapFinding;
use crate::gap::logprob_error::{log_odds_of, quantile};
use crate::gap::pair_view::PairView;
use crate::gap::token_sample::ScoredToken;

/// Minimum slope: that of a temperature of 0.98.
const LEAST_SLOPE: f64 = 0.02;
/// Minimum share of the variance that the line explains.
const SHARE: f64 = 0.7;
/// Minimum slope, in standard errors over sequences.
const SIGMAS: f64 = 6.0;
/// Share of the tokens, likeliest first, whose slope gives the temperature.
const CONFIDENT: f64 = 0.3;
/// Minimum number of tokens for a line.
const LEAST: usize = 60;

/// Finds the temperature that one side applies.
pub(super) fn find(pair: &PairView) -> Option<GapFinding> {
    let line = Line::of(pair, 1.0)?;
    let explains = line.explained >= SHARE;
    let has_one_sign = line.slope * line.intercept > 0.0;
    if line.slope.abs() < LEAST_SLOPE || !explains || !has_one_sign || line.sigmas < SIGMAS {
        return None;
    }
    // With r = trainer's log-odds / rollout's, the slope is 2·(1 - r) / (1 + r). The intercept h biases the slope of all
    // tokens. It is small for likely tokens, but these are few. The mean of both slopes is used.
    let likely =
        Line::of(pair, CONFIDENT).map(|likely| likely.slope).filter(|slope| slope * line.slope > 0.0);
    let slope = 0.5 * (line.slope + likely.unwrap_or(line.slope));
    let ratio = (1.0 - slope / 2.0) / (1.0 + slope / 2.0);
    let temperature = 1.0 / ratio;
    let stated =
        pair.sample.sequences.iter().flat_map(|sequence| sequence.temperatures.into_iter().flatten());
    let stated = stated.map(|stated| if stated > 0.0 { stated } else { 1.0 });
    let near = |side: f64| move |stated: &f64| (stated / side - 1.0).abs() < 0.05;
    let is_stated = stated.clone().any(|one| near(temperature)(&one) || near(1.0 / temperature)(&one));
    let (side, temperature) = match stated.clone().any(|one| near(1.0 / temperature)(&one)) {
        true => (PolicySide::Rollout, 1.0 / temperature),
        false => (PolicySide::Trainer, temperature),
    };
    let text = format!(
        "temperature on one side: the {}'s logits are divided by about {temperature:.2} compared with the {}'s{} \
         (or the {}'s by {:.2}); this explains {:.1} % of the variance",
        side.name(),
        side.other().name(),
        if is_stated { ", the temperature that the file states" } else { "" },
        side.other().name(),
        1.0 / temperature,
        100.0 * line.explained
    );
    let value = json!({"side": side.name(), "value": (1e4 * temperature).round() / 1e4});
    Some(GapFinding::fault("temperature", text).with("temperature", value))
}

/// The line through the differences as a function of the log-odds.
struct Line {
    slope: f64,
    intercept: f64,
    /// Share of the variance of the differences that the line explains.
    explained: f64,
    /// Slope in standard errors over sequences.
    sigmas: f64,
}

impl Line {
    /// Fits the line to the likeliest tokens; `share` states how many.
    fn of(pair: &PairView, share: f64) -> Option<Self> {
        let least = least_log_odds(pair, share);
        let informative = |index: usize| {
            let token = &pair.sample.tokens[index];
            let [one, other] = [token.rollout, token.trainer].map(|logprob| log_odds_of(logprob, 0.0));
            (pair.error.is_informative(token) && one + other >= least)
                .then_some((0.5 * (one + other), one - other))
        };
        let of = |range: std::ops::Range<usize>| range.filter_map(informative).collect::<Vec<_>>();
        let sequences: Vec<Vec<(f64, f64)>> =
            pair.sample.sequences.iter().map(|sequence| of(sequence.tokens.clone())).collect();
        let count = sequences.iter().map(Vec::len).sum::<usize>();
        if count < LEAST {
            return None;
        }
        let all = || sequences.iter().flatten();
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| all().map(of).sum::<f64>() / count as f64;
        let (x, y) = (mean(&|point| point.0), mean(&|point| point.1));
        let spread = mean(&|point| (point.0 - x).powi(2));
        let slope = mean(&|point| (point.0 - x) * (point.1 - y)) / spread;
        let total = mean(&|point| (point.1 - y).powi(2));
        let intercept = y - slope * x;
        let residual = mean(&|point| (point.1 - intercept - slope * point.0).powi(2));
        let score = |sequence: &Vec<(f64, f64)>| -> f64 {
            sequence.iter().map(|point| (point.0 - x) * (point.1 - intercept - slope * point.0)).sum()
        };
        let error = sequences.iter().map(|sequence| score(sequence).powi(2)).sum::<f64>().sqrt()
            / (count as f64 * spread);
        (spread > 0.0 && total > 0.0).then(|| Self {
            slope,
            intercept,
            explained: 1.0 - residual / total,
            sigmas: slope.abs() / error.max(f64::MIN_POSITIVE),
        })
    }
}

/// Returns the smallest sum of both sides' log-odds among the likeliest informative tokens, of which there is a
/// given share.
fn least_log_odds(pair: &PairView, share: f64) -> f64 {
    if share >= 1.0 {
        return f64::NEG_INFINITY;
    }
    let informative = pair.sample.tokens.iter().filter(|token| pair.error.is_informative(token));
    let sum = |token: &ScoredToken| log_odds_of(token.rollout, 0.0) + log_odds_of(token.trainer, 0.0);
    quantile(&mut informative.map(sum).collect::<Vec<_>>(), 1.0 - share)
}
