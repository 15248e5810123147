//! What readers say of the dumps in `conformance/`, right and wrong, is what stands there.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::skip::skip;
use crate::common::terminal::Terminal;
use serde::Deserialize;
use serde_json::Value;

/// What is said of a dump: the command, in which `{dump}` stands for its path, its exit code, and pieces of its output.
#[derive(Deserialize)]
struct Expected {
    command: Vec<String>,
    exit: i32,
    says: Vec<String>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance")
}

fn read<T: for<'d> Deserialize<'d>>(file: &Path) -> T {
    let json = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_slice(&json).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

#[track_caller]
fn assert_said(terminal: &Terminal, dump: &Path, expected: &Expected) {
    let path = dump.to_str().expect("a path");
    let arguments: Vec<String> = expected.command.iter().map(|word| word.replace("{dump}", path)).collect();
    let finished = terminal.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let message = finished.stderr.clone();
    let said = finished.stdout + &message;
    assert_eq!(finished.code, expected.exit, "{path}: {said}");
    for piece in &expected.says {
        assert!(said.contains(piece), "{path}: '{piece}' is not in: {said}");
    }
    assert!(!expected.says.is_empty(), "{path}: nothing is expected");
    if expected.exit == 2 {
        assert!(
            message.starts_with("error: ") && message.lines().count() == 1,
            "{path}: one message: {message}"
        );
    }
}

#[test]
fn right_dumps_pass() {
    let terminal = Terminal::new();
    let all: BTreeMap<String, Expected> = read(&folder().join("right/expected.json"));
    let listed = fs::read_dir(folder().join("right")).expect("it is there").count();
    assert_eq!(all.len() + 1, listed, "each dump is expected something of");
    for (name, expected) in &all {
        assert_said(&terminal, &folder().join("right").join(name), expected);
    }
}

#[test]
fn wrong_dumps_are_refused_or_fail_and_why_is_said() {
    let terminal = Terminal::new();
    let mut wrong = 0;
    for entry in fs::read_dir(folder().join("wrong")).expect("it is there") {
        let place = entry.expect("it is listed").path();
        let file = place.join("dump.safetensors");
        let dump = if file.exists() { file } else { place.join("dump") };
        assert_said(&terminal, &dump, &read(&place.join("expected.json")));
        wrong += 1;
    }
    assert!(wrong > 50, "only {wrong} are there");
}

/// What `check.sh` says of a folder of dumps: whether all of them are right, and its lines.
fn checked(dumps: &Path) -> (bool, String) {
    let mut command = Command::new("bash");
    command.arg(folder().join("check.sh")).arg(dumps).env("XCHECK", env!("CARGO_BIN_EXE_xcheck"));
    let output = command.output().expect("bash is there");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn the_script_for_writers_takes_every_right_dump() {
    let (is_right, said) = checked(&folder().join("right"));
    let all: BTreeMap<String, Expected> = read(&folder().join("right/expected.json"));
    assert!(is_right, "{said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("ok ")).count(), 2 * all.len(), "{said}");
}

/// A copy of the folder of `.npy` files, as a writer may have made it.
fn plain_copy(terminal: &Terminal) -> PathBuf {
    let copy = terminal.path().join("made/plain");
    for (name, bytes) in files(&folder().join("right/plain")) {
        let file = copy.join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("it is made");
        fs::write(file, bytes).expect("it is written");
    }
    copy
}

#[track_caller]
fn assert_values_are_wrong(terminal: &Terminal) {
    let (is_right, said) = checked(&terminal.path().join("made"));
    assert!(!is_right && said.contains("ok     plain: every stage"), "rounding explains it: {said}");
    assert!(said.contains("WRONG  plain: the values"), "{said}");
}

#[test]
fn the_script_for_writers_sees_a_bit_in_every_array_but_one() {
    let terminal = Terminal::new();
    let layer = plain_copy(&terminal).join("p0/l00");
    for entry in fs::read_dir(layer).expect("it is there") {
        let file = entry.expect("it is listed").path();
        let mut bytes = fs::read(&file).expect("an array");
        let lowest = bytes.len() - 4;
        bytes[lowest] ^= 1;
        fs::write(file, bytes).expect("it is written");
    }
    assert_values_are_wrong(&terminal);
}

#[test]
fn the_script_for_writers_sees_a_tap_that_was_left_out() {
    let terminal = Terminal::new();
    let file = plain_copy(&terminal).join("manifest.json");
    let mut manifest: Value = read(&file);
    let rows = manifest["tensors"].as_array_mut().expect("rows");
    rows.retain(|row| row["tap"] != "attn_context");
    fs::write(file, manifest.to_string()).expect("it is written");
    assert_values_are_wrong(&terminal);
}

/// The script needs nothing but a Python of 3.10 or later; where that is not there, this is skipped and says so.
#[test]
fn the_script_makes_the_same_bytes_again() {
    let terminal = Terminal::new();
    let script = folder().with_file_name("reference-scripts").join("make/make_conformance.py");
    let is_recent = "import sys; sys.exit(sys.version_info < (3, 10))";
    let status = Command::new("python3").args(["-c", is_recent]).status();
    if !status.is_ok_and(|status| status.success()) {
        skip("no python3 of 3.10 or newer");
        return;
    }
    let mut command = Command::new("python3");
    let output = command.arg("-B").arg(script).arg("--out").arg(terminal.path()).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for part in ["right", "wrong"] {
        let (kept, made) = (files(&folder().join(part)), files(&terminal.path().join(part)));
        assert_eq!(kept.keys().collect::<Vec<_>>(), made.keys().collect::<Vec<_>>());
        for (name, bytes) in kept {
            assert!(made[&name] == bytes, "{part}/{} is not what the script makes", name.display());
        }
    }
}

/// Every file below a folder, with its bytes.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("it is there") {
            let path = entry.expect("it is listed").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).expect("it is below").to_owned();
                found.insert(name, fs::read(&path).expect("it is there"));
            }
        }
    }
    found
}
