//! `manifest.json`: what a dump holds, who made it, of which model, from which tokens.

use std::collections::HashSet;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use crate::checkpoint::{Axis, Site};
use crate::dump::{Producer, TensorRow, sketch};
use crate::error::{Error, Result};
use crate::tensor::RopePairing;

/// The only version of the contract there is.
const VERSION: u32 = 1;
/// The name of the contract.
const FORMAT: &str = "xcheck-dump";
/// More layers than any model has. A larger number is damage, and nothing that counts layers need expect it.
const MOST_LAYERS: usize = 1 << 16;

/// The manifest of a dump, as it stands in the file. Unknown keys are a producer's own and ignored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Always "xcheck-dump".
    pub format: String,
    /// Version of the contract.
    pub version: u32,
    /// The program that made the dump.
    pub producer: Producer,
    /// The model it ran.
    pub model: ModelInfo,
    /// Conventions that hold for all arrays.
    #[serde(default)]
    pub layout: Layout,
    /// What the model read.
    pub input: Input,
    /// The forward passes, in order.
    pub passes: Vec<Pass>,
    /// The greedy continuation, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated: Option<Vec<u32>>,
    /// The arrays.
    pub tensors: Vec<TensorRow>,
}

/// The model a dump was made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelInfo {
    /// A name for people.
    #[serde(default)]
    pub name: String,
    /// The family: llama, qwen3, gemma3, gpt2, bitnet …
    pub architecture: String,
    /// SHA-256 of the weight files, concatenated in file-name order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// Conventions that hold for all arrays of a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// Which two values of a head RoPE rotates together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_pairing: Option<RopePairing>,
}

/// What the model read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Input {
    /// The text the tokens came from, if any.
    #[serde(default)]
    pub prompt: String,
    /// The prompt's tokens.
    pub tokens: Vec<u32>,
    /// How the tokens after the prompt came about.
    #[serde(default)]
    pub decode: Decode,
}

/// How the tokens after the prompt came about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decode {
    /// Each is the greedy choice of the pass before it.
    #[default]
    Greedy,
    /// They were given.
    Forced,
}

/// One forward pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    /// Absolute position of its first token.
    pub position: usize,
    /// The tokens it read.
    pub tokens: Vec<u32>,
    /// The temperature of its `probs`; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
}

impl Pass {
    /// The position after its last token: how many positions attention sees.
    pub fn end(&self) -> usize {
        self.position + self.tokens.len()
    }
}

impl Manifest {
    /// A manifest without arrays, of this version of the contract.
    pub fn new(
        producer: Producer,
        model: ModelInfo,
        layout: Layout,
        input: Input,
        passes: Vec<Pass>,
    ) -> Self {
        let (format, version) = (FORMAT.to_owned(), VERSION);
        Self { format, version, producer, model, layout, input, passes, generated: None, tensors: Vec::new() }
    }

    /// Reads and checks a manifest; `dump` is named in messages.
    ///
    /// # Errors
    /// If it is not JSON of the contract's form, or contradicts itself.
    pub fn parse(json: &[u8], dump: &Path) -> Result<Self> {
        let refuse = |problem: String| Error::dump(dump, format!("manifest: {problem}"));
        let manifest: Self = serde_json::from_slice(json).map_err(|error| refuse(error.to_string()))?;
        manifest.check().map_err(refuse)?;
        Ok(manifest)
    }

