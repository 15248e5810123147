//! Sampling: a distribution whatever the logits, the smallest set under top-p, and transformers' own filters.

use proptest::prelude::*;
use serde_json::Value;
use xcheck_engine::engine::{Sampler, Sampling};
use xcheck_engine::error::{Error, RunError};
use xcheck_engine::numerics::{F32, Numerics};
use xcheck_engine::ops::logits::probabilities;
use xcheck_engine::ops::sampling::{candidates, draw, top_p};
use xcheck_engine::tensor::Tensor;

const PLAIN: Sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };

fn choose(sampling: Sampling, logits: &[f32]) -> Result<u32, Error> {
    Sampler::new(sampling)?.choose(&Tensor::new(&[logits.len()], logits.to_vec()), &F32)
}

/// What may be drawn: token and probability, by token.
fn distribution(sampling: Sampling, logits: &[f32]) -> Vec<(usize, f64)> {
    let logits = Tensor::new(&[logits.len()], logits.to_vec());
    let left = sampling.distribution(F32.probabilities(&logits, sampling.temperature).data());
    let mut left: Vec<_> = left.iter().map(|found| (found.token as usize, found.probability)).collect();
    left.sort_by_key(|(token, _)| *token);
    left
}

fn some_logits() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(-30.0f32..30.0, 1..200)
}

/// Any finite numbers, and some negative infinities.
fn extreme_logits() -> impl Strategy<Value = Vec<f32>> {
    let one = prop_oneof![-f32::MAX..=f32::MAX, -1.0f32..1.0, Just(f32::MAX), Just(f32::NEG_INFINITY)];
    prop::collection::vec(one, 1..50).prop_filter("one is finite", |all| all.iter().any(|x| x.is_finite()))
}

fn settings() -> impl Strategy<Value = Sampling> {
    let (k, p) = (prop::option::of(1usize..300), || prop::option::of(0.0f64..=1.0));
    (1e-6f32..4.0, k, p(), p(), any::<u64>()).prop_map(|(temperature, top_k, top_p, min_p, seed)| Sampling {
        temperature,
        top_k,
        top_p,
        min_p,
        seed,
    })
}

