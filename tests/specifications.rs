//! The page of requirements: every row has a status and its evidence, and what it names exists.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use xcheck::check::Tolerances;
use xcheck::checkpoint::Checkpoint;

use crate::common::terminal::Terminal;

const PAGE: &str = include_str!("../docs/reference/specifications.md");
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Requirement, status, evidence.
fn rows() -> Vec<[&'static str; 3]> {
    let cells = PAGE.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
        let [_, requirement, status, evidence] = cells[..] else { return None };
        ["met", "deviation", "elsewhere"].contains(&status).then_some([requirement, status, evidence])
    });
    cells.collect()
}

/// The tests that a cell names.
fn named(evidence: &str) -> impl Iterator<Item = &str> {
    evidence.split('`').skip(1).step_by(2).filter(|word| word.contains("::"))
}

/// Returns true if the file has a function of that name.
fn is_in(function: &str, file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.contains(&format!("fn {function}(")))
}

fn exists(test: &str) -> bool {
    let (module, function) = test.rsplit_once("::").expect("a module and a function");
    if module == "engine" {
        let mut folders = vec![Path::new(ROOT).join("engine/tests")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder").flatten() {
                match entry.path() {
                    path if path.is_dir() => folders.push(path),
                    path if is_in(function, &path) => return true,
                    _ => {}
                }
            }
        }
        return false;
    }
    let path: PathBuf = Path::new(ROOT).join("tests").join(module.replace("::", "/"));
    [path.with_extension("rs"), path.join("mod.rs")].iter().any(|file| is_in(function, file))
}

#[test]
fn every_requirement_has_a_status_and_its_evidence_exists() {
    let rows = rows();
    assert_eq!(rows.len(), 160, "requirements of the five specifications and the card");
    for [requirement, status, evidence] in &rows {
        let tests: Vec<&str> = named(evidence).collect();
        assert!(!tests.is_empty(), "{requirement}: no test");
        tests.iter().for_each(|test| assert!(exists(test), "{requirement}: there is no test {test}"));
        let listed: usize = tests.iter().map(|test| test.len() + "``, ".len()).sum();
        let has_reason = evidence.len() > listed + 20;
        assert_eq!(
            has_reason,
            *status != "met",
            "{requirement}: a reason belongs to what is not met as specified"
        );
    }
    for status in ["met", "deviation", "elsewhere"] {
        let count = rows.iter().filter(|row| row[1] == status).count();
        assert!(PAGE.contains(&format!("| {status} | {count} |")), "there are {count} rows of {status}");
    }
}

#[test]
fn a_test_that_does_not_exist_is_seen() {
    assert!(exists("specifications::a_test_that_does_not_exist_is_seen"));
    assert!(
        !exists("specifications::a_test_of_another_name") && !exists("nowhere::x") && !exists("engine::x")
    );
}

#[test]
fn the_acceptance_script_checks_what_the_specifications_ask_of_their_models() {
    let script = Path::new(ROOT).join("reference-scripts/check/acceptance.sh");
    let text = fs::read_to_string(&script).expect("it is there");
    let is_code = |line: &&str| !line.trim_start().starts_with('#');
    let code = text.lines().filter(is_code).collect::<Vec<_>>().join("\n");
    let checks = [
        "--checkpoint all",
        "--from-reference --layer 0 --gate tolerance",
        "--case llama2-hello",
        "--case gpt2-medium-answer-to-life",
        "rate >= 5",
        "exit \"$worst\"",
    ];
    for check in checks {
        assert!(code.contains(check), "{check}");
    }
    let listed = Terminal::new().run(&["models"]).stdout;
    for model in [
        "llama2-7b",
        "llama3.2-1b-instruct",
        "qwen3-1.7b",
        "gemma3-1b",
        "gpt2-medium",
        "bitnet-2b",
        "stories15M",
    ] {
        assert!(text.contains(model) && listed.contains(model), "{model}");
    }
    let parsed = Command::new("bash").arg("-n").arg(&script).status();
    assert!(parsed.is_ok_and(|status| status.success()), "it is a script that bash can read");
}

#[test]
fn bitnet_has_the_specified_cosine() {
    let tolerances = Tolerances::shipped();
    for precision in ["i2_s", "torch-bf16", "torch-f16"] {
        for checkpoint in [Checkpoint::Logits, Checkpoint::LastLogits] {
            let tolerance = tolerances.get("bitnet", precision, checkpoint);
            assert_eq!(tolerance.min_cosine, Some(0.99), "{precision}");
            assert!(tolerance.source.contains("BitNet specification"), "{}", tolerance.source);
        }
    }
    let run = ["run", "--model", "tiny-bitnet", "--gate", "tolerance"];
    assert_eq!(Terminal::new().run(&run).code, 0);
}

#[test]
fn the_top_level_is_as_given() {
    for name in ["Cargo.toml", "src", "checkpoints", "reference-scripts", "tests", "reports"] {
        assert!(Path::new(ROOT).join(name).exists(), "{name}");
    }
}
