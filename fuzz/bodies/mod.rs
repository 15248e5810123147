//! What is fuzzed: one function for each target, of bytes. A panic is a find, and so is a judge that is taken in.
//!
//! `fuzz/fuzz_targets` calls them from libFuzzer, and `tests/robust/fuzz.rs` from an ordinary test, with the corpus.
#![allow(dead_code)] // each target uses its own

pub mod build;
#[allow(clippy::duplicate_mod)] // the targets are programs of their own
#[path = "../../tests/judge/clay.rs"]
pub mod clay;
pub mod folder;
pub mod judge;
pub mod readers;

/// A target: true if the reader took the input, false if it refused it.
pub type Body = fn(&[u8]) -> bool;

/// All of them, by the names of their files and of the folders of their corpora.
pub const ALL: [(&str, Body); 18] = [
    ("baseline", readers::baseline),
    ("folder", folder::folder),
    ("gguf", readers::gguf),
    ("gguf_built", readers::gguf_built),
    ("judge", judge::judge),
    ("kld", readers::kld),
    ("llama2c", readers::llama2c),
    ("manifest", readers::manifest),
    ("manifest_built", readers::manifest_built),
    ("map", readers::map),
    ("npy", readers::npy),
    ("npz_built", readers::npz_built),
    ("parquet", readers::parquet),
    ("pytorch", readers::pytorch),
    ("report", readers::report),
    ("safetensors", readers::safetensors),
    ("stream", readers::stream),
    ("tokenizer", readers::tokenizer),
];
