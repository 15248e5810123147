//! What is behind a URL is judged like what is on this machine.

use serde_json::Value;

use super::machine::{BLOCK, Machine, shipped};
use super::server::Faults;

/// What a report finds, without what names the files.
fn findings(mut report: Value) -> Value {
    let references = report["references"].as_array_mut().expect("references");
    for reference in references {
        let reference = reference.as_object_mut().expect("an object");
        for key in ["model", "notes"] {
            reference.remove(key);
        }
    }
    report["references"].take()
}

/// A model and a dump by URL, and the same by path, must be judged alike and pass.
#[track_caller]
pub fn is_judged_alike(machine: &Machine, model: &str, dump: &str) -> Value {
    let (there, reference) = (machine.url(model), machine.url(dump));
    let found = machine.report(&there, &reference, &[]);
    let (here, dump) = (shipped(model), shipped(dump));
    let expected = machine.report(here.to_str().expect("plain"), dump.to_str().expect("plain"), &[]);
    assert_eq!(found["verdict"], "pass", "{found}");
    assert_eq!(findings(found.clone()), findings(expected));
    found
}

#[test]
fn a_folder_and_a_dump_are_judged_as_they_are_here() {
    let machine = Machine::new(&["tiny-llama2"]);
    let report =
        is_judged_alike(&machine, "tiny-llama2/hf", "tiny-llama2/dumps/transformers-f32.safetensors");
    assert_eq!(report["model"]["sha256"], Value::Null);
    let notes = report["references"][0]["notes"].to_string();
    for expected in [
        "the weights were read in parts from",
        r#"(ETag \"tiny-llama2/hf/model.safetensors-0\")"#,
        "the dump was read in parts from",
        "could not be checked",
    ] {
        assert!(notes.contains(expected), "{expected}: {notes}");
    }
}

#[test]
fn every_way_to_name_a_model_works() {
    let machine = Machine::new(&["tiny-llama2", "tiny-llama3", "tiny-gpt2"]);
    let dump = "tiny-llama2/dumps/llama.cpp-q8_0.safetensors";
    is_judged_alike(&machine, "tiny-llama2/tiny-llama2-q8_0.gguf", dump);
    let dump = "tiny-llama2/dumps/transformers-f32.safetensors";
    is_judged_alike(&machine, "tiny-llama2/hf/model.safetensors", dump);
    let dump = "tiny-llama3/dumps/transformers-f32.safetensors";
    is_judged_alike(&machine, "tiny-llama3/hf/model.safetensors.index.json", dump);
    is_judged_alike(&machine, "tiny-llama3/hf", dump);
    is_judged_alike(&machine, "tiny-gpt2/hf", "tiny-gpt2/dumps/transformers-f32.safetensors");
    is_judged_alike(&machine, "tiny-gpt2/pt", "tiny-gpt2/dumps/transformers-f32.safetensors");
}

#[test]
fn bitnet_and_llama2c_too() {
    let machine = Machine::new(&["tiny-bitnet-b158", "tiny-llama2c"]);
    for (model, dump) in [
        (
            "tiny-bitnet-b158/tiny-bitnet-b158-i2_s.gguf",
            "tiny-bitnet-b158/dumps/bitnet.cpp-f32kv.safetensors",
        ),
        ("tiny-llama2c/tiny-llama2c-v0.bin", "tiny-llama2c/dumps/llama2.c-v0.safetensors"),
    ] {
        is_judged_alike(&machine, model, dump);
    }
}

#[test]
fn a_dump_that_is_wrong_fails_and_its_causes_are_left_to_files_that_are_here() {
    let machine = Machine::new(&["tiny-llama2"]);
    let dump = machine.url("tiny-llama2/dumps/transformers-f32.safetensors");
    let model = machine.url("tiny-llama2/hf");
    let report = machine.report(&model, &dump, &["--suppose", "rope_theta=5000"]);
    assert_eq!(report["verdict"], "fail", "{report}");
    assert_eq!(report["references"][0]["first_divergence"]["tap"], "q_rope", "{report}");
    assert!(report.to_string().contains("causes were not searched"), "{report}");
}

