//! `xcheck probe` and `xcheck record`, of servers on this machine.
#![cfg(feature = "hub")]

mod audit;
mod chat_template_tokens;
mod faults;
mod refusals;
mod server;
mod sound;
mod weighed;

use crate::common::share::{one_of, pairs};
use crate::common::terminal::Terminal;
use serde_json::Value;
use xcheck::probe::ServerProtocol;

use server::{Fake, MODEL, Way};

/// The five protocols that differ most, and Ollama's.
const KINDS: [ServerProtocol; 6] = [
    ServerProtocol::LlamaServer,
    ServerProtocol::Vllm,
    ServerProtocol::Sglang,
    ServerProtocol::Tgi,
    ServerProtocol::Openai,
    ServerProtocol::Ollama,
];

fn probe(fake: &Fake, more: &[&str]) -> (i32, Value) {
    asked(fake, &[&["--no-causes"], more].concat())
}

/// The same with causes, which take longer than all else.
fn with_causes(fake: &Fake, more: &[&str]) -> (i32, Value) {
    asked(fake, &[&["--model", MODEL], more].concat())
}

fn asked(fake: &Fake, more: &[&str]) -> (i32, Value) {
    Terminal::new().json(&[&["probe", &fake.url, "--no-report", "--decode", "6"], more].concat())
}

fn with_model(fake: &Fake) -> (i32, Value) {
    probe(fake, &["--model", MODEL])
}

/// With what the server computes in. Where that is not said, everything is tried.
fn with_stated(fake: &Fake) -> (i32, Value) {
    probe(fake, &["--model", MODEL, "--numerics", "f32"])
}

/// A check of a server by its name.
fn check<'r>(report: &'r Value, name: &str) -> &'r Value {
    let checks = report["server"]["checks"].as_array().expect("checks");
    checks.iter().find(|check| check["check"] == name).unwrap_or_else(|| panic!("no {name} in {report:#}"))
}

fn brief(report: &Value) -> String {
    let reference = &report["references"][0];
    format!(
        "{:#}\n{} {} {} {}",
        report["server"],
        reference["verdict"],
        reference["reason"],
        reference["findings"],
        reference["notes"]
    )
}

#[test]
fn a_server_that_is_right_passes_in_each_protocol() {
    for kind in KINDS {
        let fake = Fake::new(kind, Way::Plain);
        let (code, report) = with_model(&fake);
        assert_eq!(code, 0, "{kind:?}: {}", brief(&report));
        assert_eq!(report["server"]["kind"], kind.name());
        assert!(
            report["references"][0]["coverage"]["taps_compared"].as_u64() > Some(6),
            "{kind:?}: {}",
            brief(&report)
        );
        let (made, allowed) = (&report["server"]["requests"], &report["server"]["allowed"]);
        assert_eq!(made.as_u64(), Some(fake.count() as u64), "{kind:?}");
        assert!(made.as_u64() <= allowed.as_u64(), "{kind:?}");
    }
}

#[test]
fn without_a_model_a_server_is_held_against_itself() {
    for kind in KINDS {
        let (code, report) = probe(&Fake::new(kind, Way::Plain), &[]);
        assert_eq!(code, 0, "{kind:?}: {}", brief(&report));
        assert_eq!(report["references"], Value::Array(Vec::new()), "{kind:?}");
        assert_eq!(check(&report, "asked again")["verdict"], "pass", "{kind:?}");
    }
}

#[track_caller]
fn assert_right(way: Way) {
    let models: [&[&str]; 2] = [&["--model", MODEL], &[]];
    for (kind, model) in one_of(2, pairs(KINDS, models)) {
        let (code, report) = probe(&Fake::new(kind, way), model);
        assert!([0, 3].contains(&code), "{kind:?} {way:?} {model:?}: {}", brief(&report));
    }
}

#[test]
fn a_server_in_a_shorter_type_never_fails() {
    assert_right(Way::Bf16);
}

#[test]
fn a_server_that_rounds_otherwise_each_time_never_fails() {
    assert_right(Way::Rounds);
}

#[test]
fn a_server_that_writes_few_decimals_never_fails() {
    assert_right(Way::FourDecimals);
}

/// Of a token that has nearly all of the probability, the logarithm is about as large as what is rounded of the sum.
#[test]
fn a_server_that_sums_in_f32_passes_as_f32() {
    for kind in one_of(2, KINDS) {
        let fake = Fake::new(kind, Way::SumsInF32);
        let asked = ["--model", MODEL, "--numerics", "f32", "--no-report"];
        let (code, report) = Terminal::new().json(&[&["probe", &fake.url], &asked[..]].concat());
        assert_eq!(code, 0, "{kind:?}: {}", brief(&report));
    }
}

