//! Dumps of transformers on a GPU: TF32, bf16 and f16 on matrix units, with each attention kernel of torch
//! (tests/data/cuda/README.md). Each passes, and the same dump with a fault fails at the faulty tap.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::ArrayValues;

use crate::common::share::{one_of, pairs};
use crate::common::terminal::Terminal;
use crate::common::{architecture, reference_of};
use crate::judge::clay::Clay;

/// Model and name of each dump of a correct engine.
const CORRECT: [(&str, &str); 22] = [
    ("tiny-llama3", "tf32"),
    ("tiny-llama3", "bf16-flash"),
    ("tiny-llama3", "f16-flash"),
    ("tiny-llama3", "bf16-compiled"),
    ("tiny-qwen3", "tf32-sdpa"),
    ("tiny-qwen3", "bf16-reduced"),
    ("tiny-qwen3", "bf16-compiled"),
    ("tiny-gemma3", "bf16-sdpa"),
    ("tiny-gpt2", "tf32"),
    ("tiny-gpt2", "f16"),
    ("tiny-gpt2", "bf16-efficient"),
    ("tiny-gptoss", "bf16-autocast"),
    ("tiny-gptoss", "f16"),
    ("tiny-gptoss", "f16-compiled"),
    ("tiny-gptneox", "bf16-autocast"),
    ("tiny-nemotron", "bf16-compiled"),
    ("tiny-phi4", "bf16-compiled"),
    ("tiny-qwen3moe", "tf32"),
    ("tiny-cohere2", "bf16"),
    ("tiny-cohere2", "f16"),
    ("tiny-granitemoe", "bf16"),
    ("tiny-granitemoe", "f16"),
];

