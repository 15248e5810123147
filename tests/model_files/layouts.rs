//! Models whose files are laid out otherwise, against the logits of transformers and llama.cpp.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use tempfile::TempDir;
use xcheck::format::{FileBytes, TensorFile};
use xcheck::model::ModelFiles;

use super::{Cases, assert_close, last_logits, load, read_cases, root, with, write_json};
use crate::common::architecture;
use crate::format::builder::FIRST_KEY;

/// Copies a model folder with other keys in its `config.json`; null removes a key.
fn folder_of(source: &Path, changes: &Value) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    fs::copy(source.join("model.safetensors"), folder.path().join("model.safetensors")).expect("committed");
    let mut config = with(super::json(&source.join("config.json")), changes);
    let object = config.as_object_mut().expect("an object");
    object.retain(|key, value| !(value.is_null() && changes.get(key).is_some()));
    write_json(&folder, "config.json", &config);
    folder
}

/// Writes the tensors of a model under other names.
fn rename(folder: &TempDir, names: &[String]) {
    let path = folder.path().join("model.safetensors");
    let tensors = TensorFile::read(&FileBytes::open(&path).expect("it is there")).expect("it is sound");
    let (mut header, mut data) = (Map::new(), Vec::new());
    for name in names {
        let plain = name.replace("_orig_mod.", "");
        let plain = plain.strip_prefix("module.").unwrap_or(&plain);
        let tensor =
            tensors.get(plain).or_else(|| tensors.get(&format!("model.{plain}"))).expect("its tensor");
        let start = data.len();
        data.extend_from_slice(&tensor.data);
        header.insert(
            name.clone(),
            json!({"dtype": "F32", "shape": tensor.shape, "data_offsets": [start, data.len()]}),
        );
    }
    let header = Value::Object(header).to_string().into_bytes();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    fs::remove_file(&path).expect("it is there");
    fs::write(&path, bytes).expect("it is written");
}

#[test]
fn configurations_count_as_in_transformers() {
    let Cases { tokens, cases, .. } = read_cases();
    let mut compared = 0;
    for case in cases.iter().filter(|case| case.adapter.is_none() && case.names.is_empty()) {
        let folder = folder_of(&root(&case.source), &case.config);
        let loaded = load(folder.path()).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_close(&last_logits(&loaded, &tokens), &case.logits, &case.name);
        compared += 1;
    }
    assert_eq!(compared, 12);
}

/// Injects the fault of each RoPE case: without the keys, the logits are other ones.
#[test]
fn logits_without_the_rope_keys_are_other_ones() {
    let Cases { tokens, cases, .. } = read_cases();
    let plain = json!({"rope_theta": 1e6, "rope_parameters": null, "rope_scaling": null});
    let folder = folder_of(&root("checkpoints/tiny-qwen3/hf"), &plain);
    let logits = last_logits(&load(folder.path()).expect("it is sound"), &tokens);
    let other = cases.iter().filter(|case| (logits[0] - case.logits[0]).abs() > 0.01);
    assert_eq!(
        other.count(),
        cases.iter().filter(|case| case.source != "checkpoints/tiny-qwen3/hf").count() + 7
    );
}

#[test]
fn names_of_wrapped_models_are_read() {
    let Cases { tokens, cases, .. } = read_cases();
    let wrapped: Vec<_> = cases.iter().filter(|case| !case.names.is_empty()).collect();
    assert_eq!(wrapped.len(), 4);
    for case in wrapped {
        let folder = folder_of(&root(&case.source), &json!({}));
        rename(&folder, &case.names);
        let loaded = load(folder.path()).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_close(&last_logits(&loaded, &tokens), &case.logits, &case.name);
    }
}

#[test]
fn a_wrapper_of_some_tensors_is_refused() {
    let case = read_cases().cases.into_iter().find(|case| case.name == "DataParallel").expect("it is there");
    let folder = folder_of(&root(&case.source), &json!({}));
    let mut names = case.names.clone();
    names[0] = names[0].replace("module.", "");
    rename(&folder, &names);
    let Err(error) = load(folder.path()) else { panic!("it must be refused") };
    assert!(error.to_string().contains("is missing"), "{error}");
}

#[test]
fn sliding_layers_of_a_model_without_windows_are_refused() {
    let source = root("checkpoints/tiny-qwen3/hf");
    let slides = json!({
        "use_sliding_window": true, "sliding_window": 4, "layer_types": null, "max_window_layers": 1
    });
    let Err(error) = load(folder_of(&source, &slides).path()) else { panic!("it must be refused") };
    assert!(error.to_string().contains("'max_window_layers' is 1, expected 3 or more"), "{error}");
    let ntk = json!({"rope_parameters": null, "rope_scaling": {"type": "dynamic"}});
    let Err(error) = load(folder_of(&source, &ntk).path()) else { panic!("it must be refused") };
    assert!(error.to_string().contains("'rope_scaling.factor' is missing"), "{error}");
}

// ---- GGUF -----------------------------------------------------------------------------------------------

