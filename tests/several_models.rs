//! `run` and `check` of several models, and the table of architectures in which they end.

use serde_json::Value;

use crate::common::terminal::Terminal;

const DUMPS: [&str; 3] =
    ["tiny-llama2/transformers-f32", "tiny-llama3/transformers-f32", "tiny-gpt2/transformers-f32"];

/// The checkpoints of an architecture, by name.
fn row<'v>(report: &'v Value, architecture: &str, checkpoint: &str) -> &'v Value {
    let find = |list: &'v Value, key: &str, name: &str| {
        list.as_array().expect("a list").iter().find(|row| row[key] == name).expect("it is there")
    };
    let summary = find(&report["architectures"], "architecture", architecture);
    find(&summary["checkpoints"], "checkpoint", checkpoint)
}

#[test]
fn every_figure_of_an_architecture_is_the_worst_of_its_dumps() {
    let terminal = Terminal::new();
    let (code, report) = terminal.json(
        &[
            &["check", "--model", "tiny-llama2, tiny-llama3,tiny-gpt2"][..],
            &DUMPS.map(|dump| ["--candidate", dump]).concat(),
        ]
        .concat(),
    );
    assert_eq!((code, report["verdict"].as_str()), (0, Some("pass")), "{:#}", report["verdict"]);
    let names: Vec<_> =
        report["references"].as_array().expect("a list").iter().map(|one| &one["name"]).collect();
    assert_eq!(names, DUMPS);
    let of_dump = |at: usize, figure: &str| {
        let rows = report["references"][at]["checkpoints"].as_array().expect("a list");
        let ffn = rows.iter().find(|row| row["checkpoint"] == "ffn_out").expect("it is compared");
        ffn["local"][figure].as_f64().expect("a number")
    };
    let llama = &row(&report, "llama", "ffn_out")["local"];
    for figure in ["max_abs", "mean_abs"] {
        assert_eq!(llama[figure].as_f64(), Some(of_dump(0, figure).max(of_dump(1, figure))), "{figure}");
    }
    assert_eq!(llama["cosine"].as_f64(), Some(of_dump(0, "cosine").min(of_dump(1, "cosine"))));
    let gpt2 = &row(&report, "gpt2", "ffn_out")["local"];
    assert_eq!(gpt2["max_abs"].as_f64(), Some(of_dump(2, "max_abs")));
    assert_eq!(report["architectures"][0]["models"], serde_json::json!(["tiny-llama2", "tiny-llama3"]));
}

#[test]
fn a_fault_in_one_model_fails_its_architecture_alone() {
    let wrong = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/engines/tiny-llama3/mlx-lm-f32.safetensors");
    let check = ["check", "--model", "tiny-llama3,tiny-gpt2", "--candidate", wrong, "--candidate", DUMPS[2]];
    let (code, report) = Terminal::new().json(&check);
    assert_eq!(code, 1);
    assert_eq!(row(&report, "llama", "rope")["verdict"], "fail");
    assert_eq!(row(&report, "gpt2", "qkv")["verdict"], "pass");
    let table = Terminal::new().run(&check).stdout;
    let llama = table.split("architecture llama").nth(1).expect("a table of it");
    let rope = llama.lines().find(|line| line.contains(" rope ")).expect("a row of it");
    assert!(rope.contains("k_rope L0 p0") && rope.contains("0.558") && rope.ends_with("FAIL"), "{rope}");
}

#[test]
fn all_is_every_model_that_ships() {
    let (code, report) = Terminal::new().json(&["run", "--model", "all", "--checkpoint", "logits"]);
    let architectures = report["architectures"].as_array().expect("a list");
    let names: Vec<_> =
        architectures.iter().map(|row| row["architecture"].as_str().expect("a name")).collect();
    assert_eq!(code, 0, "{:#}", report["verdict"]);
    assert_eq!(names, ["llama", "qwen3", "gemma3", "gpt2", "bitnet"]);
    let dumps: u64 = architectures.iter().map(|row| row["dumps"].as_u64().expect("a count")).sum();
    assert_eq!(Some(dumps as usize), report["references"].as_array().map(Vec::len));
}

#[test]
fn what_belongs_to_no_model_of_the_list_is_refused() {
    let terminal = Terminal::new();
    let two = ["check", "--model", "tiny-llama2,tiny-gpt2", "--candidate", DUMPS[1]];
    terminal.assert_refused(&two, "'tiny-llama3', expected one of tiny-llama2, tiny-gpt2");
    terminal.assert_refused(&["run", "--model", "tiny-gpt2,tiny-gpt2"], "lists 'tiny-gpt2' twice");
    let named = ["run", "--model", "tiny-llama2,tiny-gpt2", "--reference", "transformers-f32"];
    terminal.assert_refused(&named, "--reference needs a single model");
    // A model that nothing is compared with must not hide behind another that passes.
    let copy = terminal.path().join("mine.gguf");
    std::fs::copy(
        concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama2/tiny-llama2-q8_0.gguf"),
        copy,
    )
    .expect("copied");
    terminal.assert_refused(&["run", "--model", "tiny-gpt2,mine.gguf"], "no reference for mine");
}

#[test]
fn a_detailed_table_has_accumulated_errors_and_tolerances() {
    let run = ["run", "--model", "tiny-llama2", "--reference", "transformers-f32"];
    let (brief, detailed) =
        (Terminal::new().run(&run), Terminal::new().run(&[&run[..], &["--verbose"]].concat()));
    let header =
        |text: &str| text.lines().find(|line| line.contains("checkpoint")).expect("a header").to_owned();
    let [brief, detailed] = [brief, detailed].map(|finished| header(&finished.stdout));
    let words: Vec<&str> = brief.split_whitespace().collect();
    assert_eq!(words.join(" "), "checkpoint worst site max abs mean abs cosine err/bound over verdict");
    assert!(detailed.contains("accumulated") && detailed.contains("spec tol"), "{detailed}");
    assert!(brief.len() <= 80 && detailed.len() <= 100, "{} {}", brief.len(), detailed.len());
}
