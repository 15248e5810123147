//! End tokens of `generation_config.json` and `config.json`, as transformers' `generate` uses them.

use std::fs;

use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{folder_with, generate, load, root, with, write_json};

/// Content of the file that `make_end_token_vectors.py` wrote.
#[derive(Deserialize)]
struct EndTokenVectors {
    prompt: Vec<u32>,
    tokens: usize,
    cases: Vec<EndTokenCase>,
}

#[derive(Deserialize)]
struct EndTokenCase {
    name: String,
    config: Value,
    generation: Option<Value>,
    generated: Vec<u32>,
}

fn vectors() -> EndTokenVectors {
    let path = root("tests/data/model-files/end-tokens.json");
    serde_json::from_slice(&fs::read(path).expect("it is committed")).expect("it is JSON")
}

fn folder(case: &EndTokenCase) -> TempDir {
    let folder = folder_with(&["model.safetensors"]);
    let config = super::json(&root("checkpoints/tiny-llama2/hf/config.json"));
    write_json(&folder, "config.json", &with(config, &case.config));
    case.generation.iter().for_each(|content| write_json(&folder, "generation_config.json", content));
    folder
}

#[test]
fn a_generation_ends_where_transformers_ends_it() {
    let EndTokenVectors { prompt, tokens, cases } = vectors();
    let mut ends = 0;
    for case in &cases {
        let folder = folder(case);
        let loaded = load(folder.path()).expect("it is sound");
        assert_eq!(generate(&loaded, &prompt, tokens), case.generated, "{}", case.name);
        ends += usize::from(case.generated.len() < tokens);
    }
    assert_eq!((ends, cases.len()), (2, 6), "cases that end early, and all");
}

/// Injects the fault: without the file, `config.json` decides, and the text has another length.
#[test]
fn a_missing_generation_config_changes_the_end() {
    let EndTokenVectors { prompt, tokens, cases } = vectors();
    let case = &cases[0];
    let folder = folder(case);
    fs::remove_file(folder.path().join("generation_config.json")).expect("it was there");
    let loaded = load(folder.path()).expect("it is sound");
    assert_ne!(generate(&loaded, &prompt, tokens), case.generated);
}

#[test]
fn end_tokens_of_a_multimodal_configuration_are_the_outer_ones() {
    let folder = TempDir::new().expect("a folder");
    let source = root("checkpoints/tiny-gemma3-vision/hf");
    fs::copy(source.join("model.safetensors"), folder.path().join("model.safetensors")).expect("it ships");
    let config = super::json(&source.join("config.json"));
    write_json(&folder, "config.json", &config);
    assert_eq!(load(folder.path()).expect("it is sound").end_tokens, [2]);
    write_json(&folder, "config.json", &with(config, &json!({"eos_token_id": [1, 106]})));
    assert_eq!(load(folder.path()).expect("it is sound").end_tokens, [1, 106]);
}

#[test]
fn a_damaged_generation_config_is_refused() {
    for (content, expected) in
        [("{", "generation_config.json"), (r#"{"eos_token_id": "two"}"#, "'eos_token_id' is \"two\"")]
    {
        let folder = folder_with(&["config.json", "model.safetensors"]);
        fs::write(folder.path().join("generation_config.json"), content).expect("it is written");
        let Err(error) = load(folder.path()) else { panic!("{content} must be refused") };
        assert!(error.to_string().contains(expected), "{error}");
    }
}
