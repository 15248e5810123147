//! Real dumps that were judged wrongly once (`tests/data/cases/README.md`), with the exit codes that are right.

use std::path::Path;

use xcheck::checkpoint::Point;

use super::clay::Clay;
use crate::common::share::one_of;
use crate::common::terminal::Terminal;

/// A dump, its model, and the exit codes that are right.
const CASES: [(&str, &str, &[i32]); 7] = [
    ("repeated-tokens/transformers-f32", "tiny-llama3", &[0]),
    ("logits/bf16-leaders-exchanged", "tiny-llama3", &[1]),
    ("quantised/openvino-q8_0", "tiny-qwen3-q8_0", &[0]),
    ("quantised/openvino-q8_0-wrong-eps", "tiny-qwen3-q8_0", &[1, 3]),
    ("gguf/node-llama-cpp-gemma3-f32", "tiny-gemma3-f32", &[0]),
    ("gguf/node-llama-cpp-llama3-f16", "tiny-llama3-f16", &[0]),
    ("gguf/node-llama-cpp-llama3-f32", "tiny-llama3-f32", &[0]),
];

fn check(name: &str, model: &str, more: &[&str]) -> (i32, String) {
    let file = format!("{}/tests/data/cases/{name}.safetensors", env!("CARGO_MANIFEST_DIR"));
    let words = ["check", "--model", model, "--candidate", &file, "--no-report", "--no-causes"];
    let (code, report) = Terminal::new().json(&[&words, more].concat());
    (code, report["references"][0]["reason"].to_string())
}

#[test]
fn real_dumps_are_judged_right() {
    for (name, model, right) in CASES {
        let (code, why) = check(name, model, &[]);
        assert!(right.contains(&code), "{name}: {code} {why}");
    }
}

/// What passes does so by its values: our engine with another RoPE makes others.
#[test]
fn what_passes_fails_against_another_rope() {
    for (name, model, _) in one_of(3, CASES.iter().filter(|(_, _, right)| *right == [0])) {
        let (code, why) = check(name, model, &["--suppose", "rope_theta=90000"]);
        assert!([1, 3].contains(&code), "{name}: {code} {why}");
    }
}

/// Equal rows count as one row of many values: a factor of all of them still exceeds rounding.
#[test]
fn a_factor_that_all_repeated_tokens_share_fails() {
    let file = format!(
        "{}/tests/data/cases/repeated-tokens/transformers-f32.safetensors",
        env!("CARGO_MANIFEST_DIR")
    );
    let terminal = Terminal::new();
    for (factor, wanted) in [(1.0, 0), (1.0 + 1e-6, 1)] {
        let dump = Clay::open(Path::new(&file)).without(&[Point::Logits]).edit_all(
            |site| site.point == Point::Q && site.layer == Some(0),
            |values| values.data.iter_mut().for_each(|value| *value = f64::from((*value * factor) as f32)),
        );
        let path = terminal.path().join("dump.safetensors");
        dump.save(&path);
        let path = path.display().to_string();
        let words = ["check", "--model", "tiny-llama3", "--candidate", &path, "--no-report", "--no-causes"];
        let (code, report) = terminal.json(&words);
        assert_eq!(code, wanted, "{factor}: {report:#}");
        // No single value is above its bound.
        let ratio = report["references"][0]["results"][1]["bound_ratio"].as_f64().expect("a number");
        assert!(report["references"][0]["results"][1]["tap"] == "q" && ratio < 1.0, "{report:#}");
    }
}
