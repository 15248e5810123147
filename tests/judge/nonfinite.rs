//! What is no number, or nothing but zeros, on one side is wrong there; the same on both sides shows nothing.

use xcheck::check::{Mode, Role};
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::Dump;
use xcheck::engine::RunInput;
use xcheck::verdict::{Outcome, Verdict};

use super::clay::Clay;
use super::scene::{
    Scene, assert_first_wrong, assert_inconclusive, assert_passes, compare, recorded, row, site,
};
use crate::common::faulty::At;
use crate::common::{LLAMA_CPP_F32, tiny_llama2};

const ROLES: [Role; 2] = [Role::Candidate, Role::Reference];
const MIDDLE: Site = site(Point::FfnUp, 1, 0);

fn scene() -> Scene {
    Scene::shipped("tiny-llama2", "llama.cpp-f32")
}

fn with(scene: &Scene, at: Site, value: f64) -> Dump {
    Clay::of(&scene.dump).edit(at, |values| values[77] = value).dump()
}

fn each_way(scene: &Scene, dump: &Dump) -> Vec<Outcome> {
    let modes = [Mode::Both, Mode::Local, Mode::Accumulated];
    let cases = ROLES.into_iter().flat_map(|role| modes.map(|mode| (role, mode)));
    let mut outcomes: Vec<Outcome> =
        cases.map(|(role, mode)| scene.judge_dump(dump, mode, role, &mut ())).collect();
    outcomes.push(compare(dump, &scene.dump));
    outcomes.push(compare(&scene.dump, dump));
    outcomes
}

#[test]
fn a_nan_in_the_middle_of_a_dump_is_the_first_thing_wrong_whoever_is_judged() {
    let scene = scene();
    for outcome in each_way(&scene, &with(&scene, MIDDLE, f64::NAN)) {
        assert_first_wrong(&outcome, MIDDLE);
    }
}

#[test]
fn an_infinity_in_the_middle_of_a_dump_is_the_first_thing_wrong_whoever_is_judged() {
    let scene = scene();
    for value in [f64::INFINITY, f64::NEG_INFINITY] {
        for outcome in each_way(&scene, &with(&scene, MIDDLE, value)) {
            assert_first_wrong(&outcome, MIDDLE);
        }
    }
}

#[test]
fn a_nan_of_our_own_is_the_first_thing_wrong_whoever_is_judged() {
    let scene = scene();
    for role in ROLES {
        let mut fault = At(MIDDLE, |values: &mut [f32]| values[77] = f32::NAN);
        assert_first_wrong(&scene.judge_dump(&scene.dump, Mode::Both, role, &mut fault), MIDDLE);
    }
}

#[test]
fn keys_that_are_all_zero_on_one_side_are_the_first_thing_wrong_whoever_is_judged() {
    let scene = scene();
    let keys = site(Point::K, 1, 0);
    let zero = Clay::of(&scene.dump).edit(keys, |values| values.fill(0.0)).dump();
    for outcome in each_way(&scene, &zero) {
        assert_first_wrong(&outcome, keys);
    }
    for role in ROLES {
        let mut fault = At(keys, |values: &mut [f32]| values.fill(0.0));
        assert_first_wrong(&scene.judge_dump(&scene.dump, Mode::Both, role, &mut fault), keys);
    }
}

#[test]
fn keys_that_are_all_zero_wherever_they_come_by_are_the_first_thing_wrong() {
    let scene = scene();
    let is_key = |site: Site| site.point == Point::K;
    let zero = Clay::of(&scene.dump).edit_all(is_key, |values| values.data.fill(0.0)).dump();
    for outcome in each_way(&scene, &zero) {
        assert_first_wrong(&outcome, site(Point::K, 0, 0));
    }
}

/// Two runs that make the same of it.
#[test]
fn the_same_nan_on_both_sides_is_inconclusive_and_named() {
    let (model, script) = (tiny_llama2(), RunInput::greedy(&[1, 393, 395], 1));
    let fault = || At(MIDDLE, |values: &mut [f32]| values[77] = f32::NAN);
    let dump = recorded(&model, &LLAMA_CPP_F32, "f32", &script, &mut fault());
    let scene = scene();
    let ours = ROLES.map(|role| scene.judge_dump(&dump, Mode::Both, role, &mut fault()));
    for outcome in ours.into_iter().chain([compare(&dump, &dump)]) {
        assert_inconclusive(&outcome);
        assert_eq!(row(&outcome, MIDDLE).verdict, Verdict::Inconclusive);
        let reason = outcome.reason.as_ref().expect("a reason");
        assert!(
            reason.contains(&MIDDLE.to_string()) && reason.contains("both sides have the same NaN"),
            "{reason}"
        );
    }
}

#[test]
fn another_infinity_than_the_others_fails() {
    let scene = scene();
    let (up, down) = (with(&scene, MIDDLE, f64::INFINITY), with(&scene, MIDDLE, f64::NEG_INFINITY));
    assert_first_wrong(&compare(&up, &down), MIDDLE);
    assert_first_wrong(&compare(&with(&scene, MIDDLE, f64::NAN), &down), MIDDLE);
}

#[test]
fn the_same_dump_with_numbers_alone_passes_each_way() {
    let scene = scene();
    each_way(&scene, &Clay::of(&scene.dump).dump()).iter().for_each(assert_passes);
}

/// A value that is no number is further beyond rounding than any that is.
#[test]
fn nan_is_counted_as_beyond_rounding() {
    let scene = scene();
    let many = Clay::of(&scene.dump).edit(MIDDLE, |values| values[3..40].fill(f64::NAN)).dump();
    let outcome = scene.judge_dump(&many, Mode::Local, Role::Candidate, &mut ());
    let explained = row(&outcome, MIDDLE).explained.as_ref().expect("it was evaluated");
    assert_eq!(explained.candidate.over, 37);
    assert!(explained.candidate.bound_ratio.is_nan() && explained.candidate.worst[0].value.is_nan());
}
