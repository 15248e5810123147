//! Scores with ALiBi, from slopes that engines compute otherwise.

use xcheck_engine::exact::{Profile, ResultPair, judge};
use xcheck_engine::numerics::{F32, Numerics};
use xcheck_engine::ops::attention::Mask;
use xcheck_engine::tensor::Tensor;
use xcheck_engine::tracing::TracedNumerics;
use xcheck_engine::view::View;

const KEYS: usize = 8192;
const MASK: Mask = Mask { position: KEYS - 1, window: None, chunks: None };

/// Powers of a base that is rounded to f32, as transformers and llama.cpp compute them.
fn rounded_slopes(heads: usize) -> Vec<f32> {
    let base = (-8.0 / heads as f64).exp2() as f32;
    (1..=heads).map(|power| base.powf(power as f32)).collect()
}

fn exact_slopes(heads: usize) -> Vec<f32> {
    (1..=heads).map(|power| (-8.0 * power as f64 / heads as f64).exp2() as f32).collect()
}

/// Judges the biased scores of an f32 engine with slopes `theirs`.
fn is_explained(own: &[f32], theirs: &[f32]) -> bool {
    let profile = Profile::of(&F32);
    let traced = TracedNumerics::new(&F32, profile).rounding_by(profile);
    let score = |at: usize| ((at * 7919) % 1000) as f32 / 250.0 - 2.0;
    let scores = Tensor::new(&[own.len(), 1, KEYS], (0..own.len() * KEYS).map(score).collect());
    let biased = traced.add_alibi(&scores, own, MASK);
    let [own, theirs] = [&biased, &F32.add_alibi(&scores, theirs, MASK)]
        .map(|scores| scores.data().iter().map(|&score| score.into()).collect::<Vec<f64>>());
    let compared = ResultPair {
        traced: &biased,
        sides: [&View::of(biased.shape(), &theirs), &View::of(biased.shape(), &own)],
        stored: None,
        is_double: false,
        sees: &|_| 0..usize::MAX,
    };
    judge(&compared, true).is_some_and(|judged| judged.dump.is_explained())
}

#[test]
fn exact_slopes_pass_and_slopes_of_the_next_head_fail() {
    for heads in [8, 16, 32, 64, 128] {
        let (own, exact) = (rounded_slopes(heads), exact_slopes(heads));
        assert!(is_explained(&own, &own), "{heads} heads");
        assert!(is_explained(&own, &exact), "{heads} heads");
        for head in [0, heads / 2, heads - 2] {
            let mut next = exact.clone();
            next[head] = exact[head + 1];
            assert!(!is_explained(&own, &next), "head {head} of {heads}");
        }
    }
}
