//! Models that ship: one inside the program, the others where they are found.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;
use xcheck::shipped_models;

use crate::common::finished::Finished;

fn checkpoints() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints")
}

/// A machine with a folder of models, empty at first, and an empty directory to work in.
struct Machine {
    models: TempDir,
    work: TempDir,
}

impl Machine {
    fn new() -> Self {
        let folder = || TempDir::new().expect("a temporary directory");
        Self { models: folder(), work: folder() }
    }

    fn looking_in(&self, place: &Path, arguments: &[&str]) -> Finished {
        let mut command = Command::cargo_bin("xcheck").expect("it is built");
        command.current_dir(self.work.path()).env("XCHECK_CHECKPOINTS", place).args(arguments);
        Finished::of(command.output().expect("it starts"))
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        self.looking_in(self.models.path(), arguments)
    }

    /// A model of the repository is among its models, too.
    fn with(self, model: &str) -> Self {
        copy(&checkpoints().join(model), &self.models.path().join(model));
        self
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("it is made");
    for entry in fs::read_dir(from).expect("it is listed") {
        let path = entry.expect("it is listed").path();
        let to = to.join(path.file_name().expect("it has a name"));
        match path.is_dir() {
            true => copy(&path, &to),
            false => _ = fs::copy(&path, &to).expect("it is copied"),
        }
    }
}

const MAIN_JOB: [&str; 7] = ["run", "--model", "tiny-llama2", "--checkpoint", "all", "--format", "json"];

#[test]
fn the_main_job_needs_nothing_but_the_program() {
    let machine = Machine::new();
    let report: Value = serde_json::from_str(&machine.run(&MAIN_JOB).succeeded()).expect("a report");
    let references = report["references"].as_array().expect("a list");
    let names: Vec<_> =
        references.iter().map(|reference| reference["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["llama.cpp-q8_0"]);
    for reference in references {
        let checkpoints = reference["checkpoints"].as_array().expect("a list");
        assert_eq!(checkpoints.len(), 13, "the input and twelve checkpoints");
        assert!(checkpoints.iter().all(|checkpoint| checkpoint["verdict"] == "pass"), "{checkpoints:?}");
    }
}

#[test]
fn what_is_inside_is_what_the_repository_has() {
    let machine = Machine::new();
    machine.run(&["models", "--export", "tiny-llama2", "."]).succeeded();
    let written = machine.work.path().join("tiny-llama2");
    let files = ["tiny-llama2-q8_0.gguf", "dumps/llama.cpp-q8_0.safetensors"];
    for file in files.map(Path::new) {
        let read = |root: &Path| fs::read(root.join(file)).expect("it is there");
        assert!(read(&written) == read(&checkpoints().join("tiny-llama2")), "{}", file.display());
    }
    assert!(!written.join("tiny-llama2-f32.gguf").exists());
    // What is there stays as it is.
    machine.run(&["models", "--export", "tiny-llama2", "."]).refused(&["tiny-llama2 already exists"]);
}

#[test]
fn an_exported_model_is_found_in_its_folder() {
    let (whole, machine) = (Machine::new(), Machine::new());
    let place = machine.models.path().to_str().expect("plain");
    whole.looking_in(&checkpoints(), &["models", "--export", "tiny-gpt2", place]).succeeded();
    let every = |root: &Path| {
        let (mut all, mut folders) = (BTreeSet::new(), vec![root.to_owned()]);
        while let Some(folder) = folders.pop() {
            for path in
                fs::read_dir(folder).expect("it is listed").map(|entry| entry.expect("it is listed").path())
            {
                match path.is_dir() {
                    true => folders.push(path),
                    false => _ = all.insert(path.strip_prefix(root).expect("it is below").to_owned()),
                }
            }
        }
        all
    };
    assert_eq!(every(&machine.models.path().join("tiny-gpt2")), every(&checkpoints().join("tiny-gpt2")));
    machine.run(&["run", "--model", "tiny-gpt2-pt", "--reference", "transformers-f32"]).succeeded();
}

#[test]
fn a_folder_of_models_goes_before_what_is_inside() {
    let machine = Machine::new().with("tiny-llama2");
    let dump = machine.models.path().join("tiny-llama2/dumps/llama.cpp-f32.safetensors");
    let run = ["run", "--model", "tiny-llama2", "--reference", "llama.cpp-f32", "--no-report"];
    machine.run(&run).succeeded();
    let mut bytes = fs::read(&dump).expect("it is there");
    let at = bytes.len() / 2;
    bytes[at..at + 64].fill(0x3f);
    fs::write(&dump, bytes).expect("it is written");
    assert_eq!(machine.run(&run).code, 1);
}

#[test]
fn a_model_that_is_not_here_says_where_it_was_looked_for_and_what_to_do() {
    let machine = Machine::new();
    let looked = machine.models.path().join("tiny-gemma3");
    let expected =
        [looked.to_str().expect("plain"), "XCHECK_CHECKPOINTS", "'checkpoints' of xcheck's repository"];
    machine.run(&["run", "--model", "tiny-gemma3"]).refused(&expected);
    machine.run(&["models", "--export", "tiny-gemma3", "."]).refused(&expected);
    machine.run(&["run", "--model", "tiny-gemma3-f32"]).refused(&expected[1..]);
    let formats = "tiny-llama2 except tiny-llama2-q8_0";
    machine.run(&["run", "--model", "tiny-llama2-f16"]).refused(&[formats, expected[2]]);
    machine.run(&["inspect", "tiny-gemma3/llama.cpp-f32"]).refused(&["No such file"]);
    machine.run(&["compare", "llama.cpp-q8_0", "tiny-gemma3/llama.cpp-f32"]).refused(&expected[1..]);
    machine.run(&["models", "--export", "tiny-llama7", "."]).refused(&["tiny-llama7", "tiny-llama2, "]);
}

#[test]
fn models_says_which_are_here() {
    let machine = Machine::new().with("tiny-qwen3");
    let list: Value =
        serde_json::from_str(&machine.run(&["models", "--format", "json"]).succeeded()).expect("a list");
    let place = |name: &str| {
        let mut shipped = list["shipped"].as_array().expect("a list").iter();
        shipped.find(|model| model["name"] == name).expect("it ships")["place"].clone()
    };
    assert_eq!(place("tiny-llama2"), "inside the program");
    assert_eq!(place("tiny-qwen3"), machine.models.path().join("tiny-qwen3").to_str().expect("plain"));
    assert_eq!(place("tiny-gemma3"), Value::Null);
    let text = machine.run(&["models"]).succeeded();
    assert!(text.contains("(not on this machine)") && text.contains("XCHECK_CHECKPOINTS"), "{text}");
}

#[test]
fn folders_that_are_none_or_hold_no_model_are_refused() {
    let machine = Machine::new().with("tiny-qwen3");
    let nowhere = machine.work.path().join("nowhere");
    let expected = ["XCHECK_CHECKPOINTS", nowhere.to_str().expect("plain"), "expected a folder"];
    machine.looking_in(&nowhere, &["run", "--model", "tiny-llama2"]).refused(&expected);
    let folder = machine.models.path().join("tiny-qwen3");
    fs::remove_file(folder.join("hf/model.safetensors")).expect("it is removed");
    machine.run(&["run", "--model", "tiny-qwen3"]).refused(&["hf/config.json", "no .safetensors file"]);
    fs::remove_dir_all(&folder).expect("it is removed");
    fs::create_dir(&folder).expect("it is made");
    machine.run(&["run", "--model", "tiny-qwen3"]).refused(&["tiny-qwen3", "contains no model file"]);
}

/// The program is not the only thing that decides what a cell finds.
#[test]
fn another_file_of_a_model_runs_its_cell_of_a_matrix_again() {
    let machine = Machine::new().with("tiny-llama2");
    let (cells, dump) =
        (machine.work.path().join("cells.toml"), "tiny-llama2/dumps/llama.cpp-q8_0.safetensors");
    let words = r#"["run", "--model", "tiny-llama2-q8_0", "--layer", "0", "--checkpoint", "{c}"]"#;
    fs::write(cells, format!("command = {words}\naxes.c = [\"1\"]")).expect("it is written");
    let was_run = || {
        machine.run(&["matrix", "cells.toml", "--report", "out"]);
        let matrix = fs::read(machine.work.path().join("out/matrix.json")).expect("it is there");
        let matrix: Value = serde_json::from_slice(&matrix).expect("it is JSON");
        matrix["cells"][0]["was_run"] == true
    };
    assert_eq!([was_run(), was_run()], [true, false]);
    let dump = machine.models.path().join(dump);
    let mut bytes = fs::read(&dump).expect("it is there");
    let at = bytes.len() - 4;
    bytes[at] ^= 1;
    fs::write(&dump, bytes).expect("it is written");
    assert!(was_run());
}

#[test]
fn the_users_folder_comes_after_the_repository() {
    let variables = |set: &'static [(&str, &str)]| {
        move |name: &str| Some(set.iter().find(|(known, _)| *known == name)?.1.into())
    };
    let user = Some(PathBuf::from("/home/me"));
    let by = |set, user| shipped_models::places_by(variables(set), user).expect("folders");
    assert_eq!(by(&[], user.clone()), [checkpoints(), "/home/me/.local/share/xcheck/checkpoints".into()]);
    let data = by(&[("XDG_DATA_HOME", "/data")], user.clone());
    assert_eq!(data, [checkpoints(), "/data/xcheck/checkpoints".into()]);
    assert_eq!(by(&[("XDG_DATA_HOME", ""), ("XCHECK_CHECKPOINTS", "")], None), [checkpoints()]);
    assert_eq!(by(&[("XCHECK_CHECKPOINTS", "/")], user), [PathBuf::from("/")]);
}
