//! Which cells there are, and what becomes of them.

use std::path::Path;

use serde_json::json;
use xcheck::matrix::MatrixPlan;

use super::bed::{Bed, each, engine};
use crate::common::terminal::Terminal;

#[test]
fn cells_are_the_product_of_the_axes_in_their_order() {
    let bed = Bed::new();
    let text = r#"
        command = ["check", "--model", "tiny-llama2", "--candidate", "right.safetensors", "--checkpoint", "{z}", "--layer", "{a}"]
        exclude = [{ z = 1, a = "1" }]
        [axes]
        z = ["2", 1]
        a = ["1", "0"]
    "#;
    let (finished, matrix) = bed.matrix(text, &[]);
    assert_eq!(finished.code, 0, "{}{}", finished.stdout, finished.stderr);
    assert_eq!(each(&matrix, "name"), ["2+1", "2+0", "1+0"]);
    assert_eq!(matrix["cells"][1]["values"], json!({"z": "2", "a": "0"}));
    assert_eq!((&matrix["rows"], &matrix["columns"]), (&json!(["z"]), &json!(["a"])));
    assert_eq!(each(&matrix, "standing"), ["pass"; 3]);
    assert!(finished.stderr.contains("3/3 1, 0: pass"), "{}", finished.stderr);
}

#[test]
fn include_leaves_what_fits_and_exclude_what_does_not() {
    let bed = Bed::new();
    let text = r#"
        command = ["check", "--model", "tiny-llama2", "--candidate", "right.safetensors", "--checkpoint", "{c}", "--layer", "{l}"]
        include = [{ c = ["1", "2"] }, { c = "3", l = "0" }]
        exclude = [{ c = "2", l = ["1", "2"] }]
        [axes]
        c = ["1", "2", "3", "4"]
        l = ["0", "1", "2"]
    "#;
    let (_, matrix) = bed.matrix(text, &["--jobs", "2"]);
    assert_eq!(each(&matrix, "name"), ["1+0", "1+1", "1+2", "2+0", "3+0"]);
}

/// The file that is shown to readers, as it is.
#[test]
fn the_example_of_what_ships_passes() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/matrix.toml");
    let terminal = Terminal::new();
    let finished = terminal.run(&["matrix", &file.to_string_lossy(), "--jobs", "2"]);
    assert_eq!(finished.code, 0, "{}{}", finished.stdout, finished.stderr);
    let folder = terminal.path().join("reports/matrix-matrix");
    for name in ["matrix.json", "matrix.md", "matrix.html", "cells/tiny-llama2+llama.cpp-q8_0/report.html"] {
        assert!(folder.join(name).is_file(), "{name}");
    }
    assert!(
        finished.stdout.contains("             transformers-f32  llama.cpp-q8_0\n"),
        "{}",
        finished.stdout
    );
    assert!(finished.stdout.ends_with("report: reports/matrix-matrix/matrix.html\n"), "{}", finished.stdout);
}

/// Every dump of another engine is a cell of the other example, and nothing else is.
#[test]
fn the_example_of_engines_has_every_dump() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let plan = MatrixPlan::read(&root.join("examples/matrix-engines.toml")).expect("it is sound");
    let commands = plan.cells.iter().map(|cell| cell.command(""));
    let mut named: Vec<_> = commands.map(|words| root.join(words.last().expect("a dump"))).collect();
    let folders = std::fs::read_dir(root.join("tests/data/engines")).expect("it is there").flatten();
    let files = folders.filter(|entry| entry.path().is_dir()).flat_map(|entry| {
        let files = std::fs::read_dir(entry.path()).expect("it is there").flatten();
        files.map(|file| file.path()).collect::<Vec<_>>()
    });
    let mut there: Vec<_> = files.collect();
    named.sort();
    there.sort();
    assert_eq!(named, there);
}

/// A dump that is wrong, and one that is right, by what is expected of both.
fn expecting(expect: &str) -> (i32, serde_json::Value) {
    let bed = Bed::new();
    std::fs::copy(engine("tiny-llama3/mlx-lm-f32"), bed.path("wrong.safetensors")).expect("it is copied");
    std::fs::copy(engine("tiny-llama3/mlx-lm-f32-older-keys"), bed.path("right.safetensors"))
        .expect("copied");
    let text = format!(
        r#"
        command = ["check", "--model", "tiny-llama3", "--candidate", "{{dump}}.safetensors", "--layer", "0"]
        {expect}
        [axes]
        dump = ["right", "wrong"]
        "#
    );
    let (finished, matrix) = bed.matrix(&text, &[]);
    (finished.code, matrix)
}

#[test]
fn a_failure_that_is_known_is_none() {
    let (code, matrix) = expecting("");
    assert_eq!((code, each(&matrix, "standing")), (1, vec![&json!("pass"), &json!("fail")]));
    assert_eq!(matrix["verdict"], "fail");
    let first = &matrix["cells"][1]["first_divergence"];
    assert_eq!((&first["tap"], &first["layer"]), (&json!("q_rope"), &json!(0)));
    assert!(matrix["cells"][1]["because"].as_str().is_some_and(|because| because.contains("rope_theta")));
    assert!(matrix["cells"][1]["bound_ratio"].as_f64().is_some_and(|bound_ratio| bound_ratio > 1e3));

    let known =
        r#"expect = [{ where = { dump = "wrong" }, verdict = "fail", tap = "q_rope", reason = "not read" }]"#;
    let (code, matrix) = expecting(known);
    assert_eq!((code, each(&matrix, "standing")), (0, vec![&json!("pass"), &json!("known")]));
    assert_eq!((&matrix["verdict"], &matrix["cells"][1]["told"]), (&json!("pass"), &json!("not read")));
}

