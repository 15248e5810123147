//! Models whose files contradict themselves or ask for what the forward pass does not do are refused by name.

use std::fs;
use std::path::Path;

use crate::common::{tiny_llama2, variant};
use half::f16;
use serde_json::{Value, json};
use tempfile::TempDir;
use xcheck::engine::{self, RunInput};
use xcheck::error::{Error, TokenizerError};
use xcheck::format::{FileBytes, Gguf};
use xcheck::model::{LoadedModel, Model, ModelFiles};
use xcheck::numerics::{F32, KvType, LlamaCpp};
use xcheck::tensor::RopePairing;
use xcheck::weight::{DType, Matrix, StoredTensor};

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama2");

// ---- what loads -----------------------------------------------------------------------------------------

#[test]
fn every_format_of_the_shipped_model_loads_with_the_same_configuration() {
    for (name, precision, pairing) in [
        ("tiny-llama2-hf", DType::F32, RopePairing::Half),
        ("tiny-llama2-f32", DType::F32, RopePairing::Interleaved),
        ("tiny-llama2-f16", DType::F16, RopePairing::Interleaved),
        ("tiny-llama2-q8_0", DType::Q8_0, RopePairing::Interleaved),
    ] {
        let loaded = variant(name).load().expect("it loads");
        assert_eq!(loaded.precision, precision, "{name}");
        let dimensions = loaded.model.dimensions();
        assert_eq!((dimensions.vocab_size, dimensions.n_layers, dimensions.kv_width), (512, 4, 128));
        assert_eq!((dimensions.context_length, dimensions.rope_pairing), (256, Some(pairing)));
    }
}

#[test]
fn safetensors_and_gguf_of_the_same_weights_give_the_same_tokens() {
    let script = RunInput::greedy(&[1, 393, 395, 260], 40);
    let run = |name: &str| {
        let model = variant(name).load().expect("it loads").model;
        engine::run(&*model, &F32, &script, &mut ()).expect("it runs").generated
    };
    assert_eq!(run("tiny-llama2-hf"), run("tiny-llama2-f32"));
}

#[test]
fn a_hugging_face_directory_of_the_older_key_style_loads_too() {
    let directory = hugging_face(|config| {
        let keys = config.as_object_mut().expect("an object");
        keys.remove("rope_parameters");
        keys.insert("rope_theta".into(), json!(10000.0));
        keys.insert("rope_scaling".into(), Value::Null);
        keys.remove("head_dim");
    });
    let old = ModelFiles::open(directory.path()).and_then(|files| files.load()).expect("it loads");
    let script = RunInput::greedy(&[1, 393], 3);
    let generated =
        |model: &dyn Model| engine::run(model, &F32, &script, &mut ()).expect("it runs").generated;
    let new = variant("tiny-llama2-hf").load().expect("it loads");
    assert_eq!(generated(&*old.model), generated(&*new.model));
}

// ---- what is refused: Hugging Face directories ----------------------------------------------------------

fn hugging_face(edit: impl FnOnce(&mut Value)) -> TempDir {
    let directory = TempDir::new().expect("a temporary directory");
    let original = Path::new(SHIPPED).join("hf");
    fs::copy(original.join("model.safetensors"), directory.path().join("model.safetensors"))
        .expect("it is copied");
    let mut config =
        serde_json::from_slice(&fs::read(original.join("config.json")).expect("there")).expect("JSON");
    edit(&mut config);
    fs::write(directory.path().join("config.json"), config.to_string()).expect("it is written");
    directory
}

#[track_caller]
fn assert_config_refused(key: &str, value: Value, expected: &str) {
    let directory = hugging_face(|config| config[key] = value);
    let error =
        ModelFiles::open(directory.path()).and_then(|files| files.load()).err().expect("it is refused");
    let message = error.to_string();
    assert!(message.contains(expected), "{message}");
    assert!(message.contains(&directory.path().display().to_string()), "{message}");
}

