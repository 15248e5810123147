//! Files embedded in the program: the minimum for the main command to work on a machine without other files.

/// A file of `checkpoints`: its path and content.
pub(super) type EmbeddedFile = (&'static str, &'static [u8]);

macro_rules! embedded {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/", $path)).as_slice())),*]
    };
}

/// A trained model in its smallest format, with a dump by llama.cpp. `include` in `Cargo.toml` packages
/// exactly these files.
pub(super) static FILES: &[EmbeddedFile] = embedded![
    "tiny-llama2/README.md",
    "tiny-llama2/dumps/llama.cpp-q8_0.safetensors",
    "tiny-llama2/tiny-llama2-q8_0.gguf",
];