#[test]
fn what_is_known_and_comes_otherwise_is_told() {
    let elsewhere =
        r#"expect = [{ where = { dump = "wrong" }, verdict = "fail", tap = "embed", reason = "old" }]"#;
    let (code, matrix) = expecting(elsewhere);
    assert_eq!((code, &matrix["cells"][1]["standing"]), (1, &json!("fail")));
    let told = matrix["cells"][1]["told"].as_str().expect("a sentence");
    assert!(told.contains("expected instead: fail at embed (old)"), "{told}");

    let passes = r#"expect = [{ where = { dump = "right" }, verdict = "fail", reason = "long ago" }]"#;
    let (code, matrix) = expecting(passes);
    assert_eq!((code, &matrix["cells"][0]["standing"]), (1, &json!("unexpected pass")));
    assert!(matrix["cells"][0]["told"].as_str().is_some_and(|told| told.contains("remove the expectation")));
}

/// An expectation is of every reference that fails: another place in the second is not known by that of the first.
#[test]
fn a_reference_that_fails_elsewhere_is_not_known() {
    let bed = Bed::new();
    std::fs::copy(engine("tiny-llama3/mlx-lm-f32"), bed.path("wrong.safetensors")).expect("it is copied");
    std::fs::copy(engine("tiny-llama3/candle-f32"), bed.path("elsewhere.safetensors")).expect("it is copied");
    let text = r#"
        command = ["check", "--model", "tiny-llama3", "--candidate", "wrong.safetensors", "--candidate", "{dump}.safetensors"]
        expect = [{ where = { dump = "elsewhere" }, verdict = "fail", tap = "q_rope", reason = "not read" }]
        [axes]
        dump = ["elsewhere"]
        "#;
    let (finished, matrix) = bed.matrix(text, &[]);
    assert_eq!((finished.code, each(&matrix, "standing")), (1, vec![&json!("fail")]), "{}", finished.stdout);
}

#[test]
fn an_error_is_a_cell_and_the_others_go_on() {
    let bed = Bed::new();
    let text = format!("{}\n[axes]\ndump = [\"gone.safetensors\", \"right.safetensors\"]", super::bed::CHECK);
    let (finished, matrix) = bed.matrix(&text, &[]);
    assert_eq!((finished.code, each(&matrix, "standing")), (2, vec![&json!("error"), &json!("pass")]));
    assert_eq!(matrix["verdict"], "error");
    let error = matrix["cells"][0]["error"].as_str().expect("a message");
    assert!(error.contains("no dump 'gone.safetensors'"), "{error}");
    let last = finished.stderr.lines().last().unwrap_or_default();
    assert_eq!(last, "error: 1 of 2 cells have no verdict, the first gone.safetensors");
    // An error is worth another try.
    let (_, again) = bed.matrix(&text, &[]);
    assert_eq!(super::bed::run(&again), ["gone.safetensors"]);
}

#[test]
fn json_is_printed_where_it_is_asked_for() {
    let bed = Bed::new();
    let text = format!("{}\n[axes]\ndump = [\"right.safetensors\"]", super::bed::CHECK);
    let (finished, matrix) = bed.matrix(&text, &["--format", "json"]);
    let printed: serde_json::Value = serde_json::from_str(&finished.stdout).expect("it is JSON");
    assert_eq!(printed, matrix);
    assert_eq!((&matrix["schema"], &matrix["version"]), (&json!("xcheck-matrix"), &json!(2)));

    let text = format!("{}\n[axes]\ndump = [\"gone.safetensors\"]", super::bed::CHECK);
    let (finished, matrix) = bed.matrix(&text, &["--format", "json"]);
    let printed: serde_json::Value =
        serde_json::from_str(&finished.stdout).expect("one document, whatever a cell came to");
    assert_eq!((printed, finished.code), (matrix, 2));
    assert!(finished.stderr.contains("error: 1 of 1 cells have no verdict"), "{}", finished.stderr);
}

#[test]
fn a_wide_matrix_is_told_cell_by_cell_and_no_line_is_wider_than_80_columns() {
    let bed = Bed::new();
    let checkpoints: Vec<String> = (1..=8).map(|number| format!("\"{number}\"")).collect();
    let text = format!(
        "command = [\"check\", \"--model\", \"tiny-llama2\", \"--candidate\", \"{{dump}}\", \"--checkpoint\", \"{{c}}\"]\n\
         [axes]\ndump = [\"right.safetensors\"]\nc = [{}]",
        checkpoints.join(", ")
    );
    let (finished, _) = bed.matrix(&text, &[]);
    assert!(finished.stdout.starts_with("dump               c"), "{}", finished.stdout);
    for line in finished.stdout.lines().filter(|line| !line.contains("report")) {
        assert!(textwrap::core::display_width(line) <= 80, "{line}");
    }
}
