//! Answers that differ where rounding moves an unlikely token by much: what the likely ones do, their probabilities tell.

use xcheck::probe::{AnswerDifference, LogprobDifference, TokenLogprob, TokenPosition};
use xcheck::verdict::Verdict;

/// Rounding in a short type: an unlikely token by more than ln 3, none by more than a twentieth of the probability.
const SHORT: LogprobDifference = LogprobDifference { nats: 1.4, share: 0.05 };

/// A place where the first token is chosen.
fn place(probabilities: &[f64]) -> TokenPosition {
    let named = |(id, p): (usize, &f64)| TokenLogprob {
        id: Some(id as u32),
        text: String::new(),
        logprob: Some(p.ln()),
    };
    let top: Vec<TokenLogprob> = probabilities.iter().enumerate().map(named).collect();
    let best = top.iter().max_by(|a, b| a.logprob.partial_cmp(&b.logprob).expect("numbers")).cloned();
    TokenPosition { token: best, top }
}

fn judged(one: &[f64], other: &[f64], floor: LogprobDifference) -> Verdict {
    AnswerDifference::of(&[place(one)], &[place(other)]).judge(Some(floor), 0.0).0
}

#[test]
fn what_moves_probabilities_by_no_more_than_rounding_passes() {
    assert_eq!(judged(&[0.60, 0.30, 1e-4], &[0.57, 0.32, 2e-4], SHORT), Verdict::Pass);
}

#[test]
fn what_moves_them_by_more_does_not() {
    assert_eq!(judged(&[0.60, 0.30, 1e-4], &[0.45, 0.42, 2e-4], SHORT), Verdict::Inconclusive);
    assert_eq!(judged(&[0.80, 0.10, 1e-4], &[0.55, 0.30, 2e-4], SHORT), Verdict::Fail);
    // An unlikely token that is further off than rounding moves any.
    assert_eq!(judged(&[0.60, 0.30, 1e-7], &[0.60, 0.30, 1e-3], SHORT), Verdict::Fail);
}

#[test]
fn another_greedy_token_is_a_tie_by_probabilities_too() {
    assert!(matches!(judged(&[0.41, 0.40], &[0.40, 0.42], SHORT), Verdict::Pass | Verdict::Tie));
    let wide = LogprobDifference { nats: 1.4, share: 0.02 };
    assert_eq!(judged(&[0.52, 0.42], &[0.47, 0.475], wide), Verdict::Inconclusive);
    assert_eq!(judged(&[0.60, 0.42], &[0.50, 0.501], wide), Verdict::Fail);
}

#[test]
fn rounding_that_moves_half_of_a_distribution_tells_nothing() {
    let blind = LogprobDifference { nats: 1.4, share: 0.25 };
    assert_eq!(judged(&[0.60, 0.30], &[0.59, 0.31], blind), Verdict::Inconclusive);
    // Where log-probabilities tell, these decide.
    let fine = LogprobDifference { nats: 1e-5, share: 1e-6 };
    assert_eq!(judged(&[0.60, 0.30], &[0.59, 0.31], fine), Verdict::Fail);
}
