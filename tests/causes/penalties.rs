//! Penalties on tokens that were already read, read from logits.

use xcheck::checkpoint::{Point, Site};
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;

use super::planted::Bed;
use super::planted::RecordedTaps::{Blocks, Full, Logits};
use crate::common::share::{one_of, pairs};

#[test]
fn a_penalty_is_named_with_its_number() {
    let engines = [("tiny-llama3-f32", "f32"), ("tiny-gemma3-f32", "bf16"), ("tiny-gpt2-f32", "other-order")];
    let penalties = ["repetition_penalty=1.3", "presence_penalty=0.7", "frequency_penalty=0.25"];
    for ((model, arithmetic), typed) in one_of(2, pairs(engines, penalties)) {
        Bed::new(model, arithmetic).assert_named(typed, Full);
    }
    let bed = Bed::new("tiny-llama3-f32", "f32");
    bed.assert_named("repetition_penalty=1.17", Blocks);
    bed.assert_named("repetition_penalty=1.17", Logits);
    bed.assert_named("presence_penalty=1.25", Logits);
    // Only the row that is sampled, as most engines do.
    bed.assert_named("repetition_penalty=1.1@from-10", Full);
    bed.assert_named("repetition_penalty=sampled:1.1", Full);
    Bed::new("tiny-qwen3-f32", "bf16").assert_named("repetition_penalty=1.1@decode", Full);
}

/// A tap that changes the logits of tokens that were not read.
struct OtherTokens;

impl Tap for OtherTokens {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point != Point::Logits {
            return value;
        }
        let (shape, mut data) = (value.shape().to_vec(), value.into_data());
        data.chunks_mut(shape[1]).for_each(|row| row[20..28].iter_mut().for_each(|logit| *logit /= 1.1));
        Tensor::new(&shape, data)
    }
}

#[test]
fn lower_logits_of_other_tokens_are_no_penalty() {
    let bed = Bed::new("tiny-llama3-f32", "f32");
    let findings = bed.check(&bed.dump_with(&mut OtherTokens)).findings;
    assert!(
        !findings.is_empty() && findings.iter().all(|finding| !finding.kind.is_penalty()),
        "{findings:?}"
    );
}
