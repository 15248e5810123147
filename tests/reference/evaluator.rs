//! Models that torch evaluates: the command, with a worker whose session was recorded.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::machine::Machine;

/// A recorded session of `reference-scripts/evaluator/record_session.py`: a tiny Llama with a wrong norm epsilon in layer 1.
const SESSION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/evaluator");

fn machine() -> Machine {
    Machine::new(&["python3"]).with("FAKE_ANSWERS", SESSION)
}

fn check(machine: &Machine, arguments: &[&str]) -> crate::common::finished::Finished {
    let candidate = format!("{SESSION}/dump.safetensors");
    machine.run(&[&["check", "--model", "hf", "--candidate", &candidate][..], arguments].concat())
}

#[test]
fn a_dump_of_modules_is_judged_by_torch_and_the_first_wrong_module_is_named() {
    let machine = machine();
    let finished = check(&machine, &["--yes", "--format", "json", "--report", "report"]);
    assert_eq!(finished.code, 1, "{}", finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout).expect("a report");
    let dump = &report["references"][0];
    assert_eq!(dump["first_divergence"]["tap"], "model.layers.*.input_layernorm");
    assert_eq!(dump["first_divergence"]["layer"], 1);
    let cause = dump["findings"][0]["what"].as_str().expect("a cause");
    assert!(cause.contains("modeling_llama.py:65") && cause.contains("0.0001 (expected 1e-06)"), "{cause}");
    let told = machine.told();
    assert!(told.contains(r#""request":"evaluate""#) && told.contains(r#""request":"causes""#), "{told}");
    assert!(!told.contains("No such file"), "the package was written out: {told}");
}

#[test]
fn a_worker_that_dies_is_an_error_with_its_last_words() {
    let finished = check(&machine().with("FAKE", "worker-dies"), &["--yes"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (2, ""));
    assert!(finished.stderr.contains("MemoryError: 3 GB"), "{}", finished.stderr);
}

#[test]
fn a_killed_worker_is_an_error_that_names_the_signal() {
    let finished = check(&machine().with("FAKE", "worker-killed"), &["--yes"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (2, ""));
    assert!(
        finished.stderr.contains("signal: 9") && finished.stderr.contains("out of memory"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_worker_that_reports_nothing_is_ended_with_one_message() {
    let started = Instant::now();
    let finished =
        check(&machine().with("FAKE", "worker-hangs"), &["--yes", "--evaluator-timeout", "1", "--no-report"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (2, ""));
    assert!(finished.stderr.contains("no message for 1 s"), "{}", finished.stderr);
    assert!(finished.stderr.contains("raise --evaluator-timeout"), "{}", finished.stderr);
    assert!(started.elapsed() < Duration::from_secs(30), "the worker was not ended");
    let patient = check(&machine(), &["--yes", "--evaluator-timeout", "60", "--no-report"]);
    assert_eq!(patient.code, 1, "{}", patient.stderr);
}

#[test]
fn several_dumps_are_judged_by_one_worker() {
    let machine = machine();
    let candidate = format!("{SESSION}/dump.safetensors");
    let finished = check(&machine, &["--yes", "--no-report", "--candidate", &candidate]);
    assert_eq!(finished.code, 1, "{}", finished.stderr);
    let told = machine.told();
    assert_eq!(told.matches("-m xcheck.evaluator").count(), 1, "{told}");
    assert_eq!(told.matches(r#""request":"evaluate""#).count(), 2, "{told}");
}

#[test]
fn nothing_is_installed_unasked_and_options_of_our_engine_are_refused() {
    for (arguments, told) in [
        (&[][..], "pass --yes"),
        (
            &["--yes", "--suppose", "norm_eps=1e-5"],
            "--suppose is not supported where torch evaluates the model",
        ),
        (&["--yes", "--gate", "tolerance"], "--gate tolerance is not supported"),
        (&["--yes", "--position", "0-2"], "--position is not supported"),
        (&["--evaluator", "native"], "--evaluator torch"),
    ] {
        check(&machine(), arguments).refused(&[told]);
    }
}

/// The files in a folder and below, without what Python compiles.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut open = vec![folder.to_owned()];
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(&at).expect("a folder").map(|entry| entry.expect("it can be listed").path())
        {
            match entry.is_dir() {
                true if !entry.ends_with("__pycache__") => open.push(entry),
                true => {}
                false => _ = found.insert(entry.strip_prefix(folder).expect("it is inside").to_owned()),
            }
        }
    }
    found
}

#[test]
fn the_whole_package_is_in_the_program() {
    let machine = machine();
    check(&machine, &["--yes", "--no-report"]);
    let names = machine.names("cache/python");
    let written = machine.at("cache/python").join(&names[0]).join("xcheck");
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/src/xcheck");
    assert_eq!(files(&written), files(&ours));
}
