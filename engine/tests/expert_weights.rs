//! Weights of experts whose authors round the scores and their sum: the next sum is not explained.

use std::path::Path;

use xcheck_engine::exact::{Float, Profile, ResultPair, judge};
use xcheck_engine::format::{FileBytes, Gguf};
use xcheck_engine::model::decoder::{Decoder, StandardBlock};
use xcheck_engine::model::lfm2;
use xcheck_engine::numerics::{Numerics, Transformers};
use xcheck_engine::ops::experts::ExpertRouting;
use xcheck_engine::tensor::Tensor;
use xcheck_engine::tracing::TracedNumerics;
use xcheck_engine::view::View;

const TOKENS: usize = 64;
const EXPERTS: usize = 8;
const USED: usize = 2;

/// The routing of LFM2 with experts, which rounds scores and their sum.
fn routing() -> ExpertRouting {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/data/architectures/tiny-lfm2moe/tiny-lfm2moe-f32.gguf");
    let file = Gguf::read(&FileBytes::open(&path).expect("it is there")).expect("it is sound");
    let mut model: Decoder<StandardBlock> = Decoder::from_gguf(&file, &lfm2::MOE_FAMILY).expect("it loads");
    model.layers.iter_mut().find_map(|layer| layer.mixture_mut()).expect("experts").routing.clone()
}

fn is_explained(traced: &Tensor, made: &[f64]) -> bool {
    let nowhere = vec![f64::NAN; made.len()];
    let sides = [&View::of(traced.shape(), made), &View::of(traced.shape(), &nowhere)];
    let compared = ResultPair { traced, sides, stored: None, is_double: false, sees: &|_| 0..usize::MAX };
    judge(&compared, true).expect("one operation").dump.is_explained()
}

#[test]
fn a_rounded_sum_of_expert_weights_is_explained_and_the_next_one_is_not() {
    let routing = routing();
    for (numerics, short, step) in
        [(Transformers::Bf16, Float::Bf16, 1 << 16), (Transformers::F16, Float::F16, 1 << 13)]
    {
        let logit = |at: usize| short.round((at as f64 * 0.37).sin() * 3.0) as f32;
        let logits = Tensor::new(&[TOKENS, EXPERTS], (0..TOKENS * EXPERTS).map(logit).collect());
        let experts = |token: usize| [token % 4, 4 + token % 3].map(|expert| expert as f32);
        let chosen = Tensor::new(&[TOKENS, USED], (0..TOKENS).flat_map(experts).collect());
        let profile = Profile::of(&numerics);
        let traced = TracedNumerics::new(&numerics, profile).rounding_by(profile);
        let traced = traced.expert_weights(&logits, &chosen, &routing);
        // Sums that are off by some steps of the type.
        let made = |rounded: bool, off: i64| {
            let round = |x: f64| if rounded { short.round(x) } else { x };
            let of_token = |token: usize| {
                let score =
                    |expert: f32| round(1.0 / (1.0 + (-f64::from(logits.row(token)[expert as usize])).exp()));
                let scores = experts(token).map(score);
                let sum = round(round(scores.iter().sum()) + 1e-6) as f32;
                let sum = f32::from_bits((i64::from(sum.to_bits()) + off * step) as u32);
                scores.map(|score| short.round(score / f64::from(sum)))
            };
            (0..TOKENS).flat_map(of_token).collect::<Vec<f64>>()
        };
        let own: Vec<f64> = traced.data().iter().map(|&x| x.into()).collect();
        assert_eq!(own, made(true, 0), "{short:?}");
        assert!(is_explained(&traced, &own), "{short:?}");
        assert!(is_explained(&traced, &made(false, 0)), "{short:?}: nothing is rounded");
        for off in [-1, 1] {
            assert!(!is_explained(&traced, &made(true, off)), "{short:?}: {off}");
        }
    }
}
