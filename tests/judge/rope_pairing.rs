//! Which values of a head rotate together: what a manifest says of it, what its values show, and what an engine does.

use serde_json::json;
use xcheck::check::{Mode, Role};
use xcheck::checkpoint::Point;
use xcheck::dump::Dump;
use xcheck::engine::{PassInput, RunInput};
use xcheck::numerics::{KvType, LlamaCpp, Numerics};
use xcheck::ops::rope::Rope;
use xcheck::tensor::RopePairing;
use xcheck::verdict::{Outcome, Verdict};

use super::clay::Clay;
use super::scene::{Scene, assert_first_wrong, assert_passes, compare, recorded, site, told};
use crate::common::faulty::Faulty;
use crate::common::tiny_llama2;

const LLAMA_CPP: LlamaCpp = LlamaCpp { kv: KvType::F32 };

/// q and k lie in halves, as transformers has them.
fn halves() -> Scene {
    Scene::shipped("tiny-llama2", "transformers-f32")
}

/// q and k lie interleaved, as llama.cpp has them.
fn interleaved() -> Scene {
    Scene::shipped("tiny-llama2", "llama.cpp-f32")
}

fn saying(dump: &Dump, pairing: Option<&str>) -> Dump {
    Clay::of(dump)
        .say(|json| json["layout"] = pairing.map_or(json!({}), |name| json!({"rope_pairing": name})))
        .dump()
}

fn each_way(scene: &Scene, dump: &Dump) -> Vec<Outcome> {
    let other = if scene.dump.manifest.layout.rope_pairing == Some(RopePairing::Half) {
        interleaved()
    } else {
        halves()
    };
    let ours =
        [Role::Candidate, Role::Reference].map(|role| scene.judge_dump(dump, Mode::Both, role, &mut ()));
    let dumps = [
        compare(dump, &scene.dump),
        compare(&scene.dump, dump),
        compare(dump, &other.dump),
        compare(&other.dump, dump),
    ];
    ours.into_iter().chain(dumps).collect()
}

#[track_caller]
fn assert_noted(outcome: &Outcome) {
    assert!(outcome.notes.iter().any(|note| note.contains("rope_pairing")), "{}", told(outcome));
}

#[test]
fn a_manifest_that_says_interleaved_of_halves_passes_with_a_note() {
    let scene = halves();
    for outcome in each_way(&scene, &saying(&scene.dump, Some("interleaved"))) {
        assert_passes(&outcome);
        assert_noted(&outcome);
    }
}

#[test]
fn a_manifest_that_says_half_of_interleaved_passes_with_a_note() {
    let scene = interleaved();
    for outcome in each_way(&scene, &saying(&scene.dump, Some("half"))) {
        assert_passes(&outcome);
        assert_noted(&outcome);
    }
}

#[test]
fn a_manifest_that_says_nothing_is_read_by_its_values_with_a_note() {
    for scene in [halves(), interleaved()] {
        for outcome in each_way(&scene, &saying(&scene.dump, None)) {
            assert_passes(&outcome);
            assert_noted(&outcome);
        }
    }
}

#[test]
fn a_manifest_with_the_right_rope_pairing_needs_no_note() {
    for scene in [halves(), interleaved()] {
        for outcome in each_way(&scene, &Clay::of(&scene.dump).dump()) {
            assert_passes(&outcome);
            assert!(!outcome.notes.iter().any(|note| note.contains("rope_pairing")), "{}", told(&outcome));
        }
    }
}

/// Rotates the pairs of the other convention, with weights that are not made for it.
fn wrong_pairs() -> Faulty {
    let rope_table = |rope: &Rope, positions| {
        LLAMA_CPP.rope_table(&Rope { pairing: RopePairing::Half, ..rope.clone() }, positions)
    };
    Faulty { rope_table: Some(rope_table), ..Faulty::default() }
}

fn wrong_dump(says: &str) -> Dump {
    let scene = interleaved();
    let passes = scene.dump.manifest.passes.iter().map(|pass| PassInput::given(&pass.tokens)).collect();
    let script = RunInput { passes, prompt_len: scene.dump.manifest.input.tokens.len() };
    let dump = recorded(&tiny_llama2(), &wrong_pairs(), "f32", &script, &mut ());
    saying(&dump, Some(says))
}

#[test]
fn an_engine_with_the_wrong_rope_pairing_fails_at_the_rotated_queries_whatever_it_says() {
    let wrong = site(Point::QRope, 0, 0);
    for says in ["half", "interleaved"] {
        let dump = wrong_dump(says);
        for role in [Role::Candidate, Role::Reference] {
            println!("{says}");
            assert_first_wrong(&interleaved().judge_dump(&dump, Mode::Both, role, &mut ()), wrong);
        }
        assert_first_wrong(&compare(&dump, &interleaved().dump), wrong);
        assert_first_wrong(&compare(&dump, &halves().dump), wrong);
    }
    let ours = interleaved();
    let ours = Scene { numerics: Box::new(wrong_pairs()), ..ours };
    assert_first_wrong(&ours.judge(&mut ()), wrong);
}

#[test]
fn queries_that_are_wrong_in_either_order_fail_there() {
    let wrong = site(Point::Q, 0, 0);
    let scene = interleaved();
    for says in [None, Some("half"), Some("interleaved")] {
        let dump = Clay::of(&saying(&scene.dump, says)).edit(wrong, |queries| queries.reverse()).dump();
        for outcome in each_way(&scene, &dump) {
            assert_eq!(outcome.verdict, Verdict::Fail, "{says:?}: {}", told(&outcome));
            assert_first_wrong(&outcome, wrong);
        }
    }
}
