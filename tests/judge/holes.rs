//! A dump that leaves taps out is judged more coarsely, never more harshly.

use xcheck::checkpoint::Point::{self, *};
use xcheck::compare::{Role, Row, Verdict};
use xcheck::diagnose::{Mode, Outcome};
use xcheck::dump::Dump;
use xcheck::model::llama::Llama;
use xcheck::shipped;

use super::scene::{Scene, assert_first_wrong, site, told};
use crate::common::faulty::At;
use crate::common::share::one_of;
use crate::common::{gguf, reference_with_only};

/// Taps that producers leave out together.
const FAMILIES: &[&[Point]] = &[
    &[KCache, VCache],
    &[AttnResidual],
    &[KCache, VCache, AttnResidual],
    &[AttnScores, AttnWeights],
    &[AttnScores, AttnWeights, AttnContext],
    &[AttnNorm, FfnNorm, AttnPostNorm, FfnPostNorm, FinalNorm],
    &[Q, K, V, QNorm, KNorm],
    &[QRope, KRope, KCache, VCache],
    &[AttnSubNorm, FfnSubNorm],
    &[AttnOut, FfnOut, AttnResidual],
    &[FfnGate, FfnUp, FfnAct],
    &[Embed, BlockOut, AttnResidual],
    &[LastLogits, Logits],
    &[Probs, Argmax],
    &[Generated],
];

/// What the poorest producers keep.
const LITTLE: &[&[Point]] = &[
    &[Logits],
    &[LastLogits],
    &[Generated],
    &[LastLogits, Argmax, Generated],
    &[Embed, BlockOut, Logits],
    &[BlockOut],
    &[FinalNorm, Logits],
];

fn without(family: &[Point]) -> Vec<Point> {
    Point::ALL.iter().copied().filter(|point| !family.contains(point)).collect()
}

fn thinned(model: &str, name: &str, points: &[Point]) -> Dump {
    let taps: Vec<&str> = points.iter().map(|point| point.name()).collect();
    reference_with_only(model, name, &taps)
}

fn is_the_producers(outcome: &Outcome) -> bool {
    outcome.rows.iter().filter_map(|row: &Row| row.total.as_ref()).all(|total| total.is_identical())
}

/// Every dump of a model with every family left out. Those of which every value is ours pass; none fails.
fn check(model: &str) {
    let references = shipped::model(model).expect("it ships").references().expect("they are sound");
    let references = references.into_iter().filter(|(name, _)| !name.ends_with("-f16"));
    let scenes = references.map(|(name, dump)| (name, Scene::of(model, dump)));
    let scenes = scenes.map(|(name, scene)| (name, is_the_producers(&scene.judge(&mut ())), scene));
    let scenes: Vec<_> = scenes.collect();
    let kept =
        FAMILIES.iter().map(|family| without(family)).chain(LITTLE.iter().map(|points| points.to_vec()));
    let kept: Vec<_> = kept.collect();
    let cases = scenes.iter().flat_map(|scene| kept.iter().map(move |points| (scene, points)));
    for ((name, identical, scene), points) in one_of(3, cases) {
        let dump = thinned(model, name, points);
        let outcome = scene.judge_dump(&dump, Mode::Both, Role::Reference, &mut ());
        let missing: Vec<_> = without(points).iter().map(|point| point.name()).collect();
        let what = format!("{model} {name} without {missing:?}: {}", told(&outcome));
        assert_ne!(outcome.verdict, Verdict::Fail, "{what}");
        if *identical {
            assert_eq!(outcome.verdict, Verdict::Pass, "{what}");
        }
    }
}

#[test]
fn no_shipped_dump_of_llamas_fails_for_what_it_leaves_out() {
    ["tiny-llama2", "tiny-llama2c", "tiny-llama3"].into_iter().for_each(check);
}

#[test]
fn no_shipped_dump_of_gpt2_qwen_and_bitnets_fails_for_what_it_leaves_out() {
    ["tiny-gpt2", "tiny-qwen3", "tiny-bitnet", "tiny-bitnet-b158"].into_iter().for_each(check);
}

#[test]
fn no_shipped_dump_of_gemmas_fails_for_what_it_leaves_out() {
    ["tiny-gemma3", "tiny-gemma3-vision"].into_iter().for_each(check);
}

// ---- faults are found nevertheless ----------------------------------------------------------------------

#[test]
fn without_caches_and_residuals_a_fault_is_still_found_at_its_tap() {
    let points = without(&[KCache, VCache, AttnResidual]);
    for name in ["llama.cpp-f32", "llama.cpp-q8_0", "transformers-bf16", "transformers-f32"] {
        let scene = Scene::shipped("tiny-llama2", name);
        let dump = thinned("tiny-llama2", name, &points);
        let stages =
            [AttnNorm, Q, V, KRope, AttnScores, AttnWeights, AttnContext, AttnOut, FfnNorm, FfnAct, FfnOut];
        for (index, point) in stages.into_iter().enumerate() {
            let wrong = if index % 2 == 0 { site(point, 0, 0) } else { site(point, 2, 1) };
            let mut fault = At(wrong, |values: &mut [f32]| values.iter_mut().for_each(|value| *value *= 1.2));
            let outcome = scene.judge_dump(&dump, Mode::Both, Role::Reference, &mut fault);
            println!("{name}: {wrong}");
            assert_first_wrong(&outcome, wrong);
        }
    }
}

#[test]
fn with_the_outputs_of_layers_alone_swapped_weights_are_found_in_their_layer() {
    for (name, file) in [("llama.cpp-f32", "tiny-llama2-f32"), ("llama.cpp-q8_0", "tiny-llama2-q8_0")] {
        let scene = Scene::shipped("tiny-llama2", name);
        let dump = thinned("tiny-llama2", name, &[Embed, BlockOut, Logits]);
        for layer in 0..4 {
            let mut wrong = Llama::from_gguf(&gguf(file)).expect("it loads");
            let ffn = &mut wrong.layers[layer].ffn;
            std::mem::swap(&mut ffn.gate, &mut ffn.up);
            let outcome = scene.judge_with(&wrong, &dump, Mode::Both, Role::Reference, &mut ());
            println!("{name}: layer {layer}");
            assert_first_wrong(&outcome, site(BlockOut, layer, 0));
        }
    }
}

#[test]
fn with_the_outputs_of_layers_alone_a_wrong_stage_is_found_in_its_layer() {
    for name in ["llama.cpp-f32", "llama.cpp-q8_0", "transformers-bf16", "transformers-f32"] {
        let scene = Scene::shipped("tiny-llama2", name);
        let dump = thinned("tiny-llama2", name, &[Embed, BlockOut, Logits]);
        for point in [Q, AttnWeights, FfnUp] {
            let mut fault = At(site(point, 1, 1), |values: &mut [f32]| values.reverse());
            let outcome = scene.judge_dump(&dump, Mode::Both, Role::Reference, &mut fault);
            println!("{name}: {point}");
            assert_first_wrong(&outcome, site(BlockOut, 1, 1));
        }
    }
}
