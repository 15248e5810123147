//! What an answer says of itself: log-probabilities in few decimals, or of a short type, are such; others in their clothes are not.

use xcheck::probe::self_consistency::sound;
use xcheck::probe::{ContinuationRequest, GreedyContinuation, ProbePrompt, TokenLogprob, TokenPosition};
use xcheck::verdict::Verdict;

/// Logits of eight tokens at each of three places.
const LOGITS: [[f64; 8]; 3] = [
    [9.1, 8.3, 7.9, 7.2, 6.6, 5.1, 4.4, 3.7],
    [12.7, 12.2, 11.9, 8.4, 8.3, 7.7, 6.1, 2.9],
    [6.45, 6.41, 6.3, 6.2, 6.17, 5.8, 5.5, 5.3],
];

/// What is found of all eight, as `told` makes them of logits and the logarithm of the sum of their exponentials.
fn found(told: impl Fn(f64, f64) -> f64) -> Verdict {
    let place = |logits: &[f64; 8]| {
        let sum = logits.iter().map(|z| z.exp()).sum::<f64>().ln();
        let named = |(id, &z): (usize, &f64)| TokenLogprob {
            id: Some(id as u32),
            text: id.to_string(),
            logprob: Some(told(z, sum)),
        };
        let top: Vec<TokenLogprob> = logits.iter().enumerate().map(named).collect();
        TokenPosition { token: top.first().cloned(), top }
    };
    let answer =
        GreedyContinuation { places: LOGITS.iter().map(place).collect(), ..GreedyContinuation::default() };
    let prompt = ProbePrompt::default();
    let ask = ContinuationRequest { prompt: &prompt, tokens: 3, top: 8, cold: false, streamed: false };
    let checks = sound(&answer, &ask);
    let check = checks.iter().find(|check| check.name == "log-probabilities are valid").expect("it is asked");
    check.verdict.expect("there are values")
}

fn decimals(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn f16(value: f64) -> f64 {
    half::f16::from_f64(value).to_f64()
}

fn bf16(value: f64) -> f64 {
    half::bf16::from_f64(value).to_f64()
}

#[test]
fn logprobs_pass_in_the_precision_they_are_told_in() {
    assert_eq!(found(|z, sum| z - sum), Verdict::Pass);
    assert_eq!(found(|z, sum| f64::from((z - sum) as f32)), Verdict::Pass);
    assert_eq!(found(|z, sum| decimals(z - sum)), Verdict::Pass);
    assert_eq!(found(|z, sum| f16(f16(z) - f16(sum))), Verdict::Pass);
    assert_eq!(found(|z, sum| bf16(bf16(z) - bf16(sum))), Verdict::Pass);
}

#[test]
fn logprobs_of_another_base_fail_in_few_decimals_too() {
    assert_eq!(found(|z, sum| (z - sum) / 10f64.ln()), Verdict::Fail);
    assert_eq!(found(|z, sum| decimals((z - sum) / 10f64.ln())), Verdict::Fail);
    assert_eq!(found(|z, sum| f16((z - sum) / 10f64.ln())), Verdict::Fail);
    assert_eq!(found(|z, sum| bf16((z - sum) / 10f64.ln())), Verdict::Fail);
}
