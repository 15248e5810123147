//! A dump that leaves taps out is judged more coarsely, never more harshly.

use xcheck::check::{Mode, Role};
use xcheck::checkpoint::Point::{self, *};
use xcheck::dump::Dump;
use xcheck::model::llama::{self, Llama};
use xcheck::shipped_models;
use xcheck::verdict::{Outcome, SiteResult, Verdict};

use super::clay::Clay;
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
    outcome
        .rows
        .iter()
        .filter_map(|row: &SiteResult| row.accumulated.as_ref())
        .all(|total| total.is_identical())
}

/// Every dump of a model with every family left out. Those of which every value is ours pass; none fails.
fn check(model: &str) {
    let references = shipped_models::model(model).expect("it ships").references().expect("they are sound");
    let references = references.into_iter().filter(|(name, _)| !name.ends_with("-f16"));
    let scenes = references.map(|(name, dump)| (name, Scene::of(model, dump)));
    let scenes = scenes.map(|(name, scene)| (name, is_the_producers(&scene.judge(&mut ())), scene));
    let scenes: Vec<_> = scenes.collect();
    let kept =
        FAMILIES.iter().map(|family| without(family)).chain(LITTLE.iter().map(|points| points.to_vec()));
    let kept: Vec<_> = kept.collect();
    let cases = scenes.iter().flat_map(|scene| kept.iter().map(move |points| (scene, points)));
    for ((name, identical, scene), points) in one_of(16, cases) {
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
fn no_shipped_dump_of_llama_fails_for_taps_it_leaves_out() {
    ["tiny-llama2", "tiny-llama2c", "tiny-llama3"].into_iter().for_each(check);
}

#[test]
fn no_shipped_dump_of_gpt2_qwen_and_bitnet_fails_for_taps_it_leaves_out() {
    ["tiny-gpt2", "tiny-qwen3", "tiny-bitnet", "tiny-bitnet-b158"].into_iter().for_each(check);
}

#[test]
fn no_shipped_dump_of_gemma_fails_for_taps_it_leaves_out() {
    ["tiny-gemma3", "tiny-gemma3-vision"].into_iter().for_each(check);
}

// ---- faults are found nevertheless ----------------------------------------------------------------------

#[test]
fn without_kv_cache_and_residual_taps_a_fault_is_still_found_at_its_tap() {
    let points = without(&[KCache, VCache, AttnResidual]);
    for name in ["llama.cpp-f32", "llama.cpp-q8_0", "transformers-bf16", "transformers-f32"] {
        let scene = Scene::shipped("tiny-llama2", name);
        let dump = thinned("tiny-llama2", name, &points);
        let stages =
            [AttnNorm, Q, V, KRope, AttnScores, AttnWeights, AttnContext, AttnOut, FfnNorm, FfnAct, FfnOut];
        for (index, point) in one_of(4, stages.into_iter().enumerate()) {
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
            let mut wrong = Llama::from_gguf(&gguf(file), &llama::FAMILY).expect("it loads");
            let ffn = &mut wrong.layers[layer].ffn;
            std::mem::swap(ffn.gate.as_mut().expect("Llama has a gate"), &mut ffn.up);
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

// ---- a tap that a graph does not have -------------------------------------------------------------------

/// Every tap and layer of a dump.
fn places(dump: &Dump) -> Vec<(Point, usize)> {
    let of_pass = dump.sites().filter(|site| site.pass == Some(0));
    let mut places: Vec<_> = of_pass.filter_map(|site| Some((site.point, site.layer?))).collect();
    places.sort_unstable();
    places
}

fn without_place(clay: &Clay, (point, layer): (Point, usize)) -> Dump {
    clay.clone().keep(|site| (site.point, site.layer) != (point, Some(layer))).dump()
}

/// A tap of one layer that no pass records takes no pass away, and a fault of its operation is found nevertheless.
fn check_left_out(model: &str, name: &str) {
    let scene = Scene::shipped(model, name);
    let clay = Clay::of(&scene.dump);
    let all = places(&scene.dump);
    let mut open = Vec::new();
    let cases: Vec<_> = one_of(23, all.iter().copied()).collect();
    let count = cases.len();
    for (point, layer) in cases {
        let dump = without_place(&clay, (point, layer));
        let right = scene.judge_dump(&dump, Mode::Both, Role::Reference, &mut ());
        let what = format!("{model} {name} without {point} of layer {layer}: {}", told(&right));
        assert_ne!(right.verdict, Verdict::Fail, "{what}");
        if right.verdict == Verdict::Inconclusive {
            open.push(what);
            continue;
        }
        let note = format!("not recorded: {point}, layer {layer};");
        assert!(right.notes.iter().any(|told| told.starts_with(&note)), "{what}");
        for pass in 0..2 {
            let mut fault = At(site(point, layer, pass), |values: &mut [f32]| values.reverse());
            let wrong = scene.judge_dump(&dump, Mode::Both, Role::Reference, &mut fault);
            assert_eq!(wrong.verdict, Verdict::Fail, "a fault at pass {pass}, {what}");
        }
    }
    assert!(open.len() * 10 <= count, "{} of {count}: {open:#?}", open.len());
}

#[test]
fn a_tap_that_no_pass_of_a_llama_records_is_judged_by_what_follows() {
    check_left_out("tiny-llama3", "transformers-f32");
    check_left_out("tiny-llama2", "llama.cpp-f32");
}

#[test]
fn a_tap_that_no_pass_of_other_families_records_is_judged_by_what_follows() {
    check_left_out("tiny-qwen3", "transformers-f32");
    check_left_out("tiny-gemma3", "transformers-f32");
    check_left_out("tiny-gpt2", "transformers-f32");
}

fn judged(clay: Clay) -> Outcome {
    Scene::shipped("tiny-llama3", "transformers-f32").judge_dump(
        &clay.dump(),
        Mode::Both,
        Role::Reference,
        &mut (),
    )
}

fn llama3() -> Clay {
    Clay::of(&Scene::shipped("tiny-llama3", "transformers-f32").dump)
}

#[test]
fn a_hole_in_one_pass_takes_the_pass_away() {
    for (point, layer, pass) in [(BlockOut, 2, 1), (AttnNorm, 0, 0), (FfnAct, 1, 3)] {
        let outcome = judged(llama3().keep(|found| found != site(point, layer, pass)));
        assert_eq!(outcome.verdict, Verdict::Inconclusive, "{point}: {}", told(&outcome));
    }
}

#[test]
fn a_layer_of_which_nothing_is_recorded_takes_the_pass_away() {
    for layer in 0..3 {
        for kept in [Point::ALL, &[Embed, BlockOut, Logits, LastLogits], &[BlockOut, FinalNorm]] {
            let outcome = judged(llama3().with_only(kept).keep(|site| site.layer != Some(layer)));
            // The final norm judges the last layer, whose output transformers does not return.
            let is_judged = layer == 2 && kept.contains(&FinalNorm);
            let expected = if is_judged { Verdict::Pass } else { Verdict::Inconclusive };
            assert_eq!(outcome.verdict, expected, "layer {layer}: {}", told(&outcome));
        }
    }
}

#[test]
fn a_fault_in_an_unrecorded_last_layer_shows_in_the_final_norm() {
    let without = |clay: Clay| clay.with_only(&[BlockOut, FinalNorm]).keep(|site| site.layer != Some(2));
    let final_norm = xcheck::checkpoint::Site { point: FinalNorm, layer: None, pass: Some(0) };
    let wrong =
        without(llama3()).edit(final_norm, |values| values.iter_mut().for_each(|value| *value *= 1.001));
    let outcome = judged(wrong);
    assert_eq!(outcome.verdict, Verdict::Fail, "{}", told(&outcome));
}

#[test]
fn a_tap_that_nothing_recorded_follows_takes_the_pass_away() {
    let end = [FinalNorm, Logits, LastLogits, Probs, Argmax, Generated];
    let outcome = judged(llama3().without(&end).keep(|site| (site.point, site.layer) != (BlockOut, Some(2))));
    assert_eq!(outcome.verdict, Verdict::Inconclusive, "{}", told(&outcome));
}