    /// The family name that tables and messages use for what config files call by many names.
    pub fn architecture(&self) -> &str {
        family(&self.model.architecture)
    }

    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("format is '{}', expected '{FORMAT}'", self.format));
        }
        if self.version != VERSION {
            return Err(format!("version {} is not supported; this reads version {VERSION}", self.version));
        }
        self.check_passes()?;
        let mut seen = HashSet::new();
        for (index, row) in self.tensors.iter().enumerate() {
            let place = |problem| format!("tensors[{index}] ({}): {problem}", row.file);
            let site = self.check_row(row).map_err(place)?;
            if !seen.insert(site) {
                return Err(place(format!("{site} is listed twice")));
            }
        }
        Ok(())
    }

    /// Passes must read on where the one before stopped, and begin with the prompt.
    fn check_passes(&self) -> Result<(), String> {
        let mut position = 0;
        for (index, pass) in self.passes.iter().enumerate() {
            if pass.tokens.is_empty() {
                return Err(format!("passes[{index}] has no tokens"));
            }
            if pass.position != position {
                return Err(format!("passes[{index}] is at position {}, expected {position}", pass.position));
            }
            if pass.temperature.is_some_and(|t| !(t > 0.0 && t.is_finite())) {
                return Err(format!("passes[{index}] has a temperature that is not a positive number"));
            }
            position += pass.tokens.len();
        }
        let read: Vec<u32> = self.passes.iter().flat_map(|pass| &pass.tokens).copied().collect();
        let both = read.len().min(self.input.tokens.len());
        if self.passes.is_empty() || read[..both] != self.input.tokens[..both] {
            return Err("the passes do not read input.tokens".into());
        }
        Ok(())
    }

    fn check_row(&self, row: &TensorRow) -> Result<Site, String> {
        let site = row.site()?;
        row.dtype()?;
        if site.pass.is_some_and(|pass| pass >= self.passes.len()) {
            return Err(format!("there is no pass {}", site.pass.unwrap_or_default()));
        }
        if let Some(layer) = site.layer.filter(|&layer| layer >= MOST_LAYERS) {
            return Err(format!("no model has a layer {layer}"));
        }
        if row.sketch && (row.axes.is_some() || !sketch::is_sketched(site.point)) {
            return Err(
                "there is no sketch of token ids, of attn_scores, or of an array with axes of its own".into(),
            );
        }
        let axes = row.axes()?;
        if axes.len() != row.shape.len() {
            let names: Vec<_> = axes.iter().map(|axis| axis.name()).collect();
            return Err(format!(
                "shape {:?} does not have the axes [{}]; name others with \"axes\"",
                row.shape,
                names.join(", ")
            ));
        }
        if row.size().is_none() {
            return Err(format!("shape {:?} is too large", row.shape));
        }
        for (axis, &length) in axes.iter().zip(&row.shape) {
            self.check_length(site, *axis, length)?;
        }
        check_inside(&row.file)?;
        Ok(site)
    }

    /// An axis is as long as its pass says, where a pass says it. How many keys attention looked at is a finding, not
    /// a contradiction.
    fn check_length(&self, site: Site, axis: Axis, length: usize) -> Result<(), String> {
        let pass = site.pass.map(|pass| &self.passes[pass]);
        let expected = match (axis, pass) {
            (Axis::Batch, _) => Some(1),
            (Axis::Token, Some(pass)) => Some(pass.tokens.len()),
            _ => None,
        };
        let is_right = expected.map_or(length > 0 || site.pass.is_none(), |expected| length == expected);
        if is_right {
            return Ok(());
        }
        let expected = expected.map_or("at least 1".to_owned(), |expected| expected.to_string());
        Err(format!("axis '{}' has length {length}, expected {expected}", axis.name()))
    }
}

/// A file of the dump must lie inside it.
fn check_inside(file: &str) -> Result<(), String> {
    let inside = Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
    if inside && !file.is_empty() {
        return Ok(());
    }
    Err(format!("file '{file}' is not a plain path inside the dump"))
}

/// The family of an architecture name as config files, GGUF metadata and dumps write it.
pub fn family(architecture: &str) -> &str {
    match architecture {
        "gemma3_text" | "Gemma3ForCausalLM" | "Gemma3ForConditionalGeneration" => "gemma3",
        "llama2" | "llama3" | "LlamaForCausalLM" => "llama",
        "Qwen3ForCausalLM" => "qwen3",
        "GPT2LMHeadModel" => "gpt2",
        "BitNetForCausalLM" => "bitnet",
        name if name.starts_with("bitnet") => "bitnet",
        name => name,
    }
}
