//! Files around the weights of a model, and other layouts of the weights: each against the real library's answer.

mod adapters;
mod end_tokens;
mod layouts;
mod meta;
mod split_gguf;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};
use tempfile::TempDir;
use xcheck::engine::{Engine, Generation, Request, Sampling, generate_all};
use xcheck::error::Result;
use xcheck::model::{LoadedModel, ModelFiles};
use xcheck::numerics::F32;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("it is committed")).expect("it is JSON")
}

/// Returns an object with the entries of another one put into it.
fn with(mut object: Value, changes: &Value) -> Value {
    for (key, value) in changes.as_object().into_iter().flatten() {
        object[key] = value.clone();
    }
    object
}

/// A folder with files of `checkpoints/tiny-llama2/hf`.
fn folder_with(files: &[&str]) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    for file in files {
        fs::copy(root("checkpoints/tiny-llama2/hf").join(file), folder.path().join(file)).expect("it ships");
    }
    folder
}

fn write_json(folder: &TempDir, file: &str, content: &Value) {
    fs::write(folder.path().join(file), content.to_string()).expect("it is written");
}

fn load(path: &Path) -> Result<LoadedModel> {
    ModelFiles::open(path)?.load()
}

/// Generates greedily in f32, up to the model's end tokens.
fn generate(loaded: &LoadedModel, prompt: &[u32], tokens: usize) -> Vec<u32> {
    let request = Request {
        prompt: prompt.to_vec(),
        max_tokens: tokens,
        stop: loaded.end_tokens.clone(),
        context: prompt.len() + tokens,
        forgets: false,
        sampling: Sampling { temperature: 0.0, top_k: None, top_p: None, min_p: None, seed: 0 },
    };
    let mut one = [Generation::new(&*loaded.model, &F32, request).expect("a sound request")];
    generate_all(&mut one, |_, _| true).expect("it generates");
    one[0].generated().to_vec()
}

/// Content of the file that `make_model_file_vectors.py` wrote.
#[derive(Deserialize)]
struct Cases {
    tokens: Vec<u32>,
    gguf_tokens: Vec<u32>,
    cases: Vec<FolderCase>,
    gguf: Vec<GgufCase>,
}

#[derive(Deserialize)]
struct FolderCase {
    name: String,
    source: String,
    config: Value,
    adapter: Option<String>,
    #[serde(default)]
    names: Vec<String>,
    logits: Vec<f32>,
}

#[derive(Deserialize)]
struct GgufCase {
    name: String,
    file: String,
    changes: Map<String, Value>,
    logits: Vec<f32>,
}

fn read_cases() -> Cases {
    serde_json::from_value(json(&root("tests/data/model-files/logits.json"))).expect("its fields")
}

/// Returns the logits of the last token in f32.
fn last_logits(loaded: &LoadedModel, tokens: &[u32]) -> Vec<f32> {
    let mut engine = Engine::new(&*loaded.model, &F32, tokens.len()).expect("it fits");
    engine.read(tokens, &mut ()).expect("it computes").data().to_vec()
}

fn assert_close(own: &[f32], real: &[f32], name: &str) {
    for (own, real) in own.iter().zip(real) {
        assert!((own - real).abs() < 1e-3, "{name}: {own}, expected {real}");
    }
}