#[test]
fn configurations_that_cannot_be_run_are_refused_by_key() {
    assert_config_refused(
        "model_type",
        json!("mamba"),
        "'model_type' is mamba, expected one of llama, mistral, ministral, mistral3, ministral3, mixtral, qwen2, qwen3, ",
    );
    assert_config_refused("hidden_size", json!(null), "'hidden_size' is missing");
    assert_config_refused("hidden_size", json!("wide"), "'hidden_size' is \"wide\", expected a whole number");
    assert_config_refused("num_hidden_layers", json!(0), "'number of layers' is 0");
    assert_config_refused("num_key_value_heads", json!(3), "expected a divisor of the 4 query heads");
    assert_config_refused("head_dim", json!(33), "'head size' is 33");
    assert_config_refused("rms_norm_eps", json!(-1.0), "'RMSNorm epsilon' is -1");
    assert_config_refused("hidden_act", json!("gelu"), "'hidden_act' is \"gelu\"");
    assert_config_refused("attention_bias", json!(true), "model.layers.0.self_attn.q_proj.bias");
    assert_config_refused("mlp_bias", json!(true), "model.layers.0.mlp.gate_proj.bias");
    assert_config_refused("rope_scaling", json!({"rope_type": "yarn"}), "'rope_scaling.factor' is missing");
    assert_config_refused("rope_scaling", json!({"type": "linear"}), "'rope_scaling.factor' is missing");
    assert_config_refused(
        "rope_scaling",
        json!({"type": "linear", "factor": 0}),
        "'RoPE scaling factor' is 0",
    );
    assert_config_refused("rope_scaling", json!("linear"), "expected an object");
    assert_config_refused("rope_scaling", json!({"rope_type": "llama3"}), "'rope_scaling.low_freq_factor'");
    assert_config_refused("rope_parameters", json!({"rope_type": "ntk", "rope_theta": 1e4}), "RoPE scaling");
    assert_config_refused("quantization_config", json!({}), "'quantization_config.quant_method' is missing");
    assert_config_refused("max_position_embeddings", json!(1u64 << 40), "'context length'");
}

#[test]
fn tensors_that_do_not_follow_from_the_configuration_are_refused_by_name() {
    assert_config_refused(
        "num_hidden_layers",
        json!(5),
        "'model.layers.4.input_layernorm.weight' is missing",
    );
    assert_config_refused("num_hidden_layers", json!(3), "the llama forward pass does not use 9 tensors");
    assert_config_refused("vocab_size", json!(511), "has shape [512, 128], expected [511, 128]");
    assert_config_refused("intermediate_size", json!(128), "'model.layers.0.mlp.gate_proj.weight' has shape");
    assert_config_refused("tie_word_embeddings", json!(true), "lm_head.weight");
}

#[test]
fn a_configuration_that_is_not_json_is_refused() {
    let directory = hugging_face(|_| ());
    fs::write(directory.path().join("config.json"), "{").expect("it is written");
    let error =
        ModelFiles::open(directory.path()).and_then(|files| files.load()).err().expect("it is refused");
    assert!(matches!(error, Error::BadContainer { .. }), "{error}");
}

// ---- what is refused: shards ----------------------------------------------------------------------------

const INDEX: &str = "model.safetensors.index.json";
const SECOND: &str = "model-00002-of-00002.safetensors";

/// A copy of the shipped model in two shards.
fn sharded(edit: impl FnOnce(&Path, &mut Value)) -> TempDir {
    let directory = TempDir::new().expect("a temporary directory");
    let original = Path::new(SHIPPED).with_file_name("tiny-llama3").join("hf");
    for file in ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        fs::copy(original.join(file), directory.path().join(file)).expect("it is copied");
    }
    let mut index = serde_json::from_slice(&fs::read(original.join(INDEX)).expect("there")).expect("JSON");
    edit(directory.path(), &mut index);
    fs::write(directory.path().join(INDEX), index.to_string()).expect("it is written");
    directory
}

#[track_caller]
fn assert_shards_refused(edit: impl FnOnce(&Path, &mut Value), expected: &str) {
    let directory = sharded(edit);
    let error =
        ModelFiles::open(directory.path()).and_then(|files| files.load()).err().expect("it is refused");
    let message = error.to_string();
    assert!(message.contains(expected) && message.contains(INDEX), "{message}");
}

#[test]
fn shards_that_are_what_their_index_says_are_one_model() {
    let directory = sharded(|_, _| ());
    let files = ModelFiles::open(directory.path()).expect("it opens");
    assert_eq!(files.weights().len(), 2);
    assert_eq!(files.sha256(), variant("tiny-llama3-hf").sha256());
    files.load().expect("it loads");
}

/// The specification's order: an index goes before a whole file of the same folder, and a note says that both are there.
#[test]
fn an_index_goes_before_a_file_of_all_weights() {
    let whole = |directory: &Path, _: &mut Value| {
        let shard = fs::read(directory.join(SECOND)).expect("there");
        fs::write(directory.join("model.safetensors"), &shard).expect("it is written");
    };
    let directory = sharded(whole);
    let loaded =
        ModelFiles::open(directory.path()).expect("it is a model").load().expect("the shards are whole");
    assert!(
        loaded.notes.iter().any(|note| note.contains("both model.safetensors and an index of shards")),
        "{:?}",
        loaded.notes
    );
    let alone = sharded(|_, _| ());
    let loaded = ModelFiles::open(alone.path()).expect("it is a model").load().expect("it loads");
    assert_eq!(loaded.notes, Vec::<String>::new());
}

