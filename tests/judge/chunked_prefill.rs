//! Dumps that are cut otherwise than what they are compared with, and wrong in what their passes have once.

use serde_json::json;
use xcheck::align::AlignedDump;
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::Dump;
use xcheck::engine::{PassInput, RunInput};
use xcheck::numerics::F32;
use xcheck::tap::Tap;
use xcheck::verdict::{Outcome, Verdict};
use xcheck::weight::DType;

use super::clay::Clay;
use super::scene::{Everywhere, assert_inconclusive, assert_passes, compare, recorded};
use crate::common::tiny_llama2;

const PROMPT: [u32; 6] = [1, 393, 395, 260, 394, 486];

fn whole(decode: usize, fault: &mut dyn Tap) -> Dump {
    recorded(&tiny_llama2(), &F32, "f32", &RunInput::greedy(&PROMPT, decode), fault)
}

fn one_by_one(fault: &mut dyn Tap) -> Dump {
    let mut passes: Vec<PassInput> = PROMPT.iter().map(|&id| PassInput::given(&[id])).collect();
    passes.extend([PassInput::greedy(), PassInput::greedy()]);
    recorded(&tiny_llama2(), &F32, "f32", &RunInput { passes, prompt_len: PROMPT.len() }, fault)
}

/// A dump that has read the prompt alone and tells a continuation of the run that goes on.
fn prompt_and_list(change: impl Fn(&mut Vec<u32>)) -> Dump {
    let mut ids = whole(4, &mut ()).manifest.generated.expect("it is told");
    change(&mut ids);
    let mut manifest = whole(0, &mut ()).manifest;
    manifest.generated = Some(ids);
    manifest.tensors.clear();
    Dump::of_continuation("list".as_ref(), &manifest).expect("it is sound")
}

fn generation(outcome: &Outcome) -> Verdict {
    outcome.rows.iter().find(|row| row.site.point == Point::Generated).expect("it was compared").verdict
}

#[test]
fn a_continuation_is_compared_beyond_the_tokens_that_both_have_read() {
    let reference = whole(4, &mut ());
    let right = compare(&prompt_and_list(|_| ()), &reference);
    assert_eq!((generation(&right), right.verdict), (Verdict::Pass, Verdict::Pass), "{:?}", right.reason);
    for step in [1, 3] {
        let wrong = prompt_and_list(|ids| ids[step] ^= 1);
        assert_eq!(generation(&compare(&wrong, &reference)), Verdict::Fail, "step {step}");
        assert_eq!(
            generation(&compare(&reference, &wrong)),
            Verdict::Fail,
            "step {step}, the other way round"
        );
    }
}

#[test]
fn a_shorter_continuation_is_told_of() {
    let short = prompt_and_list(|ids| ids.truncate(2));
    let outcome = compare(&short, &whole(4, &mut ()));
    let told = "the candidate has 2 tokens, the reference 5; only the first 2 are compared";
    assert!(outcome.notes.iter().any(|note| note.contains(told)), "{:?}", outcome.notes);
}

#[test]
fn logits_of_single_token_decode_are_compared_with_those_of_the_prefill() {
    let reference = whole(2, &mut ());
    assert_eq!(compare(&one_by_one(&mut ()), &reference).verdict, Verdict::Pass);
    let other = |values: &mut [f32]| values[0] = 7.0;
    let outcome = compare(&one_by_one(&mut Everywhere(Point::Argmax, None, other)), &reference);
    let first = outcome.first_divergence().expect("it is named").site;
    assert_eq!(first, Site { point: Point::Argmax, layer: None, pass: Some(0) });
    let flat = |values: &mut [f32]| values.fill(1.0 / 512.0);
    let outcome = compare(&one_by_one(&mut Everywhere(Point::Probs, None, flat)), &reference);
    let first = outcome.first_divergence().expect("it is named").site;
    assert_eq!(first, Site { point: Point::Probs, layer: None, pass: Some(0) });
}

#[test]
fn attention_weights_that_the_causal_mask_should_hide_fail() {
    let reference = whole(2, &mut ());
    // The last weight of the first query is of a key in its future.
    let leak = |values: &mut [f32]| {
        if let Some(future) = values.get_mut(5) {
            *future = 0.3;
        }
    };
    let outcome = compare(&whole(2, &mut Everywhere(Point::AttnWeights, Some(1), leak)), &reference);
    let first = outcome.first_divergence().expect("it is named").site;
    assert_eq!((first.point, first.layer), (Point::AttnWeights, Some(1)));
}

#[test]
fn a_causal_mask_of_the_candidate_alone_fails_if_the_other_has_attention_weights_there() {
    let reference = whole(2, &mut ());
    let scores = Site { point: Point::AttnScores, layer: Some(0), pass: Some(0) };
    // The last query of the first head no longer sees the first three keys.
    let hide = |values: &mut Vec<f64>| values[5 * 6..5 * 6 + 3].fill(f64::NEG_INFINITY);
    let without_weights = Clay::of(&reference).without(&[Point::AttnWeights]);
    let outcome = compare(&without_weights.edit(scores, hide).dump(), &reference);
    assert_eq!(outcome.first_divergence().map(|row| row.site), Some(scores), "{:?}", outcome.reason);
    let honest = Clay::of(&reference).without(&[Point::AttnWeights]).dump();
    assert_eq!(compare(&honest, &reference).verdict, Verdict::Pass);
}

#[test]
fn probabilities_at_another_temperature_are_not_compared() {
    let reference = whole(2, &mut ());
    let warm = Clay::of(&reference).say(|manifest| manifest["passes"][0]["temperature"] = json!(0.7)).dump();
    let outcome = compare(&warm, &reference);
    assert_eq!(outcome.verdict, Verdict::Inconclusive);
    assert!(
        outcome.reason.as_ref().is_some_and(|reason| reason.contains("temperature is 0.7")),
        "{:?}",
        outcome.reason
    );
}

#[test]
fn a_continuation_of_fewer_tokens_than_its_passes_choose_is_refused() {
    let full = whole(4, &mut ());
    let ids = full.manifest.generated.clone().expect("it is told");
    let clay = Clay::of(&full).without(&[Point::Generated]);
    let short = clay.say(|manifest| manifest["generated"] = json!(ids[..3])).dump();
    let error = AlignedDump::new(&short).expect_err("it contradicts its passes").to_string();
    assert!(error.contains("generated has 3 tokens, expected 5"), "{error}");
}

/// Each pass would have a step of its own: what one of them allows says nothing of the other's values.
#[test]
fn passes_that_are_stored_in_different_types_are_not_compared_as_one() {
    let whole = Clay::of(&whole(0, &mut ()));
    for short in [0, 1] {
        let mut cut = whole.cut(&[3, 3]);
        for (site, array) in &mut cut.arrays {
            if site.point == Point::AttnNorm && site.pass == Some(short) {
                array.dtype = DType::BF16;
            }
        }
        let (whole, cut) = (whole.dump(), cut.dump());
        let outcome = compare(&whole, &cut);
        assert_inconclusive(&outcome);
        assert!(outcome.coverage.skipped.iter().any(|what| what.contains("differs between passes")));
        assert!(outcome.rows.iter().all(|row| row.verdict == Verdict::Pass));
        // Pass by pass each has its own.
        assert_passes(&compare(&cut, &whole));
    }
}