#[test]
fn an_npz_comes_whole() {
    let machine = Machine::new(&["tiny-llama2"]);
    let model = machine.url("tiny-llama2/tiny-llama2-q8_0.gguf");
    machine.succeeds(&["dump", "--model", &model, "--tokens", "1,2,3", "--decode", "1", "--out", "own"]);
    machine.server.put("own.npz", machine.npz("own"));
    let report = machine.report(&model, &machine.url("own.npz"), &[]);
    assert_eq!(report["verdict"], "pass", "{report}");
    assert_eq!(report["references"][0]["name"], "own");
}

#[test]
fn a_dump_by_url_can_be_inspected_and_compared() {
    let machine = Machine::new(&["tiny-llama2"]);
    let dump = machine.url("tiny-llama2/dumps/transformers-f32.safetensors");
    let said = machine.succeeds(&["inspect", &dump, "--tap", "q", "--layer", "1", "--pass", "0"]);
    assert!(said.contains("read in parts, ETag") && said.contains("dump made by transformers"), "{said}");
    let here = shipped("tiny-llama2/dumps/transformers-f32.safetensors");
    machine.succeeds(&["compare", here.to_str().expect("plain"), &dump]);
}

#[test]
fn a_server_without_parts_gives_all_and_that_is_told() {
    let machine = Machine::new(&["tiny-llama2"]);
    machine.server.misbehave(Faults { no_ranges: true, ..Faults::default() });
    let model = machine.url("tiny-llama2/tiny-llama2-q8_0.gguf");
    let dump = machine.url("tiny-llama2/dumps/llama.cpp-q8_0.safetensors");
    let report = machine.report(&model, &dump, &[]);
    assert_eq!(report["verdict"], "pass", "{report}");
    assert!(
        report.to_string().contains("whole file: the server does not support range requests"),
        "{report}"
    );
    let given = machine.server.given();
    let asked = |url: &str| given.iter().filter(|given| url.ends_with(&given.path)).count();
    assert_eq!([asked(&model), asked(&dump)], [2, 2], "opened, and looked at");
}

#[test]
fn a_server_that_names_dates_pins_by_them() {
    let machine = Machine::new(&["tiny-llama2"]);
    machine.server.misbehave(Faults { dated: true, ..Faults::default() });
    let said = machine.succeeds(&["inspect", &machine.url("tiny-llama2/tiny-llama2-q8_0.gguf")]);
    assert!(said.contains("read in parts, Last-Modified Sun, 22 Nov 2026"), "{said}");
}

#[test]
fn only_the_header_of_a_model_is_read_to_show_it() {
    let machine = Machine::new(&["tiny-llama2"]);
    let here = shipped("tiny-llama2/tiny-llama2-f32.gguf");
    let said = machine.succeeds(&["inspect", &machine.url("tiny-llama2/tiny-llama2-f32.gguf")]);
    let table = |text: &str| text.split_once("metadata").expect("a table").1.to_owned();
    assert_eq!(table(&said), table(&machine.succeeds(&["inspect", here.to_str().expect("plain")])));
    let (given, all) =
        (machine.server.bytes(), machine.server.file("tiny-llama2/tiny-llama2-f32.gguf").len());
    assert!(given <= 3 * BLOCK && all > 20 * BLOCK, "{given} of {all}");
}

/// An `ETag` names the content; a date may stay the same when the content changes within a second.
#[test]
fn a_shard_goes_on_only_along_a_dump_whose_content_its_server_names_for_certain() {
    let machine = Machine::new(&["tiny-llama2"]);
    let dump = machine.url("tiny-llama2/dumps/llama.cpp-f32.safetensors");
    let shard = [
        "run",
        "--model",
        "tiny-llama2",
        "--reference",
        &dump,
        "--shard",
        "1/1",
        "--resume",
        "--report",
        "r",
    ];
    let said = |machine: &Machine| {
        let finished = machine.run(&shard);
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        finished.stderr
    };
    let thrown_away = "discards the results of the earlier run: the dump has no reliable content hash";
    assert!(!said(&machine).contains("discards the results"));
    assert!(!said(&machine).contains("discards the results"), "it is named by the same ETag");
    machine.server.misbehave(Faults { dated: true, ..Faults::default() });
    said(&machine);
    assert!(said(&machine).contains(thrown_away));
}