fn with_config(model: &str, edit: impl FnOnce(&mut Value)) -> Result<LoadedModel, String> {
    let directory = TempDir::new().expect("a temporary directory");
    let original = Path::new(SHIPPED).with_file_name(model).join("hf");
    let mut config =
        serde_json::from_slice(&fs::read(original.join("config.json")).expect("there")).expect("JSON");
    edit(&mut config);
    fs::copy(original.join("model.safetensors"), directory.path().join("model.safetensors"))
        .expect("it is copied");
    fs::write(directory.path().join("config.json"), config.to_string()).expect("it is written");
    ModelFiles::open(directory.path()).and_then(|files| files.load()).map_err(|error| error.to_string())
}

#[test]
fn a_text_part_of_another_architecture_is_refused() {
    let typed = |name: &'static str| {
        with_config("tiny-gemma3-vision", move |config| config["text_config"]["model_type"] = json!(name))
            .err()
    };
    let message = typed("falcon").expect("it is refused");
    assert!(message.contains("'text_config.model_type' is falcon, expected one of gemma3_text"), "{message}");
    assert_eq!(typed("gemma3_text"), None);
    let without = with_config("tiny-gemma3-vision", |config| {
        config["text_config"].as_object_mut().expect("an object").remove("model_type");
    });
    assert!(without.is_ok(), "the whole has a type of its own");
}

#[test]
fn what_is_taken_for_a_missing_key_is_noted() {
    let notes = |model: &str, key: &'static str, value: Value| {
        with_config(model, move |config| config[key] = value).expect("it loads").notes
    };
    let eps = notes("tiny-llama2", "rms_norm_eps", Value::Null);
    assert!(eps.len() == 1 && eps[0].contains("rms_norm_eps: using transformers' default, 1e-6"), "{eps:?}");
    let scalar = notes("tiny-gemma3", "query_pre_attn_scalar", Value::Null);
    assert!(
        scalar.len() == 1 && scalar[0].contains("query_pre_attn_scalar: using transformers' default, 256"),
        "{scalar:?}"
    );
    assert_eq!(notes("tiny-gemma3", "query_pre_attn_scalar", json!(16)), Vec::<String>::new());
}

#[test]
fn shards_that_are_not_what_their_index_says_are_refused() {
    const TENSOR: &str = "model.norm.weight";
    let remove =
        |directory: &Path, _: &mut Value| fs::remove_file(directory.join(SECOND)).expect("it was there");
    assert_shards_refused(remove, "get the missing shard");
    let unlist = |_: &Path, index: &mut Value| {
        index["weight_map"].as_object_mut().expect("a map").remove(TENSOR).expect("it was listed");
    };
    assert_shards_refused(unlist, "'weight_map.model.norm.weight' is nowhere");
    let invent = |_: &Path, index: &mut Value| index["weight_map"]["model.extra.weight"] = json!(SECOND);
    assert_shards_refused(invent, "a shard with this tensor");
    let swap = |_: &Path, index: &mut Value| {
        let place = index["weight_map"][TENSOR].as_str().expect("a name");
        let other = if place == SECOND { "model-00001-of-00002.safetensors" } else { SECOND };
        index["weight_map"][TENSOR] = json!(other);
    };
    assert_shards_refused(swap, "index and shards are from different checkpoints");
    let escape = |_: &Path, index: &mut Value| index["weight_map"][TENSOR] = json!("../../etc/passwd");
    assert_shards_refused(escape, "expected a file in the same folder");
    assert_shards_refused(|_, index| *index = json!({}), "missing field `weight_map`");
    assert_shards_refused(|_, index| *index = json!({"weight_map": {}}), "'weight_map' is empty");
}

// ---- what is refused: GGUF files ------------------------------------------------------------------------

