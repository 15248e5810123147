//! What is run again, and what is not.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::bed::{Bed, CHECK, damage, each, run};

const BOTH: [&str; 2] = ["right.safetensors", "other.safetensors"];

fn both() -> String {
    format!("{CHECK}\n[axes]\ndump = [\"right.safetensors\", \"other.safetensors\"]")
}

/// Which file it is, and since when: another after it was written again.
fn identity(path: &Path) -> (u64, i64, i64) {
    let metadata = fs::metadata(path).expect("it is there");
    (metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

#[test]
fn what_is_known_is_not_run_again() {
    let bed = Bed::new();
    let (first, matrix) = bed.matrix(&both(), &[]);
    assert_eq!(run(&matrix), BOTH, "{}", first.stderr);
    let report = bed.path("out/cells/right.safetensors/report.json");
    let before = identity(&report);
    let (finished, again) = bed.matrix(&both(), &[]);
    assert_eq!((finished.code, run(&again), identity(&report)), (0, vec![], before));
    assert_eq!(each(&again, "verdict"), each(&matrix, "verdict"));
    assert_eq!(each(&again, "key"), each(&matrix, "key"));
    assert!(finished.stderr.contains("right.safetensors: pass, cached"), "{}", finished.stderr);
    let (_, fresh) = bed.matrix(&both(), &["--fresh"]);
    assert_eq!(run(&fresh), BOTH);
    assert_ne!(identity(&report), before);
}

#[test]
fn a_changed_byte_of_a_dump_runs_its_cell_and_no_other() {
    let bed = Bed::new();
    bed.matrix(&both(), &[]);
    damage(&bed.path("other.safetensors"));
    let (_, matrix) = bed.matrix(&both(), &[]);
    assert_eq!(run(&matrix), ["other.safetensors"]);
    // The same content under another time is the same.
    let bytes = fs::read(bed.path("right.safetensors")).expect("it is there");
    fs::remove_file(bed.path("right.safetensors")).expect("it is removed");
    fs::write(bed.path("right.safetensors"), bytes).expect("it is written");
    let (_, matrix) = bed.matrix(&both(), &[]);
    assert!(run(&matrix).is_empty());
}

#[test]
fn another_word_of_the_command_runs_it_again() {
    let bed = Bed::new();
    bed.matrix(&both(), &[]);
    let (_, matrix) = bed.matrix(&both().replace("\"1-2\"", "\"1-3\""), &[]);
    assert_eq!(run(&matrix), BOTH);
}

#[test]
fn another_environment_runs_it_again() {
    let bed = Bed::new();
    bed.matrix(&both(), &[]);
    let (_, matrix) = bed.matrix_with(&both(), &[], &[("BITNET_STRICT_MODE", "1")]);
    assert_eq!(run(&matrix), BOTH);
    let (_, matrix) = bed.matrix_with(&both(), &[], &[("BITNET_STRICT_MODE", "1")]);
    assert!(run(&matrix).is_empty());
}

#[test]
fn a_report_that_was_touched_or_lost_is_not_believed() {
    let bed = Bed::new();
    bed.matrix(&both(), &[]);
    let report = bed.path("out/cells/right.safetensors/report.json");
    let text = fs::read_to_string(&report).expect("it is there");
    fs::write(&report, text.replace("\"verdict\": \"pass\"", "\"verdict\": \"fail\""))
        .expect("it is written");
    fs::remove_file(bed.path("out/cells/other.safetensors/report.json")).expect("it is removed");
    let (finished, matrix) = bed.matrix(&both(), &[]);
    assert_eq!((finished.code, run(&matrix)), (0, BOTH.to_vec()));
}

#[test]
fn what_stands_beside_a_model_and_what_is_read_besides_counts() {
    let bed = Bed::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints/tiny-llama2");
    fs::copy(folder.join("tiny-llama2-f32.gguf"), bed.path("model.gguf")).expect("it is copied");
    bed.write("more/note.txt", "");
    let text = r#"
        command = ["check", "--model", "model.gguf", "--candidate", "{dump}", "--layer", "0", "--checkpoint", "1"]
        reads = ["more"]
        axes.dump = ["right.safetensors"]
    "#;
    let (_, matrix) = bed.matrix(text, &[]);
    assert_eq!(run(&matrix).len(), 1);
    assert!(run(&bed.matrix(text, &[]).1).is_empty());
    for name in ["tokenizer.json", "more/deep/file"] {
        bed.write(name, "{}");
        assert_eq!(run(&bed.matrix(text, &[]).1).len(), 1, "{name}");
        assert!(run(&bed.matrix(text, &[]).1).is_empty(), "{name}");
    }
}

/// A reference that is found, not named, is an input, too.
#[test]
fn a_dump_that_appears_where_references_are_found_runs_it_again() {
    let bed = Bed::new();
    let text = r#"
        command = ["run", "--model", "tiny-llama2", "--layer", "0", "--checkpoint", "{c}"]
        axes.c = ["1"]
    "#;
    bed.matrix(text, &[]);
    assert!(run(&bed.matrix(text, &[]).1).is_empty());
    fs::create_dir_all(bed.path("dumps/tiny-llama2")).expect("it is made");
    fs::copy(bed.path("right.safetensors"), bed.path("dumps/tiny-llama2/mine.safetensors")).expect("copied");
    assert_eq!(run(&bed.matrix(text, &[]).1), ["1"]);
}

/// Killed on the way: what was finished is known, what was begun is begun anew.
#[test]
fn what_was_killed_goes_on() {
    let bed = Bed::new();
    let text = r#"
        command = ["check", "--model", "tiny-llama2", "--candidate", "{out}/dump.safetensors", "--layer", "0", "--checkpoint", "1"]
        make = "echo {which} >> made.txt; cp right.safetensors {out}/dump.safetensors; if test {which} = second; then while test -e wait; do sleep 0.05; done; fi"
        axes.which = ["first", "second", "third"]
    "#;
    bed.write("cells.toml", text);
    bed.write("wait", "");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_xcheck"));
    command.args(["matrix", "cells.toml", "--report", "out"]).current_dir(bed.0.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let made = || fs::read_to_string(bed.path("made.txt")).unwrap_or_default();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !made().contains("second") && Instant::now() < deadline {
        sleep(Duration::from_millis(20));
    }
    child.kill().expect("it runs");
    child.wait().expect("it has ended");
    assert!(!bed.path("out/matrix.json").exists());
    fs::remove_file(bed.path("wait")).expect("it is there"); // what the killed one has started ends, too
    let (finished, matrix) = bed.matrix(text, &[]);
    assert_eq!((finished.code, run(&matrix)), (0, vec!["second", "third"]), "{}", finished.stderr);
    assert_eq!(made(), "first\nsecond\nsecond\nthird\n");
}

/// Who ends the matrix ends what it has started.
#[test]
fn a_signal_ends_what_was_started() {
    let bed = Bed::new();
    let text = r#"
        command = ["check", "--model", "tiny-llama2", "--candidate", "{out}/{which}"]
        make = "touch begun; (sleep 3; touch {out}/alive alive) & sleep 3"
        axes.which = ["one"]
    "#;
    bed.write("cells.toml", text);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_xcheck"));
    command.args(["matrix", "cells.toml", "--report", "out"]).current_dir(bed.0.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !bed.path("begun").exists() && Instant::now() < deadline {
        sleep(Duration::from_millis(20));
    }
    let id = child.id().to_string();
    let sent = std::process::Command::new("kill").args(["-TERM", &id]).status().expect("there is kill");
    assert!(sent.success());
    assert!(!child.wait().expect("it has ended").success());
    sleep(Duration::from_secs(4));
    assert!(!bed.path("alive").exists());
}

#[test]
fn what_is_elsewhere_is_not_known() {
    let bed = Bed::new();
    let text = r#"
        command = ["check", "--model", "{model}", "--candidate", "right.safetensors"]
        axes.model = ["nobody/nothing", "http://127.0.0.1:9/model"]
    "#;
    let (finished, matrix) = bed.matrix(text, &[]);
    assert_eq!((finished.code, run(&matrix).len()), (2, 2));
    assert!(each(&matrix, "key").iter().all(|key| key.is_null()));
    let why = each(&matrix, "not_kept");
    assert_eq!(why[0], "the model nobody/nothing is not a local file");
    assert_eq!(why[1], "http://127.0.0.1:9/model is remote");
}
