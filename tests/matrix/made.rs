//! Dumps that are made first.

use std::fs;
use std::time::Instant;

use serde_json::Value;

use super::bed::{Bed, damage, run};

/// A copy of a dump, by a program that counts how often it was asked.
const COPIED: &str = r#"
    command = ["check", "--model", "tiny-llama2", "--candidate", "{out}/dump.safetensors", "--layer", "0", "--checkpoint", "1"]
    make = "sh make.sh {dump} {out}"
    axes.dump = ["right", "other"]
"#;
const MAKE: &str = "echo $1 >> made.txt\ncp $1.safetensors $2/dump.safetensors\n";

fn bed() -> Bed {
    let bed = Bed::new();
    bed.write("make.sh", MAKE);
    bed
}

fn standings(matrix: &Value) -> Vec<&str> {
    let cells = matrix["cells"].as_array().expect("a list").iter();
    cells.map(|cell| cell["standing"].as_str().expect("a word")).collect()
}

fn made(bed: &Bed) -> String {
    fs::read_to_string(bed.path("made.txt")).unwrap_or_default().replace('\n', " ")
}

#[test]
fn what_is_made_is_made_once_for_each_cell() {
    let bed = bed();
    let (finished, matrix) = bed.matrix(COPIED, &[]);
    assert_eq!((finished.code, standings(&matrix)), (0, vec!["pass"; 2]), "{}", finished.stdout);
    assert_eq!(made(&bed), "right other ");
    bed.matrix(COPIED, &[]);
    assert_eq!(made(&bed), "right other ");
    // Of a dump that was made the content counts, not how: its cell alone is run again.
    damage(&bed.path("out/made/other/dump.safetensors"));
    let (_, matrix) = bed.matrix(COPIED, &[]);
    assert_eq!((run(&matrix), made(&bed).as_str()), (vec!["other"], "right other "));
    // Another program makes all anew.
    bed.write("make.sh", &format!("{MAKE}# changed\n"));
    let (_, matrix) = bed.matrix(COPIED, &[]);
    assert_eq!((run(&matrix), made(&bed).as_str()), (vec!["other"], "right other right other "));
}

#[test]
fn what_was_made_and_removed_is_made_again() {
    let bed = bed();
    bed.matrix(COPIED, &[]);
    fs::remove_dir_all(bed.path("out/made/other")).expect("it is there");
    let (finished, matrix) = bed.matrix(COPIED, &[]);
    assert_eq!((finished.code, standings(&matrix)), (0, vec!["pass"; 2]), "{}", finished.stdout);
    assert_eq!(made(&bed), "right other other ");
}

#[test]
fn making_that_fails_is_told_with_its_words_and_the_others_go_on() {
    let bed = bed();
    bed.write(
        "make.sh",
        &format!("if test $1 = other; then echo first; echo 'no such engine' >&2; exit 7; fi\n{MAKE}"),
    );
    let (finished, matrix) = bed.matrix(COPIED, &[]);
    assert_eq!(finished.code, 2);
    let error = matrix["cells"][1]["error"].as_str().expect("a message");
    assert!(error.contains("make: the command ended with exit status: 7: first / no such engine"), "{error}");
    assert_eq!(matrix["cells"][0]["standing"], "pass");
    assert!(finished.stdout.contains("no such engine"), "{}", finished.stdout);
}

#[test]
fn a_crash_is_an_error_of_its_cell() {
    let bed = bed();
    bed.write("make.sh", &format!("if test $1 = right; then kill -SEGV $$; fi\n{MAKE}"));
    let words = r#"["sh", "make.sh", "{dump}", "{out}"]"#;
    let (finished, matrix) = bed.matrix(&COPIED.replace("\"sh make.sh {dump} {out}\"", words), &[]);
    assert_eq!(finished.code, 2);
    let error = matrix["cells"][0]["error"].as_str().expect("a message");
    assert!(error.contains("make: the command ended with signal: 11"), "{error}");
    assert_eq!(
        (&matrix["cells"][0]["report"].is_null(), &matrix["cells"][1]["standing"]),
        (&true, &"pass".into())
    );
}

#[test]
fn making_that_leaves_nothing_is_an_error() {
    let bed = bed();
    bed.write("make.sh", "true");
    let (finished, matrix) = bed.matrix(COPIED, &[]);
    assert_eq!(finished.code, 2);
    assert!(
        matrix["cells"][0]["error"].as_str().is_some_and(|error| error.contains("make wrote nothing to"))
    );
}

#[test]
fn making_ends_at_its_limit_with_all_that_it_has_started() {
    let bed = bed();
    bed.write("make.sh", "(sleep 4; touch alive) & sleep 600");
    let started = Instant::now();
    let (finished, matrix) = bed.matrix(&format!("limit = 1\n{COPIED}").replace(", \"other\"", ""), &[]);
    assert_eq!(finished.code, 2);
    let error = matrix["cells"][0]["error"].as_str().expect("a message");
    assert!(error.contains("make was stopped after 1 s, its time limit"), "{error}");
    std::thread::sleep(std::time::Duration::from_secs(6).saturating_sub(started.elapsed()));
    assert!(!bed.path("alive").exists());
}

#[test]
fn a_failure_leaves_no_earlier_report() {
    let bed = bed();
    bed.matrix(COPIED, &[]);
    bed.write("make.sh", "exit 1");
    let (finished, matrix) = bed.matrix(COPIED, &[]);
    assert_eq!((finished.code, &matrix["cells"][0]["report"].is_null()), (2, &true));
    assert!(!bed.path("out/cells/right/report.json").exists());
}

#[test]
fn values_are_words_of_their_own_in_a_shell() {
    let bed = Bed::new();
    let text = r#"
        command = ["check", "--model", "tiny-llama2", "--candidate", "{out}/it", "--layer", "0", "--checkpoint", "1"]
        make = "cp {dump} {out}/it"
        axes.dump = ["a b; touch hacked.safetensors"]
    "#;
    fs::copy(bed.path("right.safetensors"), bed.path("a b; touch hacked.safetensors")).expect("it is copied");
    let (finished, matrix) = bed.matrix(text, &[]);
    assert!(!bed.path("hacked.safetensors").exists());
    let error = matrix["cells"][0]["error"].as_str().unwrap_or_default();
    assert!(!error.contains("make"), "{error}{}", finished.stderr);
}
