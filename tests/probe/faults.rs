//! Servers with a fault: each is caught, by its name.

use serde_json::Value;
use xcheck::probe::Kind;

use crate::server::{Fake, Way};
use crate::{KINDS, brief, check, probe, with_model};

/// Who tells log-probabilities of prompts.
const TELLING: [Kind; 4] = [Kind::Vllm, Kind::Sglang, Kind::Tgi, Kind::Openai];

#[track_caller]
fn assert_found(kind: Kind, way: Way, value: &str) {
    let (code, report) = with_model(&Fake::new(kind, way));
    assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
    let findings = report["references"][0]["findings"].as_array().expect("findings");
    let named = findings.iter().any(|finding| finding["candidate"] == value);
    assert!(named, "{kind:?}: {}", brief(&report));
}

#[test]
fn decimal_logarithms_are_named() {
    KINDS.into_iter().for_each(|kind| assert_found(kind, Way::Log10, "log10"));
}

#[test]
fn logits_that_were_divided_by_sixteen_are_named() {
    KINDS.into_iter().for_each(|kind| assert_found(kind, Way::Sixteenth, "16"));
}

#[test]
fn values_of_the_token_before_are_named() {
    TELLING.into_iter().for_each(|kind| assert_found(kind, Way::ShiftedByOne, "previous"));
}

#[test]
fn probabilities_of_the_likeliest_alone_are_named() {
    for kind in KINDS {
        assert_found(kind, Way::Renormalised, "of-named");
    }
}

#[test]
fn a_prefix_of_another_request_is_found_with_and_without_a_model() {
    for kind in KINDS {
        for model in [&["--model", crate::MODEL] as &[_], &[]] {
            let (code, report) = probe(&Fake::new(kind, Way::StalePrefix), model);
            assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
            assert_eq!(check(&report, "asked again")["verdict"], "fail", "{kind:?}");
            if matches!(kind, Kind::LlamaServer | Kind::Vllm) {
                let told = check(&report, "what is kept of prefixes");
                assert_eq!(told["verdict"], "fail", "{kind:?}: {}", brief(&report));
            }
        }
    }
}

#[test]
fn fewer_likeliest_tokens_than_were_asked_for_are_told() {
    for kind in KINDS {
        let (code, report) = with_model(&Fake::new(kind, Way::TruncatedTop));
        assert_eq!(code, 3, "{kind:?}: {}", brief(&report));
        let told = check(&report, "as many of the likeliest as were asked for");
        assert_eq!(told["verdict"], "inconclusive", "{kind:?}: {told}");
    }
}

#[test]
fn a_first_token_that_is_there_twice_is_named() {
    for kind in [Kind::LlamaServer, Kind::Vllm, Kind::Sglang, Kind::Tgi] {
        let (code, report) = with_model(&Fake::new(kind, Way::BosTwice));
        assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
        let told = check(&report, "texts are the same tokens");
        assert!(
            told["found"].as_str().is_some_and(|found| found.contains("is there twice")),
            "{kind:?}: {told}"
        );
    }
    // Where no tokens are shown, the model tells: what was generated is of another prompt.
    for kind in [Kind::Openai, Kind::Ollama] {
        let (code, report) = with_model(&Fake::new(kind, Way::BosTwice));
        assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
    }
}

#[test]
fn a_template_of_another_model_is_named() {
    for kind in [Kind::LlamaServer, Kind::Vllm, Kind::Tgi] {
        let (code, report) = with_model(&Fake::new(kind, Way::OtherTemplate));
        assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
        let told = check(&report, "the template is of this model");
        assert!(
            told["found"].as_str().is_some_and(|found| found.contains("<|im_start|>")),
            "{kind:?}: {told}"
        );
    }
}

#[test]
fn one_answer_of_a_hundred_is_found() {
    for kind in KINDS {
        let (code, report) = with_model(&Fake::new(kind, Way::EveryHundredth));
        assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
    }
}

#[test]
fn another_token_in_the_prompt_fails() {
    for kind in KINDS {
        let (code, report) = with_model(&Fake::new(kind, Way::OneTokenLeftOut));
        assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
        assert_eq!(check(&report, "asked again")["verdict"], "pass", "{kind:?}");
        assert_ne!(report["references"], Value::Null);
    }
}
