//! Settings beside a tokenizer (added tokens, classes, prefixes), against the ids that transformers gives.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use xcheck::Error;
use xcheck::tokenizer::{Tokenizer, TokenizerFiles};

/// Content of the file that `make_tokenizer_setting_vectors.py` wrote.
#[derive(Deserialize)]
struct SettingVectors {
    cases: Vec<SettingCase>,
}

#[derive(Deserialize)]
struct SettingCase {
    name: String,
    source: String,
    files: Vec<String>,
    #[serde(default)]
    edit: Map<String, Value>,
    config: Map<String, Value>,
    more: Map<String, Value>,
    text: String,
    refused: Option<String>,
    ids: Vec<u32>,
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("it is committed")).expect("it is JSON")
}

fn cases() -> Vec<SettingCase> {
    let read: SettingVectors =
        serde_json::from_value(read_json(&root("tests/data/tokenizers/settings.json"))).expect("its fields");
    read.cases
}

/// Writes the vocabulary and the merges of a tokenizer.json.
fn write_two_files(source: &Path, folder: &Path) {
    let model = read_json(&source.join("tokenizer.json"))["model"].take();
    fs::write(folder.join("vocab.json"), model["vocab"].to_string()).expect("it is written");
    let line = |merge: &Value| match merge.as_array() {
        Some(pair) => {
            format!("{} {}\n", pair[0].as_str().unwrap_or_default(), pair[1].as_str().unwrap_or_default())
        }
        None => format!("{}\n", merge.as_str().unwrap_or_default()),
    };
    let merges: String = model["merges"].as_array().expect("a list").iter().map(line).collect();
    fs::write(folder.join("merges.txt"), format!("#version: 0.2\n{merges}")).expect("it is written");
}

/// Makes the folder that the script gave to transformers, with `config` in place of the case's own keys.
fn folder_of(case: &SettingCase, config: &Map<String, Value>) -> TempDir {
    let (folder, source) = (TempDir::new().expect("a folder"), root(&case.source));
    let place = folder.path();
    match case.files[0].as_str() {
        "vocab.json" => write_two_files(&source, place),
        file => _ = fs::copy(source.join(file), place.join(file)).expect("it is committed"),
    }
    if !case.edit.is_empty() {
        let mut tokenizer = read_json(&place.join("tokenizer.json"));
        case.edit.iter().for_each(|(key, value)| tokenizer[key] = value.clone());
        fs::write(place.join("tokenizer.json"), tokenizer.to_string()).expect("it is written");
    }
    let mut settings = read_json(&source.join("tokenizer_config.json"));
    let object = settings.as_object_mut().expect("an object");
    for (key, value) in config {
        match value {
            Value::Null => _ = object.remove(key),
            value => _ = object.insert(key.clone(), value.clone()),
        }
    }
    fs::write(place.join("tokenizer_config.json"), settings.to_string()).expect("it is written");
    for (name, content) in &case.more {
        fs::write(place.join(name), content.to_string()).expect("it is written");
    }
    folder
}

fn read(folder: &TempDir) -> Result<Box<dyn Tokenizer>, Error> {
    TokenizerFiles::at(folder.path())?.expect("there is one").read()
}

fn ids(folder: &TempDir, text: &str) -> Vec<u32> {
    read(folder).expect("it is sound").encode(text, true).expect("it can be encoded")
}

#[test]
fn settings_beside_a_tokenizer_count_as_in_transformers() {
    let cases = cases();
    assert_eq!(cases.len(), 49);
    for case in cases {
        let folder = folder_of(&case, &case.config);
        match case.refused {
            Some(part) => {
                let Err(error) = read(&folder) else { panic!("{}: must be refused", case.name) };
                assert!(error.to_string().contains(&part), "{}: {error}", case.name);
            }
            None => assert_eq!(ids(&folder, &case.text), case.ids, "{} of {:?}", case.name, case.files),
        }
    }
}

/// Injects the fault: each setting that changes the ids is removed, and the ids are other ones.
#[test]
fn ids_without_the_settings_are_other_ones() {
    let told =
        ["added_tokens_decoder", "extra_special_tokens", "eos_token and pad_token", "split_special_tokens"];
    let mut compared = 0;
    for case in cases().into_iter().filter(|case| told.contains(&case.name.as_str())) {
        let folder = folder_of(&case, &Map::new());
        assert_ne!(ids(&folder, &case.text), case.ids, "{} of {:?}", case.name, case.files);
        compared += 1;
    }
    assert_eq!(compared, 8);
}

#[test]
fn added_tokens_survive_decoding_as_special_tokens() {
    let case = cases().into_iter().find(|case| case.name == "added_tokens_decoder").expect("it is there");
    let tokenizer = read(&folder_of(&case, &case.config)).expect("it is sound");
    assert_eq!(tokenizer.vocab_size(), 514);
    assert_eq!(tokenizer.piece(513).as_deref(), Some("<|im_end|>"));
    assert_eq!(tokenizer.decode_lossy(&[512, 507, 477, 513]).expect("they are known"), "Hi");
}

#[test]
fn two_files_of_another_class_are_refused() {
    let case = cases().into_iter().find(|case| case.name == "GPT-2's two files").expect("it is there");
    let class = |name: &str| Map::from_iter([("tokenizer_class".to_owned(), json!(name))]);
    let Err(error) = read(&folder_of(&case, &class("WhisperTokenizer"))) else { panic!("must be refused") };
    assert!(error.to_string().contains("tokenizer_class is WhisperTokenizer"), "{error}");
}

#[test]
fn damaged_added_tokens_are_refused() {
    let mut case = cases().into_iter().find(|case| case.name == "added_tokens.json").expect("it is there");
    for (file, content, part) in [
        ("added_tokens.json", json!({"<x>": -1}), "'added_tokens.json' is -1"),
        ("added_tokens.json", json!(["<x>"]), "an object with the id of each token"),
        ("special_tokens_map.json", json!({"pad_token": 3}), "'pad_token' is 3"),
    ] {
        case.more = Map::from_iter([(file.to_owned(), content)]);
        let Err(error) = read(&folder_of(&case, &case.config)) else { panic!("{file} must be refused") };
        assert!(error.to_string().contains(part), "{error}");
    }
    let config = Map::from_iter([("added_tokens_decoder".to_owned(), json!({"512": {"special": true}}))]);
    let Err(error) = read(&folder_of(&case, &config)) else { panic!("must be refused") };
    assert!(error.to_string().contains("'added_tokens_decoder'"), "{error}");
}