#[test]
fn a_server_that_tells_less_never_fails() {
    assert_right(Way::TellsLess);
}

#[test]
fn tokens_without_text_in_top_logprobs_hide_no_others() {
    let (_, report) = with_stated(&Fake::new(ServerProtocol::Openai, Way::NamesFew));
    // That fewer came than were asked for is told, and is another matter.
    assert_eq!(report["references"][0]["verdict"], "pass", "{}", brief(&report));
}

#[test]
fn one_decimal_tells_no_models_apart_and_is_no_bad_input() {
    let (code, report) = with_stated(&Fake::new(ServerProtocol::Openai, Way::OneDecimal));
    assert_eq!(code, 3, "{}", brief(&report));
    let told = report.to_string();
    assert!(told.contains("multiples of 0.1, too coarse to distinguish models"), "{}", brief(&report));
}

#[test]
fn an_echo_without_bos_is_put_where_it_belongs() {
    for way in [Way::EchoesWords, Way::EchoesSilence] {
        let (code, report) = with_stated(&Fake::new(ServerProtocol::Openai, way));
        assert_eq!(code, 0, "{way:?} {}", brief(&report));
        let taps = &report["references"][0]["coverage"]["taps_compared"];
        assert!(taps.as_u64() > Some(6), "{way:?} {}", brief(&report));
    }
}

#[test]
fn an_answer_to_a_conversation_is_not_held_against_the_text() {
    for model in [&["--model", MODEL] as &[_], &[]] {
        let (code, report) = probe(&Fake::new(ServerProtocol::Openai, Way::Talks), model);
        assert_eq!(code, if model.is_empty() { 0 } else { 3 }, "{}", brief(&report));
        assert_eq!(check(&report, "asked again")["verdict"], "pass", "{}", brief(&report));
        assert_eq!(report["references"], Value::Array(Vec::new()));
    }
}

#[test]
fn no_more_requests_are_made_than_were_said() {
    for requests in ["9", "12", "40"] {
        let fake = Fake::new(ServerProtocol::LlamaServer, Way::Plain);
        let (code, report) = probe(&fake, &["--model", MODEL, "--requests", requests]);
        // What was not asked is not known.
        assert!([2, 3].contains(&code), "{requests}: {code}: {}", brief(&report));
        assert!(fake.count() <= requests.parse().expect("a number"), "{requests}: {}", fake.count());
    }
}

#[test]
fn what_was_recorded_is_judged_and_compared_later() {
    for kind in KINDS {
        let terminal = Terminal::new();
        let record = |way: Way, out: &str| {
            let fake = Fake::new(kind, way);
            let finished =
                terminal.run(&["record", &fake.url, "--out", out, "--model", MODEL, "--decode", "6"]);
            assert_eq!(finished.code, 0, "{kind:?}: {}", finished.stderr);
        };
        record(Way::Plain, "plain.safetensors");
        let arguments = ["check", "--model", MODEL, "--candidate", "plain.safetensors", "--no-report"];
        let (code, report) = terminal.json(&arguments);
        assert_eq!(code, 0, "{kind:?}: {}", brief(&report));
        record(Way::Log10, "wrong.safetensors");
        let (code, report) =
            terminal.json(&["compare", "wrong.safetensors", "plain.safetensors", "--no-report"]);
        assert_eq!(code, 1, "{kind:?}: {}", brief(&report));
        record(Way::Plain, "again.safetensors");
        let (code, report) =
            terminal.json(&["compare", "again.safetensors", "plain.safetensors", "--no-report"]);
        assert_eq!(code, 0, "{kind:?}: {}", brief(&report));
    }
}

/// Nobody has to name a family where nothing depends on it; one that is named must be the model's.
#[test]
fn what_was_recorded_without_a_model_is_judged_by_one() {
    let terminal = Terminal::new();
    for (architecture, code) in [(&[] as &[_], 0), (&["--architecture", "gpt2"], 2)] {
        let out = format!("{code}.safetensors");
        let fake = Fake::new(ServerProtocol::Vllm, Way::Plain);
        let asked = ["record", &fake.url, "--out", &out, "--decode", "6"];
        let finished = terminal.run(&[&asked, architecture].concat());
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        let judged = terminal.run(&["check", "--model", MODEL, "--candidate", &out, "--no-report"]);
        assert_eq!(judged.code, code, "{}{}", judged.stdout, judged.stderr);
    }
}
