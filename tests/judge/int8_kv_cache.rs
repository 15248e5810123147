//! An engine whose KV cache has 8 bits, by a dump that does not record the cache.

use serde_json::json;
use xcheck::check::{Mode, Role};
use xcheck::checkpoint::Point::{AttnContext, AttnOut, KCache, KRope, Q, VCache};
use xcheck::checkpoint::{Point, Site};
use xcheck::engine::RunInput;
use xcheck::numerics::F32;
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::{Outcome, Verdict};

use super::clay::Clay;
use super::scene::{Scene, recorded, told};
use crate::common::terminal::Terminal;

/// Keys and values as a cache of 8 bits keeps them, and a fault at another tap.
struct Eight {
    fault: Option<(Point, f32)>,
    /// True if all heads of a token share a scale.
    is_shared: bool,
}

impl Tap for Eight {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let (shape, row_len) = (value.shape().to_vec(), value.row_len());
        let mut data = value.into_data();
        if matches!(site.point, KCache | VCache) {
            let width = if self.is_shared { row_len } else { shape[2] };
            for head in data.chunks_mut(width) {
                let step = head.iter().fold(0f32, |most, value| most.max(value.abs())) / 127.0;
                head.iter_mut().for_each(|value| *value = (*value / step).round() * step);
            }
        }
        if let Some((_, factor)) =
            self.fault.filter(|(point, _)| *point == site.point && site.layer == Some(1))
        {
            data.iter_mut().for_each(|value| *value *= factor);
        }
        Tensor::new(&shape, data)
    }
}

/// A dump by an engine with such a cache.
fn dumped(scene: &Scene, mut eight: Eight, cache: &str, left_out: &[Point]) -> Clay {
    let script = RunInput::greedy(&[1, 393, 395, 260, 394, 486], 3);
    let dump = recorded(&*scene.model.model, &F32, "f32", &script, &mut eight);
    let clay = Clay::of(&dump).without(left_out);
    clay.say(|manifest| manifest["producer"]["settings"]["kv_cache"] = json!(cache))
}

fn judged(fault: Option<(Point, f32)>, cache: &str, left_out: &[Point]) -> Outcome {
    let scene = Scene::shipped("tiny-llama2", "transformers-f32");
    let dump = dumped(&scene, Eight { fault, is_shared: false }, cache, left_out).dump();
    scene.judge_dump(&dump, Mode::Both, Role::Candidate, &mut ())
}

#[test]
fn an_int8_kv_cache_does_not_fail_if_the_dump_states_it() {
    for left_out in [&[KCache, VCache][..], &[]] {
        let said = judged(None, "uint8_t", left_out);
        assert_eq!(said.verdict, Verdict::Inconclusive, "{}", told(&said));
        let reason = said.reason.as_deref().unwrap_or_default();
        assert!(reason.contains("KV cache has 8 bits"), "{reason}");
        let unsaid = judged(None, "f32", left_out);
        assert_eq!(unsaid.verdict, Verdict::Fail, "{}", told(&unsaid));
    }
}

#[test]
fn a_fault_beside_an_int8_kv_cache_still_fails() {
    for point in [Q, KRope, AttnOut] {
        let wrong = judged(Some((point, 1.2)), "uint8_t", &[KCache, VCache]);
        assert_eq!(wrong.verdict, Verdict::Fail, "{point}: {}", told(&wrong));
    }
    let zero = judged(Some((AttnContext, 0.0)), "uint8_t", &[KCache, VCache]);
    assert_eq!(zero.verdict, Verdict::Fail, "{}", told(&zero));
}

/// xcheck's own int8 cache has a scale for each head.
#[test]
fn codes_with_a_scale_for_each_head_pass_and_those_with_one_for_all_do_not() {
    let scene = Scene::shipped("tiny-llama2", "transformers-f32");
    for (is_shared, expected) in [(false, 0), (true, 3)] {
        let terminal = Terminal::new();
        let clay = dumped(&scene, Eight { fault: None, is_shared }, "int8", &[]);
        clay.save(&terminal.path().join("d.safetensors"));
        let check = ["check", "-m", "tiny-llama2-f32", "--candidate", "d.safetensors", "--no-report"];
        let (code, report) = terminal.json(&check);
        assert_eq!(code, expected, "{}", report["references"][0]["reason"]);
    }
}
