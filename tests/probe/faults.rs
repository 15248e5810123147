//! Servers with a fault: each is caught, by its name.

use crate::common::share::{one_of, pairs};
use crate::common::terminal::Terminal;
use serde_json::Value;
use xcheck::probe::ServerProtocol;

use super::server::{Fake, MODEL, Way};
use super::{KINDS, brief, check, probe, with_causes, with_model, with_stated};

/// Who tells log-probabilities of prompts.
const TELLING: [ServerProtocol; 4] =
    [ServerProtocol::Vllm, ServerProtocol::Sglang, ServerProtocol::Tgi, ServerProtocol::Openai];

#[track_caller]
fn assert_found(kind: ServerProtocol, way: Way, value: &str) {
    assert_named(kind, with_causes(&Fake::new(kind, way), &["--numerics", "f32"]), value);
}

#[track_caller]
fn assert_named(kind: ServerProtocol, (code, report): (i32, Value), value: &str) {
    assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
    let findings = report["references"][0]["findings"].as_array().expect("findings");
    let named = findings.iter().any(|finding| finding["candidate"] == value);
    assert!(named, "{kind:?}: {}", brief(&report));
}

#[test]
fn logprobs_to_base_ten_are_named() {
    one_of(4, KINDS).for_each(|kind| assert_found(kind, Way::Log10, "log10"));
}

#[test]
fn what_a_server_does_not_say_it_computes_in_is_tried() {
    assert_named(
        ServerProtocol::Vllm,
        with_causes(&Fake::new(ServerProtocol::Vllm, Way::Log10), &[]),
        "log10",
    );
}

#[test]
fn logits_that_were_divided_by_sixteen_are_named() {
    let named = KINDS.into_iter().filter(|kind| *kind != ServerProtocol::Ollama);
    one_of(4, named).for_each(|kind| assert_found(kind, Way::Sixteenth, "16"));
    // It tells nothing of the prompt, and so few values of each pass that a temperature is not read from them.
    let (code, report) = with_stated(&Fake::new(ServerProtocol::Ollama, Way::Sixteenth));
    assert_eq!(code, 1, "{}", brief(&report));
}

#[test]
fn values_of_the_token_before_are_named() {
    one_of(3, TELLING).for_each(|kind| assert_found(kind, Way::ShiftedByOne, "previous"));
}

#[test]
fn probabilities_of_the_likeliest_alone_are_seen_without_a_model() {
    for kind in KINDS {
        let (code, report) = probe(&Fake::new(kind, Way::Renormalised), &[]);
        assert_eq!(code, 3, "{kind:?}: {}", brief(&report));
        let told = check(&report, "other tokens have some probability");
        assert_eq!(told["verdict"], "inconclusive", "{kind:?}: {told}");
    }
}

#[test]
fn probabilities_of_the_likeliest_alone_are_not_the_model_s() {
    // Where the five likeliest are not nearly all of the distribution, they are named, too.
    assert_found(ServerProtocol::Tgi, Way::Renormalised, "of-named");
    let (code, report) = with_stated(&Fake::new(ServerProtocol::Vllm, Way::Renormalised));
    assert_eq!(code, 1, "{}", brief(&report));
}

#[test]
fn a_prefix_cache_of_another_request_is_found_with_and_without_a_model() {
    let models: [&[&str]; 2] = [&["--model", MODEL], &[]];
    for (kind, model) in one_of(2, pairs(KINDS, models)) {
        let (code, report) = probe(&Fake::new(kind, Way::StalePrefix), model);
        assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
        assert_eq!(check(&report, "asked again")["verdict"], "fail", "{kind:?}");
        if matches!(kind, ServerProtocol::LlamaServer | ServerProtocol::Vllm) {
            let told = check(&report, "prefix cache");
            assert_eq!(told["verdict"], "fail", "{kind:?}: {}", brief(&report));
        }
    }
}

#[test]
fn fewer_likeliest_tokens_than_were_asked_for_are_told() {
    for kind in one_of(2, KINDS) {
        let (code, report) = with_model(&Fake::new(kind, Way::TruncatedTop));
        assert_eq!(code, 3, "{kind:?}: {}", brief(&report));
        let told = check(&report, "as many top tokens as requested");
        assert_eq!(told["verdict"], "inconclusive", "{kind:?}: {told}");
    }
}

