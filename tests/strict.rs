//! `--strict`: no quantised weight is decoded and computed with in floating point unnoticed.

use std::path::Path;

use crate::common::terminal::Terminal;
use serde_json::Value;
use xcheck::numerics;
use xcheck::quant::DECODABLE;

const Q8_0: [&str; 5] = ["run", "--model", "tiny-llama2-q8_0", "--reference", "llama.cpp-q8_0"];

fn with<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [&Q8_0, words].concat()
}

#[test]
fn dequantisation_is_refused_with_the_tensor_its_type_and_who_does_better() {
    let terminal = Terminal::new();
    for numerics in ["f32", "transformers"] {
        let arguments = with(&["--numerics", numerics, "--strict"]);
        for told in ["token_embd", "q8_0", "'llama.cpp'", &format!("'{numerics}'")] {
            terminal.assert_refused(&arguments, told);
        }
    }
    let dump = ["dump", "--model", "tiny-llama2-q8_0", "--tokens", "1", "--out", "d", "--strict"];
    terminal.assert_refused(&[&dump[..], &["--numerics", "f32"]].concat(), "q8_0");
    assert!(!terminal.path().join("d").exists());
    assert_eq!(terminal.run(&dump).code, 0, "by itself it computes with the weights as they are stored");
}

#[test]
fn numerics_that_compute_with_the_type_as_it_is_stored_are_not() {
    let terminal = Terminal::new();
    let (code, report) = terminal.json(&with(&["--strict"]));
    assert_eq!((code, &report["verdict"]), (0, &"pass".into()));
    assert_eq!(notes(&report).len(), 0);
    let dump =
        ["dump", "--model", "tiny-llama2-q8_0", "--tokens", "1", "--out", "d", "--numerics", "llama.cpp"];
    assert_eq!(terminal.run(&[&dump[..], &["--strict"]].concat()).code, 0);
}

#[test]
fn every_quantised_format_runs_strictly_as_llama_cpp_computes() {
    let terminal = Terminal::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/formats");
    for name in DECODABLE.iter().map(|dtype| dtype.name()).filter(|name| !["f32", "f16"].contains(name)) {
        let model = folder.join(format!("{name}.gguf")).display().to_string();
        let arguments = ["run", "--model", &model, "--strict", "--checkpoint", "all"];
        let (code, report) = terminal.json(&arguments);
        assert_eq!((code, &report["verdict"]), (0, &"pass".into()), "{name}");
        let decodes = [&arguments[..], &["--numerics", "f32"]].concat();
        match name {
            "bf16" => assert_eq!(terminal.run(&decodes).code, 1), // a number by itself: nothing is decoded
            _ => terminal.assert_refused(&decodes, name),
        }
    }
}

#[test]
fn plain_weights_are_not_decoded() {
    let arguments = ["run", "--model", "tiny-llama2", "--reference", "llama.cpp-f32", "--numerics", "f32"];
    let (code, report) = Terminal::new().json(&[&arguments[..], &["--strict"]].concat());
    assert_eq!((code, notes(&report).len()), (0, 0));
}

#[test]
fn without_it_the_report_says_what_was_decoded() {
    let (code, report) = Terminal::new().json(&with(&["--numerics", "f32"]));
    assert_eq!(code, 1);
    assert!(notes(&report).iter().any(|note| note.contains("weights of type q8_0 were decoded")), "{report}");
}

#[test]
fn a_native_type_can_be_computed_with() {
    for numerics in numerics::ALL {
        let types = numerics.weight_types();
        assert!(numerics.native_types().iter().all(|dtype| types.contains(dtype)), "{}", numerics.name());
    }
}

fn notes(report: &Value) -> Vec<String> {
    let notes = report["references"][0]["notes"].as_array().expect("notes");
    notes.iter().map(|note| note.as_str().expect("a sentence").to_owned()).collect()
}
