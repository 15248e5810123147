//! Errors of a dump that holds logits or block outputs alone are bounded as a distribution: the leading logits, single rows, the
//! predictions and common factors, and not one largest error.

use xcheck::check::{Mode, Role};
use xcheck::checkpoint::Point;
use xcheck::dump::ArrayValues;
use xcheck::verdict::{Outcome, Verdict};

use super::clay::Clay;
use super::scene::{Scene, assert_passes, site, told};
use crate::common::faulty::At;

/// Dumps of 16 bits with the logits of every position.
const SHORT: [(&str, &str); 4] = [
    ("tiny-llama3", "transformers-bf16"),
    ("tiny-qwen3", "transformers-bf16"),
    ("tiny-gemma3", "transformers-f16"),
    ("tiny-llama3", "transformers-f16"),
];

fn judged(scene: &Scene, clay: &Clay) -> Outcome {
    scene.judge_dump(&clay.dump(), Mode::Both, Role::Candidate, &mut ())
}

/// The dump with the logits of every position alone.
fn logits_alone(scene: &Scene) -> Clay {
    Clay::of(&scene.dump).with_only(&[Point::Logits])
}

/// Changes each row of logits, or those of one row.
fn with_rows(clay: Clay, only: Option<usize>, change: impl Fn(&mut [f64])) -> Clay {
    let edit = |values: &mut ArrayValues| {
        let width = *values.shape.last().expect("rows of a vocabulary");
        let rows = values.data.chunks_mut(width).enumerate();
        rows.filter(|(row, _)| only.is_none_or(|only| only == *row)).for_each(|(_, row)| change(row));
    };
    clay.edit_all(|site| site.point == Point::Logits && (only.is_none() || site.pass == Some(0)), edit)
}

/// The indices of a row from its largest value on.
fn ranked(row: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    order
}

/// Exchanges the likeliest token with one so far behind that no rounding parts them so.
fn exchange(row: &mut [f64], gap: f64) {
    let order = ranked(row);
    let behind = order.iter().copied().find(|&id| row[order[0]] - row[id] > gap);
    row.swap(order[0], behind.unwrap_or(order[row.len() - 1]));
}

#[test]
fn what_is_right_passes_with_its_logits_alone() {
    for (model, name) in SHORT {
        let scene = Scene::shipped(model, name);
        assert_passes(&judged(&scene, &logits_alone(&scene)));
    }
}

#[test]
fn leading_logits_that_are_exchanged_fail_everywhere_and_at_one_position() {
    for (model, name) in SHORT {
        let scene = Scene::shipped(model, name);
        for only in [None, Some(3)] {
            let outcome = judged(&scene, &with_rows(logits_alone(&scene), only, |row| exchange(row, 3.0)));
            assert_eq!(outcome.verdict, Verdict::Fail, "{model} {name} {only:?}: {}", told(&outcome));
        }
    }
}

#[test]
fn leading_logits_that_are_made_smaller_fail() {
    type Change = fn(&mut [f64]);
    let changes: [(&str, Change); 3] = [
        ("soft cap", |row| row.iter_mut().for_each(|x| *x = 4.0 * (*x / 4.0).tanh())),
        ("top logit", |row| {
            let top = ranked(row)[0];
            row[top] *= 0.6;
        }),
        ("scale", |row| row.iter_mut().for_each(|x| *x *= 1.25)),
    ];
    for (model, name) in SHORT {
        let scene = Scene::shipped(model, name);
        for (what, change) in changes {
            let outcome = judged(&scene, &with_rows(logits_alone(&scene), None, change));
            assert_eq!(outcome.verdict, Verdict::Fail, "{model} {name} {what}: {}", told(&outcome));
        }
    }
}

/// Whatever the size of a fault: what passes chooses no other token where rounding does not, and moves predictions by no more than
/// twice what rounding moves them by.
#[test]
fn no_fault_that_passes_chooses_another_token_where_rounding_does_not() {
    let mut passed = 0;
    for (model, name) in SHORT {
        let scene = Scene::shipped(model, name);
        for step in 0..12 {
            let size = f64::powi(2.0, -step);
            let clay = with_rows(logits_alone(&scene), None, |row| {
                let order = ranked(row);
                let lead = row[order[0]] - row[order[1]];
                row[order[1]] += (size * 4.0).min(lead + size);
            });
            let outcome = judged(&scene, &clay);
            passed += usize::from(outcome.verdict == Verdict::Pass);
            for row in outcome.rows.iter().filter(|row| row.verdict == Verdict::Pass) {
                let Some(floor) = row.floor else { continue };
                let found = row.judged().expect("it was measured");
                let agreement = found.agreement.as_ref().expect("logits differ");
                let lost = agreement.places.iter().filter(|place| place.same_top == Some(false));
                let is_tie = |delta: f64| delta <= 2.0 * 2.0 * floor.max_abs;
                assert!(lost.clone().all(|place| is_tie(place.delta)), "{model} {name} {size}");
                assert!(row.excess.is_some_and(|excess| excess.ratio <= 1.0), "{model} {name} {size}");
            }
        }
    }
    assert!(passed > 0, "small changes pass");
}

/// Whole blocks whose bits are ours show that the engine rounds where ours does: what only rounding elsewhere explains in another
/// block is not explained.
#[test]
fn a_stale_tensor_among_bits_that_are_ours_does_not_pass() {
    for model in ["tiny-llama3", "tiny-llama2"] {
        let scene = Scene::shipped(model, "transformers-bf16");
        let dump = Clay::of(&scene.dump).with_only(&[Point::BlockOut, Point::Logits]).dump();
        let judged = |factor: f32| {
            let scale = |values: &mut [f32]| values.iter_mut().for_each(|x| *x = round_to_bf16(*x * factor));
            let mut fault = At(site(Point::FfnOut, 1, 0), scale);
            scene.judge_dump(&dump, Mode::Both, Role::Reference, &mut fault)
        };
        assert_passes(&judged(1.0));
        let passing = [1.01, 1.02, 1.04, 1.08].into_iter().filter(|&factor| judged(factor).verdict.is_good());
        let passing: Vec<f32> = passing.collect();
        assert!(!passing.contains(&1.02), "{model}: {passing:?}");
    }
}

fn round_to_bf16(x: f32) -> f32 {
    half::bf16::from_f32(x).to_f32()
}