#[test]
fn a_doubled_bos_token_is_named() {
    for kind in
        [ServerProtocol::LlamaServer, ServerProtocol::Vllm, ServerProtocol::Sglang, ServerProtocol::Tgi]
    {
        let (code, report) = with_model(&Fake::new(kind, Way::BosTwice));
        assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
        let told = check(&report, "texts give the same tokens");
        assert!(
            told["found"].as_str().is_some_and(|found| found.contains("appears twice")),
            "{kind:?}: {told}"
        );
    }
    // Where no tokens are shown, the model tells: what was generated is of another prompt.
    for kind in [ServerProtocol::Openai, ServerProtocol::Ollama] {
        let (code, report) = with_stated(&Fake::new(kind, Way::BosTwice));
        assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
    }
}

#[test]
fn a_chat_template_of_another_model_is_named() {
    for kind in [ServerProtocol::LlamaServer, ServerProtocol::Vllm, ServerProtocol::Tgi] {
        let (code, report) = with_model(&Fake::new(kind, Way::OtherTemplate));
        assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
        let told = check(&report, "the template is the model's");
        assert!(
            told["found"].as_str().is_some_and(|found| found.contains("<|im_start|>")),
            "{kind:?}: {told}"
        );
    }
}

#[test]
fn one_answer_of_a_hundred_is_found() {
    for kind in one_of(2, KINDS) {
        let (code, report) = with_model(&Fake::new(kind, Way::EveryHundredth));
        assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
        assert_eq!(check(&report, "asked again")["verdict"], "fail", "{kind:?}: {}", brief(&report));
        // Other answers found the same prefix kept, and were right.
        let checks = report["server"]["checks"].as_array().expect("checks");
        let is_blamed = checks.iter().any(|check| check["check"] == "prefix cache");
        assert!(!is_blamed, "{kind:?}: {}", brief(&report));
    }
}

#[test]
fn a_token_that_is_not_the_likeliest_once_is_found_without_a_model() {
    for kind in [ServerProtocol::Openai, ServerProtocol::Ollama] {
        let (code, report) = probe(&Fake::new(kind, Way::EveryHundredth), &[]);
        assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
        assert_eq!(check(&report, "asked again")["verdict"], "fail", "{kind:?}: {}", brief(&report));
    }
}

#[test]
fn another_token_in_the_prompt_fails() {
    // One that tells of the prompt, and one that tells of what it generates alone.
    for kind in [ServerProtocol::Vllm, ServerProtocol::Ollama] {
        let (code, report) = with_stated(&Fake::new(kind, Way::OneTokenLeftOut));
        assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
        assert_eq!(check(&report, "asked again")["verdict"], "pass", "{kind:?}");
        assert_ne!(report["references"], Value::Null);
    }
}

#[test]
fn what_later_answers_leave_out_is_looked_at() {
    for kind in one_of(2, KINDS) {
        let (code, report) = with_stated(&Fake::new(kind, Way::SecondLeftOut));
        assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
        assert_eq!(check(&report, "asked again")["verdict"], "fail", "{kind:?}");
        for way in [Way::SaysLessLater, Way::RefusesLater] {
            let (code, report) = with_stated(&Fake::new(kind, way));
            assert_eq!(code, 3, "{kind:?} {way:?}: {}", brief(&report));
            assert_eq!(check(&report, "asked again")["verdict"], "inconclusive", "{kind:?} {way:?}");
        }
    }
}

#[test]
fn a_server_that_is_not_decided_beside_a_right_dump_is_not_announced_as_a_pass() {
    let fake = Fake::new(ServerProtocol::Vllm, Way::SaysLessLater);
    let words = ["probe", &fake.url, "--no-report", "--decode", "6", "--no-causes", "--model", MODEL];
    let finished = Terminal::new().run(&words);
    let first = finished.stdout.lines().next().unwrap_or_default();
    assert_eq!(finished.code, 3, "{}", finished.stdout);
    assert!(first.starts_with("INCONCLUSIVE") && first.contains(&fake.url), "{}", finished.stdout);
}
