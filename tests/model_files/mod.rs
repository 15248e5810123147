//! Files around the weights of a model, and other layouts of the weights: each against the real library's answer.

mod end_tokens;
mod split_gguf;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use xcheck::engine::{Generation, Request, Sampling, generate_all};
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
