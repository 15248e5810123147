//! `xcheck probe --audit`: a correct server in any arithmetic is not rejected, quantised weights are named, and the test keeps its
//! error rate for noise that is not normal.

use serde_json::Value;
use xcheck::probe::ServerProtocol;
use xcheck::probe::state::{NoiseBounds, OddsAnswer, StateTest, ToldOdds};

use super::server::{Fake, MODEL, Way};
use crate::common::share::one_of;
use crate::common::terminal::Terminal;

/// Uniform numbers between -1 and 1.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// A heavy-tailed number, symmetric about 0, of root mean square about 1.2: one of fifty is five times as large.
    fn noise(&mut self) -> f64 {
        let size = if self.next() > 0.96 { 5.0 } else { 1.0 };
        size * (self.next() + self.next() + self.next())
    }
}

const TOKENS: usize = 4;

/// Predictions of three states for one prompt: the second is `far` from the first, the third is twice as far.
fn predicted(draws: &mut Draws, far: f64) -> Vec<Vec<f64>> {
    let first: Vec<f64> = (0..TOKENS).map(|_| 3.0 * draws.next()).collect();
    let apart: Vec<f64> = (0..TOKENS).map(|_| far * draws.next()).collect();
    let at = |times: f64| first.iter().zip(&apart).map(|(y, d)| y + times * d).collect();
    vec![at(0.0), at(1.0), at(-2.0)]
}

fn started(draws: &mut Draws, far: f64) -> StateTest {
    let mut bounds = NoiseBounds::default();
    for _ in 0..24 {
        let noise: Vec<f64> = (0..TOKENS).map(|_| draws.noise()).collect();
        bounds.add(predicted(draws, far), vec![vec![noise]; 3]);
    }
    StateTest::new(1e-3, &bounds)
}

/// Runs a test against a server in a state until it is decided.
fn run(draws: &mut Draws, state: usize, far: f64) -> StateTest {
    const MOST: usize = 200;
    let mut test = started(draws, far);
    while !test.is_decided() && test.answers < MOST {
        let predicted = predicted(draws, far);
        let told = predicted[state].iter().map(|y| ToldOdds::Known(y + draws.noise())).collect();
        test.add(&OddsAnswer { told, step: 0.0, predicted });
    }
    test
}

#[test]
fn a_true_state_is_rarely_rejected_although_its_noise_has_heavy_tails() {
    let mut draws = Draws(1);
    let mut rejected = [0; 3];
    for _ in 0..1000 {
        for (state, rejected) in rejected.iter_mut().enumerate() {
            *rejected += usize::from(run(&mut draws, state, 2.0).rejected(state).is_some());
        }
    }
    // One in a thousand is allowed; the noise is at most its bound, so that fewer are.
    assert!(rejected.iter().sum::<usize>() <= 3, "{rejected:?}");
}

#[test]
fn a_true_state_is_rarely_rejected_although_its_noise_is_twice_the_measured_one() {
    let mut draws = Draws(8);
    let mut rejected = 0;
    for _ in 0..300 {
        let mut test = started(&mut draws, 2.0);
        for _ in 0..200 {
            let predicted = predicted(&mut draws, 2.0);
            let noisy = |y: &f64| ToldOdds::Known(y + std::f64::consts::SQRT_2 * draws.noise());
            let told = predicted[0].iter().map(noisy).collect();
            test.add(&OddsAnswer { told, step: 0.0, predicted });
        }
        rejected += usize::from(test.rejected(0).is_some());
    }
    assert!(rejected <= 3, "{rejected} of 300");
}

#[test]
fn other_states_are_told_by_their_direction() {
    let mut draws = Draws(2);
    for state in 0..3 {
        let test = run(&mut draws, state, 3.0);
        assert_eq!(test.remaining(), [state], "after {} answers", test.answers);
    }
}

#[test]
fn a_state_that_is_not_listed_is_told_by_its_size() {
    let mut draws = Draws(3);
    let mut test = started(&mut draws, 3.0);
    for _ in 0..40 {
        let predicted = predicted(&mut draws, 3.0);
        let told = predicted[0].iter().map(|y| ToldOdds::Known(y + 6.0 * draws.noise())).collect();
        test.add(&OddsAnswer { told, step: 0.0, predicted });
    }
    assert_eq!(test.remaining(), [0usize; 0]);
}

#[test]
fn a_difference_below_rounding_is_not_expected_to_be_told() {
    let test = started(&mut Draws(4), 0.01);
    assert!(test.expected(1).is_none_or(|needed| needed > 10_000), "{:?}", test.expected(1));
    assert_eq!(test.remaining(), [0, 1, 2]);
    assert!(!test.is_decided(), "nothing was asked");
}