proptest! {
    #[test]
    fn what_may_be_drawn_is_a_distribution_and_one_of_it_is_drawn(
        logits in extreme_logits(),
        sampling in settings(),
    ) {
        let left = distribution(sampling, &logits);
        let sum: f64 = left.iter().map(|(_, probability)| probability).sum();
        prop_assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        prop_assert!(left.iter().all(|(_, probability)| (0.0..=1.0).contains(probability)));
        let drawn = choose(sampling, &logits).expect("there is something to choose") as usize;
        prop_assert!(left.iter().any(|&(token, probability)| token == drawn && probability > 0.0));
        prop_assert!(logits[drawn].is_finite());
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_exceeds_p(logits in some_logits(), p in 0.0f64..1.0) {
        let all = candidates(&probabilities(&logits, 1.0));
        let kept = top_p(all.clone(), p).len();
        let mass = |count: usize| all[..count].iter().map(|found| found.probability).sum::<f64>();
        prop_assert!(mass(kept) > p || kept == all.len());
        prop_assert!(kept == 1 || mass(kept - 1) <= p);
        prop_assert!(all[kept..].iter().all(|rest| rest.probability <= all[kept - 1].probability));
    }

    #[test]
    fn top_k_keeps_k_and_min_p_what_is_likely_enough(logits in some_logits(), k in 1usize..300, p in 0.0f64..=1.0) {
        let kept = distribution(Sampling { top_k: Some(k), ..PLAIN }, &logits);
        prop_assert_eq!(kept.len(), k.min(logits.len()));
        let all = distribution(PLAIN, &logits);
        let best = all.iter().map(|(_, probability)| *probability).fold(0.0, f64::max);
        let likely = all.iter().filter(|(_, probability)| *probability >= best * p).count();
        prop_assert_eq!(distribution(Sampling { min_p: Some(p), ..PLAIN }, &logits).len(), likely);
    }

    #[test]
    fn a_permutation_of_the_vocabulary_permutes_the_result(
        mut ranks in prop::collection::hash_set(-2000i32..2000, 2..100).prop_map(|set| set.into_iter().collect::<Vec<_>>()),
        sampling in settings(),
        rotation in 0usize..100,
    ) {
        // Apart, so that the last bit of a sum decides nothing.
        let logits = |ranks: &[i32]| ranks.iter().map(|&rank| rank as f32 * 0.013).collect::<Vec<f32>>();
        let sampling = Sampling { temperature: sampling.temperature.max(0.1), ..sampling };
        let before = choose(sampling, &logits(&ranks)).expect("it is chosen");
        let chosen = ranks[before as usize];
        let places = ranks.len();
        ranks.rotate_left(rotation % places);
        let after = choose(sampling, &logits(&ranks)).expect("it is chosen");
        prop_assert_eq!(ranks[after as usize], chosen);
    }

    #[test]
    fn a_temperature_below_a_millionth_is_greedy_whatever_the_filters_and_the_seed(
        logits in extreme_logits(),
        sampling in settings(),
        temperature in 0.0f32..9.9e-7,
    ) {
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = logits.iter().position(|&logit| logit == best).expect("it is there");
        prop_assert_eq!(choose(Sampling { temperature, ..sampling }, &logits).expect("chosen"), first as u32);
    }
}

#[test]
fn greedy_takes_the_lowest_id_of_equal_logits() {
    assert_eq!(choose(Sampling::GREEDY, &[0.0, 2.0, 1.0, 2.0]).expect("it is chosen"), 1);
    let most = Sampling { top_k: Some(1), ..PLAIN };
    assert_eq!(distribution(most, &[0.0, 2.0, 1.0, 2.0]), [(1, 1.0)]);
}

#[test]
fn the_millionth_itself_is_a_temperature() {
    assert!(!Sampling { temperature: 1e-6, ..PLAIN }.is_greedy());
    assert!(Sampling { temperature: 0.99e-6, ..PLAIN }.is_greedy());
    assert_eq!(choose(Sampling { temperature: 1e-6, ..PLAIN }, &[1e38, 2e38]).expect("it is chosen"), 1);
}

#[test]
fn tokens_are_drawn_as_often_as_they_are_likely() {
    let logits = Tensor::new(&[4], [0.5f32, 0.25, 0.125, 0.125].map(f32::ln).to_vec());
    let mut sampler = Sampler::new(Sampling { seed: 7, ..PLAIN }).expect("sound settings");
    let mut counts = [0.0; 4];
    (0..40_000)
        .for_each(|_| counts[sampler.choose(&logits, &F32).expect("chosen") as usize] += 1.0 / 40_000.0);
    for (count, probability) in counts.iter().zip([0.5, 0.25, 0.125, 0.125]) {
        assert!(f64::abs(count - probability) < 0.01, "{counts:?}"); // four standard deviations
    }
}

#[test]
fn the_same_seed_draws_the_same_tokens() {
    let logits = Tensor::new(&[1000], vec![0.0; 1000]);
    let draws = |seed| {
        let mut sampler = Sampler::new(Sampling { seed, ..PLAIN }).expect("sound settings");
        (0..5).map(|_| sampler.choose(&logits, &F32).expect("chosen")).collect::<Vec<_>>()
    };
    assert_eq!(draws(1), draws(1));
    assert_ne!(draws(1), draws(2));
}

#[test]
fn the_end_of_the_range_draws_the_last_that_is_possible() {
    let all = candidates(&[0.5, 0.0, 0.5]);
    assert_eq!([0.0, 0.49, 0.5, 0.999].map(|uniform| draw(&all, uniform)), [0, 0, 2, 2]);
    assert_eq!(draw(&all, 1.0), 2);
}

#[test]
fn logits_that_leave_nothing_to_choose_are_an_error_at_every_temperature() {
    for temperature in [0.0, 1.0] {
        let message = |logits: &[f32]| {
            let error = choose(Sampling { temperature, ..PLAIN }, logits).expect_err("nothing can be chosen");
            assert!(matches!(error, Error::Run(RunError::BadLogits { .. })));
            error.to_string()
        };
        assert!(message(&[f32::NEG_INFINITY; 3]).contains("every logit is negative infinity"));
        assert!(message(&[0.0, f32::NAN]).contains("the logit of token 1 is NaN"));
        assert!(message(&[f32::INFINITY, 0.0]).contains("the logit of token 0 is infinite"));
    }
}

#[test]
fn settings_that_mean_nothing_are_refused_by_name() {
    let refused = |sampling: Sampling, what: &str| {
        let message = Sampler::new(sampling).expect_err("it is refused").to_string();
        assert!(message.contains(what), "{message}");
    };
    for temperature in [-1.0, f32::NAN, f32::INFINITY] {
        refused(Sampling { temperature, ..PLAIN }, "the temperature is");
    }
    refused(Sampling { top_k: Some(0), ..PLAIN }, "top-k is 0");
    refused(Sampling { top_p: Some(1.1), ..PLAIN }, "top-p is 1.1");
    refused(Sampling { top_p: Some(f64::NAN), ..PLAIN }, "top-p is NaN");
    refused(Sampling { min_p: Some(-0.1), ..PLAIN }, "min-p is -0.1");
}

/// Made by `reference-scripts/vectors/make_sampling_vectors.py`.
#[test]
fn the_filters_leave_what_those_of_transformers_leave() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/sampling.json");
    let vectors: Value = serde_json::from_slice(&std::fs::read(file).expect("it is there")).expect("JSON");
    let cases = vectors["cases"].as_array().expect("a list");
    assert!(cases.len() >= 20);
    for case in cases {
        let number = |key: &str| case[key].as_f64();
        let sampling = Sampling {
            temperature: number("temperature").expect("a number") as f32,
            top_k: case["top_k"].as_u64().map(|k| k as usize),
            top_p: number("top_p"),
            min_p: number("min_p"),
            seed: 0,
        };
        let logits = vectors["logits"][case["logits"].as_u64().expect("an index") as usize].as_array();
        let logits: Vec<f32> =
            logits.expect("a list").iter().map(|x| x.as_f64().expect("a number") as f32).collect();
        let found = distribution(sampling, &logits);
        let list =
            |key: &str| case[key].as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number"));
        assert!(found.iter().map(|(token, _)| *token as f64).eq(list("kept")), "{sampling:?}");
        for ((_, ours), theirs) in found.iter().zip(list("probabilities")) {
            assert!((ours - theirs).abs() < 1e-6, "{sampling:?}: {ours} against {theirs}");
        }
    }
}
