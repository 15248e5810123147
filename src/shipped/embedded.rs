//! What is inside the program: the least that the main job needs on a machine that has nothing else.

/// A file of `checkpoints`, by its path there, and its bytes.
pub(super) type File = (&'static str, &'static [u8]);

macro_rules! embedded {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/", $path)).as_slice())),*]
    };
}

/// A trained model in two formats, each with references: the list of `Cargo.toml` packs these and no others.
pub(super) const FILES: &[File] = embedded![
    "tiny-llama2/README.md",
    "tiny-llama2/dumps/llama.cpp-q8_0.safetensors",
    "tiny-llama2/dumps/transformers-bf16.safetensors",
    "tiny-llama2/dumps/transformers-f32.safetensors",
    "tiny-llama2/hf/config.json",
    "tiny-llama2/hf/generation_config.json",
    "tiny-llama2/hf/model.safetensors",
    "tiny-llama2/hf/tokenizer.json",
    "tiny-llama2/hf/tokenizer.model",
    "tiny-llama2/hf/tokenizer_config.json",
    "tiny-llama2/tiny-llama2-q8_0.gguf",
];
