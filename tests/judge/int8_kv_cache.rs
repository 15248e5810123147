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

/// Keys and values as a cache of 8 bits keeps them: codes with a scale for each head of a token; and a fault at another tap.
struct Eight(Option<(Point, f32)>);

impl Tap for Eight {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let (shape, width) = (value.shape().to_vec(), value.row_len());
        let mut data = value.into_data();
        if matches!(site.point, KCache | VCache) {
            for head in data.chunks_mut(width) {
                let step = head.iter().fold(0f32, |most, value| most.max(value.abs())) / 127.0;
                head.iter_mut().for_each(|value| *value = (*value / step).round() * step);
            }
        }
        if let Some((_, factor)) = self.0.filter(|(point, _)| *point == site.point && site.layer == Some(1)) {
            data.iter_mut().for_each(|value| *value *= factor);
        }
        Tensor::new(&shape, data)
    }
}

fn judged(fault: Option<(Point, f32)>, cache: &str, left_out: &[Point]) -> Outcome {
    let scene = Scene::shipped("tiny-llama2", "transformers-f32");
    let script = RunInput::greedy(&[1, 393, 395, 260, 394, 486], 3);
    let dump = recorded(&*scene.model.model, &F32, "f32", &script, &mut Eight(fault));
    let clay = Clay::of(&dump).without(left_out);
    let dump = clay.say(|manifest| manifest["producer"]["settings"]["kv_cache"] = json!(cache)).dump();
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
