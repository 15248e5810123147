//! What a dump says of the run: the engine, the model, what was read.

use std::fmt;

/// The engine, the model and what it reads.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// The engine's name.
    pub producer: String,
    /// Its version.
    pub version: String,
    /// The model's family: gpt2, llama, qwen3, gemma3, bitnet …
    pub architecture: String,
    /// A name of the model, for people.
    pub model: String,
    /// SHA-256 of its weight files, concatenated in file-name order.
    pub sha256: Option<String>,
    /// What changes the numbers: dtype, kv_cache, weights, threads …
    pub settings: Vec<(String, String)>,
    /// How heads lie, of a model with RoPE.
    pub rope_pairing: Option<RopePairing>,
    /// The prompt; none: what the first pass reads. Several, or [`Dump::pass_of`](crate::Dump::pass_of), make a dump of version 2.
    pub sequences: Vec<Sequence>,
}

impl Meta {
    /// What there has to be: who computes, and a model of which family.
    pub fn new(producer: impl Into<String>, architecture: impl Into<String>) -> Self {
        Self { producer: producer.into(), architecture: architecture.into(), ..Self::default() }
    }
}

/// Which two values of a head RoPE rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// (i, i + d/2), as transformers.
    Half,
    /// (2i, 2i + 1), as llama.cpp's llama.
    Interleaved,
}

impl fmt::Display for RopePairing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Half => "half",
            Self::Interleaved => "interleaved",
        })
    }
}

/// A prompt, and how it goes on.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    /// A name for people; of several sequences.
    pub name: Option<String>,
    /// The text, if there is one.
    pub prompt: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// How the tokens after these came about.
    pub decode: Decode,
}

impl Sequence {
    /// A prompt of these tokens.
    pub fn new(tokens: &[u32]) -> Self {
        Self { tokens: tokens.to_vec(), ..Self::default() }
    }
}

/// How the tokens after the prompt came about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decode {
    /// Each is the greedy choice of the pass before it.
    #[default]
    Greedy,
    /// They were given.
    Forced,
}