/// An entry of GGUF metadata: a u32, or an array of u32.
fn entry(key: &str, value: &Value) -> Vec<u8> {
    let number = |value: &Value| (value.as_u64().expect("a number") as u32).to_le_bytes();
    let mut bytes = [&(key.len() as u64).to_le_bytes()[..], key.as_bytes()].concat();
    match value.as_array() {
        None => bytes.extend([&4u32.to_le_bytes()[..], &number(value)].concat()),
        Some(values) => {
            bytes.extend([9u32, 4].map(u32::to_le_bytes).concat());
            bytes.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| bytes.extend(number(value)));
        }
    }
    bytes
}

/// Puts keys into a GGUF file. A key that is there gets another name, and the header grows by whole alignments.
fn with_keys(file: &Path, changes: &Map<String, Value>) -> ModelFiles {
    const ALIGNMENT: usize = 32;
    let mut bytes = fs::read(file).expect("it is committed");
    for key in changes.keys() {
        let name = [&(key.len() as u64).to_le_bytes()[..], key.as_bytes()].concat();
        if let Some(at) = bytes.windows(name.len()).position(|window| window == name) {
            bytes[at + name.len() - 1] = b'#';
        }
    }
    let mut added: Vec<u8> = changes.iter().flat_map(|(key, value)| entry(key, value)).collect();
    let filler = (0..ALIGNMENT).map(|len| "x".repeat(len + 1));
    let filler = filler
        .map(|key| entry(&key, &json!(0)))
        .find(|key| (added.len() + key.len()).is_multiple_of(ALIGNMENT));
    added.extend(filler.expect("one of them fills it up"));
    let count = u64::from_le_bytes(bytes[16..24].try_into().expect("eight bytes")) + changes.len() as u64 + 1;
    bytes[16..24].copy_from_slice(&count.to_le_bytes());
    bytes.splice(FIRST_KEY..FIRST_KEY, added);
    ModelFiles::Gguf(FileBytes { path: "changed.gguf".into(), data: bytes.into() })
}

#[test]
fn gguf_metadata_counts_as_in_llama_cpp() {
    let Cases { gguf_tokens: tokens, gguf, .. } = read_cases();
    assert_eq!(gguf.len(), 2);
    for case in gguf {
        let loaded =
            with_keys(&root(&case.file), &case.changes).load().unwrap_or_else(|error| panic!("{error}"));
        assert_close(&last_logits(&loaded, &tokens), &case.logits, &case.name);
    }
}

#[test]
fn gguf_arrays_of_different_sizes_or_lengths_are_refused() {
    for (model, key, value, part) in [
        ("llama-bias", "llama.attention.head_count_kv", json!([1, 2]), "layers of different sizes"),
        ("llama-bias", "llama.attention.head_count_kv", json!([2]), "one for each of 2 layers"),
        ("nemotronh", "nemotron_h.attention.head_count_kv", json!([0, 0, 2]), "one for each of 4 layers"),
        ("nemotronh", "nemotron_h.attention.head_count_kv", json!([0, 1, 2, 0]), "or 0 in layers without"),
        ("nemotronh", "nemotron_h.feed_forward_length", json!([0, 64, 0]), "one for each of 4 layers"),
        ("nemotronh", "nemotron_h.feed_forward_length", json!([0, 64, 0, 0, 0]), "one for each of 4 layers"),
        ("lfm2", "lfm2.attention.head_count_kv", json!([0, 2]), "one for each of 3 layers"),
        ("gemma4", "gemma4.attention.head_count_kv", json!([2]), "one for each of 4 layers"),
        ("gemma3n", "gemma3n.feed_forward_length", json!([64]), "one for each of 2 layers"),
    ] {
        let file = architecture(&format!("tiny-{model}")).join(format!("tiny-{model}-f32.gguf"));
        let changes = Map::from_iter([(key.to_owned(), value)]);
        let Err(error) = with_keys(&file, &changes).load() else { panic!("{key} must be refused") };
        assert!(error.to_string().contains(part) && error.to_string().contains(key), "{error}");
    }
}

/// Each file keeps its own value, and refuses another.
#[test]
fn gguf_keys_of_sliding_layers_that_disagree_are_refused() {
    for (model, key, own) in [
        ("gemma4", "rope.dimension_count_swa", 8),
        ("gemma4", "attention.value_length_swa", 8),
        ("gemma2", "rope.dimension_count_swa", 32),
    ] {
        let file = architecture(&format!("tiny-{model}")).join(format!("tiny-{model}-f32.gguf"));
        let load = |value: usize| {
            with_keys(&file, &Map::from_iter([(format!("{model}.{key}"), json!(value))])).load()
        };
        load(own).unwrap_or_else(|error| panic!("{error}"));
        let Err(error) = load(own / 2) else { panic!("{model}.{key} must be refused") };
        assert!(
            error.to_string().contains(&format!("{model}.{key}' is {}, expected {own}", own / 2)),
            "{error}"
        );
    }
}
