//! Every name of `tokenizer.ggml.pre` that is known, against what llama.cpp makes of hard texts with one vocabulary.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use xcheck::Result;
use xcheck::format::{FileBytes, Gguf};
use xcheck::tokenizer::{Tokenizer, from_gguf};

/// What `reference-scripts/vectors/make_pre_tokenizer_vectors.py` wrote.
#[derive(Deserialize)]
struct Vectors {
    texts: Vec<String>,
    /// By name, the beginning of SHA-256 of the ids of each text.
    ids: BTreeMap<String, Vec<String>>,
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizers/pre"))
}

fn vectors() -> Vectors {
    let file = std::fs::read(folder().join("vectors.json")).expect("it is committed");
    serde_json::from_slice(&file).expect("the script writes JSON")
}

/// The vocabulary under another name. No tensors follow that would have to be aligned.
fn named(name: &str) -> Result<Box<dyn Tokenizer>> {
    const KEY: &[u8] = b"tokenizer.ggml.pre\x08\0\0\0";
    let file = std::fs::read(folder().join("vocabulary.gguf")).expect("it is committed");
    let key = file.windows(KEY.len()).position(|bytes| bytes == KEY).expect("the key is there") + KEY.len();
    let length = u64::from_le_bytes(file[key..key + 8].try_into().expect("eight bytes")) as usize;
    let value = [&(name.len() as u64).to_le_bytes(), name.as_bytes()].concat();
    let renamed = [&file[..key], &value, &file[key + 8 + length..]].concat();
    let path = folder().join("vocabulary.gguf");
    let gguf =
        Gguf::read(&FileBytes { data: renamed.into(), ..FileBytes::open(&path).expect("it is there") })?;
    from_gguf(&gguf).map(|tokenizer| tokenizer.expect("it has one"))
}

fn digest(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    hex::encode(Sha256::digest(bytes))[..8].to_owned()
}

fn digests(tokenizer: &dyn Tokenizer, texts: &[String]) -> Vec<String> {
    texts.iter().map(|text| digest(&tokenizer.encode(text, true).expect("it is a text"))).collect()
}

/// Those of which llama.cpp makes something that no pattern says: an engine of its own, or classes of letters that it takes for others.
const NOT_KNOWN: [&str; 6] = ["cohere2moe", "deepseek-llm", "kimi-k2", "tiny_aya", "youtu", "whitespace"];

#[test]
fn every_known_bpe_pre_tokenizer_splits_every_text_as_llama_cpp_does() {
    let Vectors { texts, ids } = vectors();
    assert!(texts.len() > 150 && ids.len() > 80, "{} texts, {} names", texts.len(), ids.len());
    for (name, expected) in ids.iter().filter(|(name, _)| !NOT_KNOWN.contains(&name.as_str())) {
        let tokenizer = named(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        for ((text, expected), found) in texts.iter().zip(expected).zip(digests(&*tokenizer, &texts)) {
            assert_eq!(*expected, found, "{name}: {text:?}");
        }
    }
}

#[test]
fn a_name_that_is_not_known_is_refused_with_those_that_are() {
    for name in NOT_KNOWN.into_iter().chain(["nobody-knows"]) {
        let message = named(name).err().unwrap_or_else(|| panic!("{name} is known")).to_string();
        assert!(message.contains(name) && message.contains("smollm"), "{message}");
    }
}

/// Otherwise one name could stand for another, and no text would tell.
#[test]
fn the_texts_tell_the_patterns_apart() {
    let Vectors { ids, .. } = vectors();
    let mut rows: Vec<&Vec<String>> = ids.values().collect();
    rows.sort();
    rows.dedup();
    assert!(rows.len() >= 28, "{}", rows.len());
    for (one, other) in [
        ("gpt-2", "smollm"),
        ("llama-bpe", "dbrx"),
        ("dbrx", "glm4"),
        ("qwen2", "qwen35"),
        ("tekken", "gpt-4o"),
        ("falcon", "default"),
        ("deepseek-v3", "spark2_5"),
    ] {
        assert_ne!(ids[one], ids[other], "{one} and {other}");
    }
}