/// The shipped F32 file with every occurrence of some bytes replaced by as many others.
fn gguf(replace: &[u8], by: &[u8]) -> ModelFiles {
    assert_eq!(replace.len(), by.len(), "offsets must stay what they are");
    let mut bytes = fs::read(Path::new(SHIPPED).join("tiny-llama2-f32.gguf")).expect("it is there");
    let places: Vec<usize> = bytes
        .windows(replace.len())
        .enumerate()
        .filter(|(_, found)| *found == replace)
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty(), "there is something to replace");
    places.into_iter().for_each(|at| bytes[at..at + by.len()].copy_from_slice(by));
    ModelFiles::Gguf(FileBytes { path: "changed.gguf".into(), data: bytes.into() })
}

#[track_caller]
fn assert_gguf_refused(replace: &str, by: &str, expected: &str) {
    let message = gguf(replace.as_bytes(), by.as_bytes()).load().err().expect("it is refused").to_string();
    assert!(message.contains(expected) && message.contains("changed.gguf"), "{message}");
}

#[test]
fn gguf_files_that_cannot_be_run_are_refused_by_key_or_tensor() {
    assert_gguf_refused(
        "blk.3.ffn_down.weight",
        "blk.3.ffn_dowm.weight",
        "'blk.3.ffn_down.weight' is missing",
    );
    assert_gguf_refused("llama.block_count", "llama.block_cound", "'llama.block_count' is missing");
    assert_gguf_refused(
        "llama.embedding_length",
        "llama.embedding_lenght",
        "'llama.embedding_length' is missing",
    );
    assert_gguf_refused("general.architecture", "general.architecturf", "'general.architecture' is missing");
}

#[test]
fn another_architecture_is_refused_and_the_supported_ones_are_named() {
    let mut value = 5u64.to_le_bytes().to_vec();
    value.extend(b"llama");
    let mut other = 5u64.to_le_bytes().to_vec();
    other.extend(b"mamba");
    let message = gguf(&value, &other).load().err().expect("it is refused").to_string();
    assert!(message.contains("'general.architecture' is mamba, expected one of llama"), "{message}");
}

#[test]
fn a_nan_scale_of_a_quantised_block_is_refused_by_tensor_block_and_byte() {
    let mut bytes = fs::read(Path::new(SHIPPED).join("tiny-llama2-q8_0.gguf")).expect("it is there");
    let source = FileBytes { path: "sound.gguf".into(), data: bytes.clone().into() };
    let file = Gguf::read(&source).expect("it is sound");
    let tensor = file.tensors.get("blk.2.ffn_up.weight").expect("it is in the file");
    let start = tensor.data.as_ptr() as usize - source.data.as_ptr() as usize;
    bytes[start + 7 * 34..][..2].copy_from_slice(&f16::INFINITY.to_le_bytes());

    let damaged = ModelFiles::Gguf(FileBytes { path: "changed.gguf".into(), data: bytes.into() });
    let message = damaged.load().err().expect("it is refused").to_string();
    let expected = "changed.gguf: tensor 'blk.2.ffn_up.weight' (q8_0): block 7, at byte 238 of its data,";
    assert!(message.starts_with(expected), "{message}");
}

// ---- what cannot be computed ----------------------------------------------------------------------------

#[test]
fn a_weight_dtype_that_the_numerics_do_not_reproduce_is_refused_by_tensor() {
    let mut model = tiny_llama2();
    let table = &model.layers[2].ffn.up.weight;
    let bytes = StoredTensor {
        dtype: DType::I8,
        shape: vec![table.rows, table.cols],
        data: vec![0; 256 * 128].into(),
    };
    model.layers[2].ffn.up.weight = Matrix::from_stored(&bytes).expect("it is whole");
    let llama_cpp = LlamaCpp { kv: KvType::F16 };
    let error =
        engine::run(&model, &llama_cpp, &RunInput::greedy(&[1], 0), &mut ()).expect_err("it is refused");
    let message = error.to_string();
    assert!(message.contains("ffn_up of layer 2: i8"), "{message}");
    assert!(engine::run(&model, &F32, &RunInput::greedy(&[1], 0), &mut ()).is_err(), "and so do others");
}

#[test]
fn tokens_outside_the_vocabulary_and_too_many_tokens_are_refused() {
    let model = tiny_llama2();
    let run = |script: &RunInput| engine::run(&model, &F32, script, &mut ()).expect_err("it is refused");
    let error = run(&RunInput::greedy(&[1, 512], 1));
    assert!(
        matches!(error, Error::Tokenizer(TokenizerError::BadToken { id: 512, position: 1, vocab_size: 512 })),
        "{error}"
    );
    assert!(run(&RunInput::greedy(&[1; 250], 7)).to_string().contains("more than the 256"));
    assert!(run(&RunInput::greedy(&[], 1)).to_string().contains("no tokens"));
}
