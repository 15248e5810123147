//! NVFP4 files of llama.cpp's converter, with a scale for each matrix: the values are llama.cpp's, and wrong scales are named.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use xcheck::format::{FileBytes, Gguf};

use crate::common::terminal::Terminal;

const MODELS: [&str; 2] = ["llama", "qwen3moe"];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/nvfp4-gguf").join(name)
}

fn judged(model: &Path, name: &str, more: &[&str]) -> (i32, Value) {
    let (model, dump) =
        (model.display().to_string(), data(&format!("{name}.safetensors")).display().to_string());
    let words = ["check", "--candidate", &dump, "--model", &model, "--no-report"];
    let (code, report) = Terminal::new().json(&[&words, more].concat());
    (code, report["references"][0].clone())
}

fn assert_same_bits<'v>(rows: impl Iterator<Item = &'v Value>) {
    let mut compared = 0;
    for row in rows {
        let errors = ["local", "accumulated"].map(|kind| &row[kind]["max_abs"]);
        for error in errors.into_iter().filter(|error| !error.is_null()) {
            assert_eq!(*error, 0.0, "{row:#}");
            compared += 1;
        }
    }
    assert!(compared >= 3);
}

#[test]
fn every_value_has_the_bits_of_llama_cpp() {
    for name in MODELS {
        let (code, report) = judged(&data(&format!("{name}.gguf")), name, &[]);
        assert_eq!(code, 0, "{name}: {report:#}");
        assert_same_bits(report["results"].as_array().expect("rows").iter());
    }
}

/// A copy of a file with another scale for a matrix.
fn with_scale(name: &str, tensor: &str, change: fn(f32) -> f32) -> (TempDir, PathBuf) {
    let path = data(&format!("{name}.gguf"));
    let file = FileBytes::open(&path).expect("it is there");
    let gguf = Gguf::read(&file).expect("it is sound");
    let stored = gguf.tensors.get(tensor).expect("a scale").data.to_vec();
    let mut bytes = fs::read(&path).expect("it is there");
    let places: Vec<usize> = bytes
        .windows(stored.len())
        .enumerate()
        .filter(|(_, part)| *part == stored)
        .map(|(at, _)| at)
        .collect();
    let &[at] = places.as_slice() else { panic!("{tensor} is {} times in the file", places.len()) };
    for number in bytes[at..at + stored.len()].as_chunks_mut::<4>().0 {
        *number = change(f32::from_le_bytes(*number)).to_le_bytes();
    }
    let place = TempDir::new().expect("a folder");
    let copy = place.path().join("model.gguf");
    fs::write(&copy, bytes).expect("it is written");
    (place, copy)
}

#[test]
fn scales_that_are_dropped_or_inverted_are_named() {
    type Fault = (&'static str, &'static str, &'static str, fn(f32) -> f32);
    let faults: [Fault; 3] = [
        ("llama", "blk.0.attn_q.scale", "q", |_| 1.0),
        ("llama", "blk.0.ffn_down.scale", "ffn_out", |scale| 1.0 / scale),
        ("qwen3moe", "blk.0.ffn_up_exps.scale", "expert_up", |_| 1.0),
    ];
    for (name, tensor, tap, change) in faults {
        let (_place, wrong) = with_scale(name, tensor, change);
        let (code, report) = judged(&wrong, name, &[]);
        assert_eq!(code, 1, "{name}, {tensor}: {report:#}");
        assert_eq!(report["first_divergence"]["tap"], tap, "{name}, {tensor}: {report:#}");
        // No cause reads a factor of an expert's product.
        if name == "llama" {
            let findings = report["findings"].to_string();
            assert!(findings.contains("weight_scale"), "{name}, {tensor}: {findings}");
        }
    }
}

#[test]
fn scales_that_are_no_numbers_are_refused_with_their_name() {
    let (_place, wrong) = with_scale("llama", "blk.0.attn_v.scale", |_| f32::NAN);
    let dump = data("llama.safetensors").display().to_string();
    let words = ["check", "--candidate", &dump, "--model", &wrong.display().to_string(), "--no-report"];
    let done = Terminal::new().run(&words);
    assert_eq!(done.code, 2, "{}", done.stdout);
    assert!(done.stderr.contains("blk.0.attn_v.scale"), "{}", done.stderr);
}

/// llama.cpp 0.5.0-dev does not read the scales of Qwen 2's feed-forward block.
#[test]
fn a_real_run_without_the_scales_of_the_feed_forward_block_fails_there() {
    let (code, report) = judged(&data("qwen2.gguf"), "qwen2", &[]);
    assert_eq!(code, 1, "{report:#}");
    assert_eq!(report["first_divergence"]["tap"], "ffn_gate", "{report:#}");
    assert!(report["findings"].to_string().contains("weight_scale"), "{report:#}");
    // The scales of queries, keys and values multiply the products before the biases are added.
    let rows = report["results"].as_array().expect("rows").iter();
    assert_same_bits(rows.filter(|row| ["q", "k", "v"].contains(&row["tap"].as_str().unwrap_or(""))));
}
