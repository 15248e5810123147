//! From a model's name to a verdict, with programs that do what they should.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::machine::{Machine, SHIPPED};

const MADE: &str = "hf/dumps/transformers-f32.safetensors";

#[test]
fn one_command_makes_the_reference_and_judges_by_it() {
    let machine = Machine::new(&["mine"]);
    let run = [
        "run",
        "--model",
        "hf",
        "--checkpoint",
        "all",
        "--format",
        "json",
        "--make-references",
        "--python",
        "bin/mine",
    ];
    let report: Value = serde_json::from_str(&machine.run(&run).succeeded()).expect("report.json");
    assert_eq!(
        (&report["verdict"], &report["references"][0]["name"]),
        (&"pass".into(), &"transformers-f32".into())
    );
    assert_eq!(machine.names("hf/dumps"), ["transformers-f32.safetensors"], "nothing else is left");

    // What is there is not made again.
    let told = machine.told();
    machine.run(&run).succeeded();
    assert_eq!(machine.told(), told);
}

#[test]
fn the_script_is_told_what_was_asked_for() {
    let machine = Machine::new(&["mine"]);
    let reference = ["reference", "--model", "hf", "--python", "mine", "--decode", "2", "--dtype", "bf16"];
    let said = machine.run(&[&reference[..], &["--tokens", "1,2,3"]].concat()).succeeded();
    assert!(said.contains("xcheck run --model hf --checkpoint all"), "{said}");
    let told = machine.told();
    let told = told.lines().last().expect("it was run");
    for part in [
        "dump_transformers.py",
        "--model hf",
        "--tokens 1,2,3",
        "--decode 2",
        "--dtype bf16",
        "--name hf",
        "--out ",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(machine.names("hf/dumps"), ["transformers-bf16.safetensors"]);
}

#[test]
fn a_model_that_ships_is_written_out_for_the_script_and_its_dump_is_found() {
    let machine = Machine::new(&["mine"]);
    machine.run(&["reference", "--model", "tiny-qwen3", "--python", "mine"]).succeeded();
    let models = machine.names("cache/models");
    assert!(models.len() == 1 && models[0].starts_with("tiny-qwen3-hf-"), "{models:?}");
    let written = machine.at("cache/models").join(&models[0]).join("model.safetensors");
    let shipped = Path::new(SHIPPED).join("hf/model.safetensors");
    assert_eq!(fs::read(written).expect("it is there"), fs::read(shipped).expect("it ships"));

    let report = machine.run(&["run", "--model", "tiny-qwen3", "--format", "json"]).succeeded();
    let report: Value = serde_json::from_str(&report).expect("report.json");
    let names: Vec<_> =
        report["references"].as_array().expect("references").iter().map(|r| &r["name"]).collect();
    assert!(names.contains(&&"own-transformers-f32".into()), "{names:?}");
    assert!(names.contains(&&"transformers-f32".into()), "{names:?}");
}

#[test]
fn a_gguf_file_is_for_llama_cpp() {
    let machine = Machine::new(&["python", "dump_llama_cpp"])
        .with("FAKE_DUMP", &format!("{SHIPPED}/dumps/llama.cpp-f32.safetensors"));
    machine.run(&["run", "--model", "model.gguf", "--make-references", "--python", "python"]).succeeded();
    assert_eq!(machine.names("dumps"), ["model-llama.cpp.safetensors"]);
    let told = machine.told();
    assert!(told.lines().last().expect("it was run").contains("--model model.gguf"), "{told}");
    assert!(told.contains("--kv f32") && told.contains("--prompt"), "{told}");
}

#[test]
fn what_the_other_program_says_is_shown_where_that_is_asked_for() {
    let machine = Machine::new(&["mine"]);
    let reference = ["reference", "--model", "hf", "--python", "mine"];
    let quiet = machine.run(&reference);
    assert_eq!((quiet.code, quiet.stderr.lines().count()), (0, 1), "{}", quiet.stderr);
    fs::remove_file(machine.at(MADE)).expect("it was made");
    let loud = machine.run(&[&reference[..], &["--verbose"]].concat());
    assert!(loud.code == 0 && loud.stderr.contains("  loaded\n"), "{}", loud.stderr);
}

#[test]
fn the_last_words_of_a_program_that_fails_are_passed_on_with_the_log() {
    let machine = Machine::new(&["mine"]).with("FAKE", "dump-fails");
    let run = ["run", "--model", "hf", "--make-references", "--python", "mine"];
    let finished = machine.run(&run);
    assert_eq!((finished.code, finished.stdout.as_str()), (2, ""), "{}", finished.stderr);
    let said = finished.stderr.lines().last().expect("an error");
    assert!(said.starts_with("error: transformers on hf failed: ValueError: rope_type; "), "{said}");
    let log = said.rsplit_once(" is in ").expect("it says where").1;
    assert!(fs::read_to_string(log).expect("it is there").contains("Traceback"), "{log}");
    assert!(!machine.at("hf/dumps").exists(), "nothing half made is left");
    let report = fs::read_to_string(machine.at("reports/run-hf/report.md")).expect("the refusal");
    assert!(report.contains("rope_type") && !report.contains("checkpoint "), "{report}");
}

#[test]
fn what_a_program_wrote_before_it_was_killed_is_no_dump() {
    let machine = Machine::new(&["mine"]).with("FAKE", "dump-dies");
    let finished = machine.run(&["reference", "--model", "hf", "--python", "mine"]);
    assert!(finished.code == 2 && finished.stderr.contains("signal: 9"), "{}", finished.stderr);
    assert!(!machine.at("hf/dumps").exists());
}

#[test]
fn what_is_no_dump_gets_no_name() {
    let machine = Machine::new(&["mine"]).with("FAKE", "dump-is-none");
    let finished = machine.run(&["reference", "--model", "hf", "--python", "mine"]);
    assert!(finished.code == 2, "{}", finished.stdout);
    assert!(!machine.at("hf/dumps").exists());

    let other =
        Machine::new(&["mine"]).with("FAKE_DUMP", &format!("{SHIPPED}/dumps/llama.cpp-q8_0.safetensors"));
    let finished = other.run(&["reference", "--model", "hf", "--python", "mine"]);
    assert!(finished.code == 2 && finished.stderr.contains("other weights"), "{}", finished.stderr);
    assert!(!other.at("hf/dumps").exists());
}

#[test]
fn killed_while_the_dump_is_written_and_started_again_it_works() {
    let mut machine = Machine::new(&["mine"]).with("FAKE", "dump-hangs");
    let reference = ["reference", "--model", "hf", "--python", "mine"];
    machine.run_and_kill(&reference);
    assert_eq!(machine.names("hf/dumps").len(), 1, "what was begun");
    assert!(!machine.at(MADE).exists(), "under another name");
    machine.set("FAKE", "");
    machine.run(&reference).succeeded();
    assert_eq!(machine.names("hf/dumps"), ["transformers-f32.safetensors"]);
}
