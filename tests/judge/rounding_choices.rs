//! 16-bit engines that record few taps: whatever steps correct engines round, they pass; partial sums that are rounded to
//! 16 bits do not.

use std::sync::Arc;

use serde_json::json;
use xcheck::catalogue::Supposition;
use xcheck::dump::Dump;
use xcheck::numerics::Transformers;
use xcheck::selftest::{DumpForm, RecordedTaps, TestModel, fused_kernels};
use xcheck::verdict::{Outcome, Verdict};

use crate::common;
use crate::common::share::one_of;

const MODELS: [&str; 5] =
    ["tiny-llama2-f32", "tiny-llama3-f32", "tiny-qwen3-f32", "tiny-gemma3-f32", "tiny-gpt2-f32"];

fn test_model(name: &str, arithmetic: &'static str) -> TestModel {
    let model = common::variant(name).load().expect("it loads").model;
    TestModel::new(name, Arc::from(model), arithmetic)
}

fn check(model: &TestModel, dump: &Dump) -> Outcome {
    model.check_quickly(dump, true).expect("it can be judged")
}

fn dump_of(model: &TestModel, fault: &str, thinned: RecordedTaps) -> Dump {
    let fault = Supposition::named(fault).expect("a known change");
    model.dump(&[fault], DumpForm { thinned, ..DumpForm::FULL }).expect("it runs").0
}

#[test]
fn bf16_and_f16_kernels_that_round_other_steps_pass() {
    let models = MODELS.iter().flat_map(|name| [("bf16", name), ("f16", name)]);
    let cases = models.flat_map(|(arithmetic, name)| {
        let numerics = if arithmetic == "bf16" { Transformers::Bf16 } else { Transformers::F16 };
        fused_kernels(numerics).into_iter().map(move |how| (*name, arithmetic, how))
    });
    for (name, arithmetic, how) in one_of(10, cases) {
        let model = test_model(name, arithmetic);
        let dump = how.dump(&model).expect("it runs").expect("it exists");
        let outcome = check(&model, &dump);
        assert_eq!(outcome.verdict, Verdict::Pass, "{name}, {arithmetic}, {how:?}: {:?}", outcome.reason);
    }
}

/// Partial sums in bf16 are inconclusive, whatever the manifest claims. The engine passes with the sums of transformers.
#[test]
fn split_k_in_bf16_does_not_pass_with_block_outputs_or_logits_alone() {
    use RecordedTaps::{Blocks, Logits};
    for (name, thinned) in
        [("tiny-llama3-f32", Blocks), ("tiny-llama3-f32", Logits), ("tiny-llama2-f32", Blocks)]
    {
        let model = test_model(name, "bf16");
        let dump = dump_of(&model, "split_k=columns:8", thinned);
        assert_eq!(check(&model, &dump).verdict, Verdict::Inconclusive, "{name}, {thinned:?}");
        for (claim, value) in [
            ("tensor_parallel", json!(8)),
            ("reduced_precision_sums", json!("on")),
            ("kv_cache", json!("f32")),
        ] {
            let mut claimed = dump.clone();
            claimed.manifest.producer.settings.insert(claim.to_owned(), value);
            assert_ne!(check(&model, &claimed).verdict, Verdict::Pass, "{name}, {thinned:?}, {claim}");
        }
        let twin = model.dump(&[], DumpForm { thinned, ..DumpForm::FULL }).expect("it runs").0;
        assert_eq!(check(&model, &twin).verdict, Verdict::Pass, "{name}, {thinned:?}");
    }
}
