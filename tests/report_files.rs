//! Report files as a CI job finds them, whatever becomes of the run.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::terminal::Terminal;
use clap::CommandFactory;
use serde_json::Value;
use xcheck::cli::Cli;

const NAMES: [&str; 3] = ["junit.xml", "report.json", "report.md"];

fn read(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn json(folder: &Path) -> Value {
    serde_json::from_str(&read(folder, "report.json")).expect("report.json is JSON")
}

/// The folder below `reports`, the only one there.
fn only_folder(terminal: &Terminal) -> PathBuf {
    let folders = fs::read_dir(terminal.path().join("reports")).expect("there are reports");
    let folders: Vec<_> = folders.map(|entry| entry.expect("it is readable").path()).collect();
    assert_eq!(folders.len(), 1, "{folders:?}");
    folders[0].clone()
}

fn shipped(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints/tiny-llama2").join(file)
}

/// `mine.gguf` and `dump.safetensors` in an empty directory.
fn a_model_and_a_dump() -> Terminal {
    let terminal = Terminal::new();
    let copies =
        [("tiny-llama2-q8_0.gguf", "mine.gguf"), ("dumps/llama.cpp-q8_0.safetensors", "dump.safetensors")];
    for (file, name) in copies {
        fs::copy(shipped(file), terminal.path().join(name)).expect("it is copied");
    }
    terminal
}

/// A report says of itself that there was an error, and which, in every file.
#[track_caller]
fn assert_error(folder: &Path, message: &str) {
    let report = json(folder);
    assert_eq!(report["verdict"], "error");
    assert!(report["error"].as_str().expect("a message").contains(message), "{report}");
    let junit = read(folder, "junit.xml");
    assert!(junit.contains("<error message=") && junit.contains(message), "{junit}");
    assert!(read(folder, "report.md").starts_with("# xcheck: ERROR\n"));
}

#[test]
fn every_command_tells_its_arguments_apart() {
    Cli::command().debug_assert();
}

#[test]
fn yesterdays_green_report_does_not_survive_an_error_of_today() {
    let terminal = a_model_and_a_dump();
    let run = ["run", "--model", "mine.gguf", "--reference", "dump.safetensors"];
    let damage = |name: &str| fs::write(terminal.path().join(name), "damaged").expect("it is written");
    let remove = |name: &str| fs::remove_file(terminal.path().join(name)).expect("it was there");
    let pass = || assert_eq!(terminal.run(&run).code, 0);

    pass();
    let folder = only_folder(&terminal);
    assert_eq!(json(&folder)["verdict"], "pass");
    damage("dump.safetensors");
    terminal.assert_refused(&run, "dump.safetensors");
    assert_error(&folder, "dump.safetensors");
    remove("dump.safetensors");
    terminal.assert_refused(&run, "dump.safetensors");
    assert_error(&folder, "dump.safetensors");
    damage("mine.gguf");
    terminal.assert_refused(&run, "mine.gguf");
    remove("mine.gguf");
    terminal.assert_refused(&run, "mine.gguf");
    assert_error(&folder, "mine.gguf");
    assert_eq!(only_folder(&terminal), folder, "an error is where the report would be");
}

#[test]
fn every_command_that_judges_leaves_its_error_in_its_report() {
    for command in [
        &["run", "--model", "nothing.gguf"][..],
        &["check", "--model", "tiny-llama2", "--candidate", "nothing"],
        &["compare", "nothing", "tiny-llama2/transformers-f32"],
        &["run", "--model", "tiny-llama2", "--tolerance", "nothing.toml"],
        &["run", "--model", "tiny-llama2", "--layer", "99"],
    ] {
        let terminal = Terminal::new();
        assert_eq!(terminal.run(command).code, 2, "{command:?}");
        let folder = only_folder(&terminal);
        let message = json(&folder)["error"].as_str().expect("a message").to_owned();
        assert_error(&folder, message.split('\'').next().expect("a first part"));
    }
}

#[test]
fn nothing_is_written_where_no_report_is_wanted() {
    let terminal = Terminal::new();
    assert_eq!(terminal.run(&["run", "--model", "nothing", "--no-report"]).code, 2);
    assert!(!terminal.path().join("reports").exists());
}

#[test]
fn runs_of_different_references_have_folders_of_their_own() {
    let terminal = Terminal::new();
    let run = ["run", "--model", "tiny-llama2", "--checkpoint", "input", "--reference"];
    for reference in ["llama.cpp-f32", "transformers-f32"] {
        assert_eq!(terminal.run(&[&run[..], &[reference]].concat()).code, 0);
    }
    terminal.run(&["check", "--model", "tiny-llama2", "--candidate", "tiny-llama2/transformers-f32"]);
    for name in [
        "run-tiny-llama2-llama.cpp-f32",
        "run-tiny-llama2-transformers-f32",
        "check-tiny-llama2-transformers-f32",
    ] {
        let folder = terminal.path().join("reports").join(name);
        assert!(NAMES.iter().all(|file| folder.join(file).is_file()), "{name}");
    }
}

#[test]
fn the_exit_code_and_junit_agree() {
    let terminal = a_model_and_a_dump();
    let own = ["run", "--model", "mine.gguf", "--reference", "dump.safetensors"];
    for (arguments, expected) in [
        (&own[..], 0),
        (&[&own[..], &["--numerics", "f32"]].concat(), 1),
        (&["run", "--model", "mine.gguf", "--reference", "nothing"], 2),
        (&["run", "--model", "mine.gguf"], 3),
    ] {
        let finished = terminal.run(&[arguments, &["--report", "here"]].concat());
        assert_eq!(finished.code, expected, "{arguments:?} {}", finished.stderr);
        let junit = read(&terminal.path().join("here"), "junit.xml");
        let is_red = junit.contains("<failure") || junit.contains("<error");
        assert_eq!(is_red, expected != 0, "{junit}");
    }
}

#[test]
fn a_divergence_is_told_from_the_side_that_is_judged() {
    let terminal = Terminal::new();
    let of_ours = ["run", "--model", "tiny-llama2", "--reference", "llama.cpp-q8_0"];
    let quickly = ["--numerics", "f32", "--no-causes"];
    let stdout = terminal.run(&[&of_ours[..], &quickly].concat()).stdout;
    assert!(stdout.contains("\nfirst divergence from llama.cpp-q8_0\n"), "{stdout}");
    let candidate = "tiny-llama2/llama.cpp-q8_0";
    let of_theirs = ["check", "--model", "tiny-llama2", "--candidate", candidate];
    let stdout = terminal.run(&[&of_theirs[..], &quickly].concat()).stdout;
    assert!(stdout.contains("\nfirst divergence of llama.cpp-q8_0\n"), "{stdout}");
    assert!(stdout.lines().filter(|line| !line.contains("xcheck ")).all(|line| line.chars().count() <= 80));
}

#[test]
fn what_is_to_be_typed_next_can_be_typed() {
    let terminal = Terminal::new();
    for (model, dump) in [
        (["run", "--model", "tiny-qwen3", "--reference"], "llama.cpp-q8_0"),
        (["check", "--model", "tiny-qwen3", "--candidate"], "tiny-qwen3/llama.cpp-q8_0"),
    ] {
        let stdout = terminal.run(&[&model[..], &[dump, "--numerics", "f32"]].concat()).stdout;
        let lines = stdout.lines().filter(|line| !line.contains("confirm:"));
        let next = lines.filter_map(|line| Some(line[line.find("xcheck ")?..].split(' ').skip(1)));
        let next: Vec<Vec<&str>> = next.map(Iterator::collect).collect();
        assert_eq!(next.len(), 2, "{stdout}");
        let narrowed = terminal.run(&next[0]);
        assert_eq!(narrowed.code, 1, "{}", narrowed.stderr);
        assert_eq!(narrowed.stdout.matches("  next ").count(), 1, "one is left: {}", narrowed.stdout);
        assert!(!narrowed.stdout.contains(&next[0].join(" ")), "{}", narrowed.stdout);
        let inspected = terminal.run(&next[1]);
        assert!(inspected.stdout.contains("model     tiny-qwen3"), "{}", inspected.stdout);
    }
}
