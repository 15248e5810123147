//! Models whose weights are PyTorch checkpoints are the same models as those of safetensors files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{record, torch};
use tempfile::TempDir;
use xcheck::dump::Dump;
use xcheck::engine::RunInput;
use xcheck::error::Error;
use xcheck::format::{FileBytes, Safetensors, TensorFile};
use xcheck::model::ModelFiles;
use xcheck::numerics::F32;

fn shipped(model: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "checkpoints", model, "hf"].iter().collect()
}

/// A directory with the configuration of a shipped model, and nothing else yet.
fn directory(model: &str) -> TempDir {
    let directory = TempDir::new().expect("a temporary directory");
    let config = directory.path().join("config.json");
    fs::copy(shipped(model).join("config.json"), config).expect("it is copied");
    directory
}

fn tensors(path: &Path) -> TensorFile {
    Safetensors::read(&FileBytes::open(path).expect("it ships")).expect("it is sound").tensors
}

/// The same tensors in PyTorch's form.
fn convert(from: &Path, to: &Path) {
    fs::write(to, torch::checkpoint(&tensors(from))).expect("it is written");
}

/// Every value of a run.
fn values(path: &Path, format: &str) -> BTreeMap<String, Vec<f64>> {
    let loaded = ModelFiles::open(path).and_then(|files| files.load()).expect("it loads");
    assert_eq!(loaded.format, format);
    let home = TempDir::new().expect("a temporary directory");
    let dump = home.path().join("dump");
    record(&*loaded.model, &F32, &RunInput::greedy(&[1, 393, 395, 260], 2), &dump);
    let dump = Dump::open(&dump).expect("it is sound");
    let read = |site| (format!("{site:?}"), dump.read(site).expect("sound").expect("there").data);
    dump.sites().map(read).collect()
}

#[test]
fn a_pytorch_checkpoint_gives_every_value_that_safetensors_give() {
    let directory = directory("tiny-llama2");
    let (original, file) = (shipped("tiny-llama2"), directory.path().join("pytorch_model.bin"));
    convert(&original.join("model.safetensors"), &file);
    let expected = values(&original, "safetensors");
    assert!(expected.len() > 100 && expected.values().flatten().any(|&value| value != 0.0));
    assert!(values(directory.path(), "pytorch") == expected);
    assert!(values(&file, "pytorch") == expected, "named itself");
}

#[test]
fn shards_of_a_pytorch_checkpoint_are_one_model() {
    let (directory, original) = (directory("tiny-llama3"), shipped("tiny-llama3"));
    let index = fs::read_to_string(original.join("model.safetensors.index.json")).expect("it ships");
    for shard in ["00001-of-00002", "00002-of-00002"] {
        let bin = directory.path().join(format!("pytorch_model-{shard}.bin"));
        convert(&original.join(format!("model-{shard}.safetensors")), &bin);
    }
    let index = index.replace("model-0", "pytorch_model-0").replace(".safetensors", ".bin");
    fs::write(directory.path().join("pytorch_model.bin.index.json"), index).expect("it is written");
    assert!(values(directory.path(), "pytorch") == values(&original, "safetensors"));
}

#[test]
fn safetensors_go_before_a_pytorch_checkpoint() {
    let directory = directory("tiny-llama2");
    fs::write(directory.path().join("pytorch_model.bin"), "not even a checkpoint").expect("it is written");
    let whole = shipped("tiny-llama2").join("model.safetensors");
    fs::copy(whole, directory.path().join("model.safetensors")).expect("it is copied");
    assert_eq!(ModelFiles::open(directory.path()).unwrap().load().unwrap().format, "safetensors");
}

#[test]
fn a_damaged_checkpoint_is_refused_by_name() {
    let directory = directory("tiny-llama2");
    let file = directory.path().join("pytorch_model.bin");
    convert(&shipped("tiny-llama2").join("model.safetensors"), &file);
    let whole = fs::read(&file).expect("it was written");
    fs::write(&file, &whole[..whole.len() / 2]).expect("it is written");
    let Err(error) = ModelFiles::open(directory.path()).and_then(|files| files.load()) else {
        panic!("half a file is refused");
    };
    assert!(matches!(error, Error::BadContainer { .. }), "{error}");
    assert!(error.to_string().contains("pytorch_model.bin: not a valid PyTorch file"), "{error}");
}

#[test]
fn a_directory_without_weights_says_which_it_could_hold() {
    let directory = directory("tiny-llama2");
    let error = ModelFiles::open(directory.path()).expect_err("there are none");
    assert!(error.to_string().contains("model.safetensors or pytorch_model.bin"), "{error}");
}
