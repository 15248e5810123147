//! Architectures of which no model ships: all their formats pass against every dump that real engines made of them.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::terminal::Terminal;
use serde_json::Value;

fn home(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/architectures").join(model)
}

fn text(path: &Path) -> String {
    path.to_str().expect("a plain path").to_owned()
}

/// A model in the format that the dump was made of, all of it judged.
fn run(model: &Path, dump: &Path) -> (i32, Value) {
    let (model, dump) = (text(model), text(dump));
    Terminal::new().json(&[
        "run",
        "--model",
        &model,
        "--reference",
        &dump,
        "--checkpoint",
        "all",
        "--no-report",
    ])
}

fn dump(model: &str, name: &str) -> PathBuf {
    home(model).join("dumps").join(format!("{name}.safetensors"))
}

fn gguf(model: &str, dtype: &str) -> PathBuf {
    home(model).join(format!("{model}-{dtype}.gguf"))
}

fn kinds(report: &Value) -> Vec<&str> {
    let findings = report["references"][0]["findings"].as_array().expect("findings");
    findings.iter().map(|finding| finding["kind"].as_str().expect("a kind")).collect()
}

#[test]
fn every_format_passes_against_every_dump() {
    for model in ["tiny-qwen2", "tiny-mistral"] {
        let hugging_face = ["f32", "bf16"]
            .map(|dtype| (home(model).join("hf"), dump(model, &format!("transformers-{dtype}"))));
        let of_gguf = ["f32", "f16", "q8_0"]
            .map(|dtype| (gguf(model, dtype), dump(model, &format!("llama.cpp-{dtype}"))));
        for (model, dump) in hugging_face.into_iter().chain(of_gguf) {
            let (code, report) = run(&model, &dump);
            let reference = &report["references"][0];
            assert_eq!(code, 0, "{}: {}", dump.display(), reference["reason"]);
            assert_eq!(reference["coverage"]["taps_compared"], 177, "{}", dump.display());
        }
    }
}

/// llama.cpp computes Mistral as a Llama: the window is not in its files. Of the model that has one its dump is wrong.
#[test]
fn a_window_that_llama_cpp_does_not_know_is_named() {
    let (code, report) = run(&home("tiny-mistral").join("hf"), &dump("tiny-mistral", "llama.cpp-f32"));
    assert_eq!((code, kinds(&report)), (1, vec!["mask_window"]), "{}", report["references"][0]["findings"]);
}

/// A model whose biases are zero, as of an engine that does not read them.
#[test]
fn biases_that_are_not_read_fail_where_they_belong() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let config = folder.path().join("config.json");
    fs::copy(home("tiny-qwen2").join("hf/config.json"), config).expect("it is copied");
    let mut bytes = fs::read(home("tiny-qwen2").join("hf/model.safetensors")).expect("it is there");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    let mut changed = 0;
    for (name, tensor) in header.as_object().expect("tensors") {
        if name.ends_with("k_proj.bias") {
            let at =
                |end: usize| 8 + length + tensor["data_offsets"][end].as_u64().expect("an offset") as usize;
            bytes[at(0)..at(1)].fill(0);
            changed += 1;
        }
    }
    assert_eq!(changed, 2, "one for each layer");
    fs::write(folder.path().join("model.safetensors"), bytes).expect("it is written");
    let (code, report) = run(folder.path(), &dump("tiny-qwen2", "transformers-f32"));
    assert_eq!(code, 1, "{report}");
    let first = &report["references"][0]["first_divergence"];
    assert_eq!((&first["tap"], &first["layer"]), (&"k".into(), &0.into()));
}

/// transformers takes a window where a file does not say that there is none.
#[test]
fn a_file_that_does_not_name_its_window_is_refused_and_one_that_has_none_sees_all() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let weights = folder.path().join("model.safetensors");
    fs::copy(home("tiny-mistral").join("hf/model.safetensors"), weights).expect("it is copied");
    let stated = fs::read_to_string(home("tiny-mistral").join("hf/config.json")).expect("it is there");
    let mut config: Value = serde_json::from_str(&stated).expect("JSON");
    let write = |config: &Value| {
        fs::write(folder.path().join("config.json"), config.to_string()).expect("it is written");
    };
    config["sliding_window"] = Value::Null;
    write(&config);
    let (code, _) = run(folder.path(), &dump("tiny-mistral", "llama.cpp-f32"));
    assert_eq!(code, 0, "without a window it is what llama.cpp computes");
    config.as_object_mut().expect("an object").remove("sliding_window");
    write(&config);
    let (model, reference) = (text(folder.path()), text(&dump("tiny-mistral", "transformers-f32")));
    Terminal::new().assert_refused(&["run", "--model", &model, "--reference", &reference], "sliding_window");
}
