//! Probabilities at a temperature so high that all tokens have the same are no evidence, whoever made them.

use serde_json::json;
use xcheck::check::{Mode, Role};
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::ArrayValues;
use xcheck::engine::{self, PassInput, RunInput};
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::{Outcome, Verdict};
use xcheck::weight::DType;

use super::clay::{Array, Clay};
use super::scene::{Scene, assert_inconclusive, assert_passes, compare, told};
use crate::common::share::one_of;

/// Logits of another model.
struct Wrong;

impl Tap for Wrong {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point == Point::Logits { value.map(|logit| -1.5 * logit) } else { value }
    }
}

/// Keeps probabilities and last logits.
#[derive(Default)]
struct Kept(Vec<(Site, Tensor)>);

impl Tap for Kept {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if matches!(site.point, Point::Probs | Point::LastLogits) {
            self.0.push((site, value.clone()));
        }
        value
    }
}

/// A dump of our own run at a temperature.
fn at(scene: &Scene, temperature: f32, fault: &mut dyn Tap) -> Clay {
    let passes = scene.dump.manifest.passes.iter();
    let steps = passes.map(|pass| PassInput { temperature, ..PassInput::given(&pass.tokens) });
    let script = RunInput { passes: steps.collect(), prompt_len: scene.dump.manifest.input.tokens.len() };
    let mut kept = Kept::default();
    engine::run(&*scene.model.model, &*scene.numerics, &script, &mut (fault, &mut kept)).expect("it runs");
    let mut clay = Clay::of(&scene.dump).with_only(&[]).say(|manifest| {
        manifest["input"]["decode"] = json!("forced");
        for pass in manifest["passes"].as_array_mut().expect("passes") {
            pass["temperature"] = json!(temperature);
        }
    });
    for (site, tensor) in kept.0 {
        let data = tensor.data().iter().map(|&value| f64::from(value)).collect();
        let values = ArrayValues { shape: tensor.shape().to_vec(), data };
        clay.arrays.insert(site, Array { dtype: DType::F32, values, axes: None });
    }
    clay
}

fn judge(scene: &Scene, clay: &Clay) -> Outcome {
    scene.judge_dump(&clay.dump(), Mode::Both, Role::Candidate, &mut ())
}

fn scene() -> Scene {
    Scene::shipped("tiny-llama2", "transformers-f32")
}

#[test]
fn probabilities_are_judged_if_they_differ_from_uniform_ones() {
    let scene = scene();
    for temperature in [1e-3, 0.7, 1.0, 100.0, 1e6] {
        let of =
            |fault: &mut dyn Tap| judge(&scene, &at(&scene, temperature, fault).with_only(&[Point::Probs]));
        let right = of(&mut ());
        assert_eq!(right.verdict, Verdict::Pass, "{temperature}: {}", told(&right));
        let wrong = of(&mut Wrong);
        assert_eq!(wrong.verdict, Verdict::Fail, "{temperature}: {}", told(&wrong));
    }
}

#[test]
fn at_a_temperature_that_makes_them_equal_nobody_passes() {
    let scene = scene();
    for temperature in [1e8, 1e10, 1e30] {
        for fault in [&mut () as &mut dyn Tap, &mut Wrong] {
            let clay = at(&scene, temperature, fault).with_only(&[Point::Probs]);
            for mode in [Mode::Both, Mode::Accumulated] {
                let outcome = scene.judge_dump(&clay.dump(), mode, Role::Candidate, &mut ());
                assert_inconclusive(&outcome);
                assert!(told(&outcome).contains("blind: "), "{temperature}: {}", told(&outcome));
            }
            let outcome = compare(&clay.dump(), &at(&scene, temperature, &mut ()).dump());
            assert_inconclusive(&outcome);
        }
    }
}

#[test]
fn between_the_two_a_wrong_engine_never_passes() {
    let scene = scene();
    for exponent in one_of(3, 4..=30) {
        let temperature = 10f32.powi(exponent);
        let outcome = judge(&scene, &at(&scene, temperature, &mut Wrong).with_only(&[Point::Probs]));
        assert!(!outcome.verdict.is_good(), "{temperature:e}: {}", told(&outcome));
    }
}

#[test]
fn beside_logits_that_pass_they_are_what_these_make_of_them() {
    let scene = scene();
    assert_passes(&judge(&scene, &at(&scene, 1e30, &mut ())));
    assert_eq!(judge(&scene, &at(&scene, 1e30, &mut Wrong)).verdict, Verdict::Fail);
}

#[test]
fn logprobs_of_equal_tokens_are_no_evidence_either() {
    let scene = scene();
    let mut clay = at(&scene, 1e30, &mut ()).with_only(&[]);
    let pass = &scene.dump.manifest.passes[0];
    let site = Site { point: Point::TokenLogprobs, layer: None, pass: Some(0) };
    let each = -(scene.model.model.dimensions().vocab_size as f32).ln();
    let values = ArrayValues { shape: vec![pass.tokens.len()], data: vec![each.into(); pass.tokens.len()] };
    clay.arrays.insert(site, Array { dtype: DType::F32, values, axes: None });
    assert_inconclusive(&judge(&scene, &clay));
}