#[test]
fn the_last_state_is_not_named_before_the_answers_agree_with_it() {
    let mut draws = Draws(6);
    let mut test = started(&mut draws, 50.0);
    while test.remaining().len() > 1 {
        let predicted = predicted(&mut draws, 50.0);
        let told = predicted[1].iter().map(|y| ToldOdds::Known(*y)).collect();
        test.add(&OddsAnswer { told, step: 0.0, predicted });
    }
    assert_eq!(test.remaining(), [1]);
    assert!(test.answers < test.least_answers() && !test.is_decided(), "{} answers", test.answers);
}

#[test]
fn fewer_requests_do_not_hide_a_state() {
    let mut draws = Draws(5);
    let mut test = started(&mut draws, 0.6);
    let needed = test.expected(1).expect("it can be told");
    assert!(needed > test.least_answers(), "{needed}");
    while test.answers < test.least_answers() {
        let predicted = predicted(&mut draws, 0.6);
        let told = predicted[0].iter().map(|y| ToldOdds::Known(*y)).collect();
        test.add(&OddsAnswer { told, step: 0.0, predicted });
    }
    assert!(test.remaining().contains(&1) && !test.is_decided(), "{needed} requests are needed");
}

fn audited(kind: ServerProtocol, way: Way, more: &[&str]) -> (i32, Value) {
    let server = Fake::new(kind, way);
    let terminal = Terminal::new();
    let words = ["probe", &server.url, "--audit", "--model", MODEL, "--seed", "7", "--no-report"];
    terminal.json(&[&words[..], more].concat())
}

#[test]
fn a_correct_server_is_not_rejected_in_an_audit() {
    let plain = (ServerProtocol::LlamaServer, Way::Plain);
    let rounding = [
        (ServerProtocol::Openai, Way::FourDecimals),
        (ServerProtocol::Vllm, Way::Bf16),
        (ServerProtocol::Vllm, Way::Rounds),
    ];
    for (kind, way) in std::iter::once(plain).chain(one_of(3, rounding)) {
        let (code, report) = audited(kind, way, &[]);
        assert_ne!(code, 1, "{kind:?} {way:?}: {}", report["sentence"]);
        let own = &report["states"][0];
        assert_eq!(
            (own["name"].as_str(), &own["rejected_after"]),
            (Some("model"), &Value::Null),
            "{kind:?} {way:?}"
        );
        if way == Way::Plain {
            assert_eq!((code, report["verdict"].as_str()), (0, Some("pass")), "{}", report["sentence"]);
        }
    }
}

#[test]
fn an_audit_of_values_that_tell_nothing_is_inconclusive() {
    for way in [Way::Renormalised, Way::OneDecimal] {
        let (code, report) = audited(ServerProtocol::Openai, way, &[]);
        assert_eq!(code, 3, "{way:?}: {}", report["sentence"]);
        assert!(report["doubt"].is_string(), "{way:?}: {}", report["sentence"]);
    }
}

#[test]
fn an_impossible_value_rejects_a_state_without_nan() {
    let mut draws = Draws(7);
    let mut test = started(&mut draws, 3.0);
    let told = vec![ToldOdds::Known(-1e200); TOKENS];
    test.add(&OddsAnswer { told, step: 0.0, predicted: predicted(&mut draws, 3.0) });
    assert!((0..3).all(|state| !test.evidence(state).is_nan()));
    assert_eq!(test.remaining(), [0usize; 0]);
}

#[test]
fn an_audit_names_fp8_weights_and_rejects_a_temperature() {
    let (code, report) = audited(ServerProtocol::Vllm, Way::Fp8Weights, &[]);
    assert_eq!(code, 1, "{}", report["sentence"]);
    let states = report["states"].as_array().expect("states");
    let open: Vec<&str> = states
        .iter()
        .filter(|state| state["rejected_after"].is_null())
        .filter_map(|state| state["name"].as_str())
        .collect();
    assert!(open.contains(&"fp8-channel"), "{open:?}");
    let (code, report) = audited(ServerProtocol::LlamaServer, Way::Sixteenth, &[]);
    assert_eq!(code, 1, "{}", report["sentence"]);
    assert!(report["states"][0]["rejected_after"].is_u64(), "{}", report["sentence"]);
}

#[test]
fn an_audit_that_cannot_be_made_is_refused_in_one_message() {
    let server = Fake::new(ServerProtocol::Openai, Way::Talks);
    let terminal = Terminal::new();
    let finished = terminal.run(&["probe", &server.url, "--audit", "--model", MODEL, "--no-report"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (2, ""), "{}", finished.stderr);
    assert!(finished.stderr.contains("only answers conversations"), "{}", finished.stderr);
    assert_eq!(terminal.run(&["probe", &server.url, "--audit"]).code, 2, "it needs a model");
    let ignored = ["probe", &server.url, "--audit", "--model", MODEL, "--no-causes"];
    assert_eq!(terminal.run(&ignored).code, 2, "an audit searches for no causes");
    // With nine requests, six of which identify the server, there are too few answers.
    let (code, report) = audited(ServerProtocol::Vllm, Way::Plain, &["--requests", "9"]);
    assert_eq!((code, report["verdict"].as_str()), (3, Some("inconclusive")));
}