/// Model, key of its config.json, another value for it, and the tap that the value changes first.
const MISREAD: [(&str, &str, f64, Point); 7] = [
    ("tiny-cohere2", "layer_norm_eps", 0.01, Point::AttnNorm),
    ("tiny-cohere2", "sliding_window", 3.0, Point::AttnWeights),
    ("tiny-cohere2", "logit_scale", 0.45, Point::Logits),
    ("tiny-granitemoe", "embedding_multiplier", 18.0, Point::Embed),
    ("tiny-granitemoe", "rms_norm_eps", 0.01, Point::AttnNorm),
    ("tiny-granitemoe", "attention_multiplier", 0.45, Point::AttnScores),
    ("tiny-granitemoe", "residual_multiplier", 0.33, Point::AttnResidual),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns a model's folder, or the name of a shipped model.
fn model_of(name: &str) -> String {
    let folder = architecture(name).join("hf");
    if folder.is_dir() { folder.display().to_string() } else { name.to_owned() }
}

fn data(model: &str, name: &str) -> PathBuf {
    root().join("tests/data/cuda").join(model).join(format!("{name}.safetensors"))
}

fn clay(model: &str, name: &str) -> Clay {
    Clay::open(&data(model, name))
}

fn check(model: &str, file: &Path) -> (i32, Value) {
    let (model, file) = (model_of(model), file.display().to_string());
    let words = ["check", "--model", &model, "--candidate", &file, "--no-report", "--no-causes"];
    let (code, report) = Terminal::new().json(&words);
    (code, report["references"][0].clone())
}

fn check_clay(model: &str, clay: &Clay) -> (i32, Value) {
    let terminal = Terminal::new();
    let file = terminal.path().join("dump.safetensors");
    clay.save(&file);
    check(model, &file)
}

/// Scales the values of a tap in one layer.
fn faulty(clay: Clay, point: Point) -> Clay {
    let is_faulty = |site: Site| site.point == point && site.layer == Some(1);
    clay.edit_all(is_faulty, |values: &mut ArrayValues| {
        values.data.iter_mut().for_each(|value| *value *= 1.05);
    })
}

#[test]
fn dumps_of_a_gpu_pass() {
    for (model, name) in CORRECT {
        let (code, told) = check(model, &data(model, name));
        assert_eq!(code, 0, "{model} {name}: {told:#}");
    }
}

/// Kernels that round less than transformers' own operations do (or, in a sum of bf16 outputs under autocast, more):
/// their bounds must not widen.
#[test]
fn one_changed_value_of_a_gpu_kernel_fails() {
    for (model, name, point) in [
        ("tiny-gptoss", "bf16-autocast", Point::ExpertAct),
        ("tiny-gptoss", "f16", Point::AttnNorm),
        ("tiny-gptoss", "f16-compiled", Point::ExpertAct),
        ("tiny-gptneox", "bf16-autocast", Point::BlockOut),
        ("tiny-nemotron", "bf16-compiled", Point::AttnNorm),
        ("tiny-phi4", "bf16-compiled", Point::QRope),
        ("tiny-qwen3moe", "tf32", Point::ExpertGate),
    ] {
        let site = Site { point, layer: Some(1), pass: Some(0) };
        let changed = clay(model, name).edit(site, |values| {
            let largest = values.iter_mut().max_by(|a, b| a.abs().total_cmp(&b.abs()));
            *largest.expect("the tap has values") *= 1.02;
        });
        let (code, told) = check_clay(model, &changed);
        assert_eq!(code, 1, "{model} {name}: {told:#}");
        assert_eq!(told["first_divergence"]["tap"], point.name(), "{model} {name}: {told:#}");
    }
}

/// A GPU's run of one configuration, checked against another: the engine has misread one key.
#[test]
fn a_misread_key_of_the_configuration_fails_at_the_tap_that_it_changes() {
    for ((model, key, value, point), name) in one_of(2, pairs(MISREAD, ["bf16", "f16"])) {
        let folder = tempfile::tempdir().expect("a folder");
        let other = folder.path().join("hf");
        copy_with(Path::new(&model_of(model)), &other, key, value);
        let (code, told) = check(&other.display().to_string(), &data(model, name));
        assert_eq!(code, 1, "{model} {name} {key}: {told:#}");
        assert_eq!(told["first_divergence"]["tap"], point.name(), "{model} {name} {key}: {told:#}");
    }
}

/// Copies a model with another value for one key of its config.json.
fn copy_with(model: &Path, to: &Path, key: &str, value: f64) {
    std::fs::create_dir(to).expect("a new folder");
    std::fs::copy(model.join("model.safetensors"), to.join("model.safetensors")).expect("a model");
    let text = std::fs::read_to_string(model.join("config.json")).expect("a configuration");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    assert!(config[key].is_number(), "{key}: {config:#}");
    config[key] = if config[key].is_u64() { json!(value as u64) } else { json!(value) };
    std::fs::write(to.join("config.json"), config.to_string()).expect("a file");
}

#[test]
fn a_faulty_layer_of_a_gpu_dump_fails_at_its_tap() {
    for ((model, name), point) in one_of(3, pairs(CORRECT, [Point::FfnOut, Point::AttnContext])) {
        let (code, told) = check_clay(model, &faulty(clay(model, name), point));
        assert_eq!(code, 1, "{model} {name}: {told:#}");
        assert_eq!(told["first_divergence"]["tap"], point.name(), "{model} {name}: {told:#}");
        assert_eq!(told["first_divergence"]["layer"], 1, "{model} {name}: {told:#}");
    }
}

/// cuBLAS rounds operands to TF32 in a pass of many tokens. A pass of one token, and small products of attention, it
/// computes in plain f32. An engine that states f32 may have TF32 switched on.
#[test]
fn tf32_that_is_not_stated_is_found_by_its_values() {
    for (model, name) in [("tiny-llama3", "tf32"), ("tiny-qwen3", "tf32-sdpa"), ("tiny-gpt2", "tf32")] {
        let silent = clay(model, name).say(|json| json["producer"]["settings"]["dtype"] = json!("f32"));
        let (code, told) = check_clay(model, &silent);
        assert_eq!(code, 0, "{model} {name}: {told:#}");
        let notes = told["notes"].to_string();
        assert!(notes.contains("q: operands are rounded to the 11 bits of TF32"), "{model} {name}: {notes}");
        let silent = clay(model, name).say(|json| json["producer"]["settings"]["dtype"] = json!("f32"));
        assert_eq!(check_clay(model, &faulty(silent, Point::FfnOut)).0, 1, "{model} {name}");
    }
    // Plain f32 needs no TF32.
    let plain = Clay::of(&reference_of("tiny-llama3", "transformers-f32"));
    let (code, told) = check_clay("tiny-llama3", &plain);
    assert!(code == 0 && !told["notes"].to_string().contains("TF32"), "{told:#}");
}

#[test]
fn products_of_f8_operands_are_not_those_of_a_bf16_model() {
    let (code, told) = check("tiny-llama3", &data("tiny-llama3", "bf16-float8"));
    assert_eq!(code, 1, "{told:#}");
    assert_eq!(told["first_divergence"]["tap"], "q", "{told:#}");
}

#[test]
fn block_outputs_and_logits_of_a_gpu_pass() {
    let few = [Point::Embed, Point::BlockOut, Point::Logits, Point::Generated];
    // With so few taps, these two are inconclusive: TF32 and autocast leave a high noise floor.
    let is_told = |case: &(&str, &str)| {
        *case != ("tiny-qwen3", "tf32-sdpa") && *case != ("tiny-gptoss", "bf16-autocast")
    };
    for (model, name) in one_of(2, CORRECT.into_iter().filter(is_told)) {
        let few = clay(model, name).with_only(&few);
        let (code, told) = check_clay(model, &few);
        assert_eq!(code, 0, "{model} {name}: {told:#}");
        assert_ne!(check_clay(model, &faulty(few, Point::BlockOut)).0, 0, "{model} {name}");
    }
}
