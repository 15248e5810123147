//! `manifest.json`: what a dump holds, who made it, of which model, from which tokens.

use std::collections::HashSet;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use crate::checkpoint::{Axis, Point, Scope, Site};
use crate::error::{Error, Result};
use crate::tensor::RopePairing;
use crate::weight::DType;

/// The only version of the contract there is.
const VERSION: u32 = 1;
/// The name of the contract.
const FORMAT: &str = "xcheck-dump";

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

/// The program that made a dump.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Producer {
    /// "transformers", "llama.cpp", "xcheck", …
    pub name: String,
    /// Its version.
    #[serde(default)]
    pub version: String,
    /// Whatever changes the numbers: dtype, KV cache type, threads …
    #[serde(default)]
    pub settings: serde_json::Map<String, serde_json::Value>,
}

impl Producer {
    /// The precision under which tolerances are looked up, as far as the settings say it: the weights' type, unless
    /// they are of several, or the torch dtype of weights and activations.
    pub fn precision(&self) -> Option<&str> {
        match (self.setting("weights"), self.setting("dtype")) {
            (Some(weights), _) => DType::named(weights).map(DType::name),
            (None, Some("bf16")) => Some("torch-bf16"),
            (None, Some("f16")) => Some("torch-f16"),
            (None, dtype) => dtype,
        }
    }

    /// One setting as text, if it is there.
    pub fn setting(&self, key: &str) -> Option<&str> {
        self.settings.get(key)?.as_str()
    }
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

/// One array of a dump.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TensorRow {
    /// The tap point's name.
    pub tap: String,
    /// The pass, for all but `generated`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<usize>,
    /// The layer, for taps inside a layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<usize>,
    /// Element type.
    pub dtype: String,
    /// Length of each axis, outermost first.
    pub shape: Vec<usize>,
    /// Where it is: a path inside the dump.
    pub file: String,
    /// What the axes count, where that differs from the tap point's own axes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axes: Option<Vec<String>>,
}

impl TensorRow {
    /// The place in the forward pass, or why it has none.
    pub fn site(&self) -> Result<Site, String> {
        let point: Point = self.tap.parse()?;
        if point == Point::Tokens {
            return Err(
                "tap 'tokens' is no array of a dump; the prompt's tokens stand in input.tokens".into()
            );
        }
        let (layer, pass) = match point.scope() {
            Scope::Layer => (true, true),
            Scope::Pass => (false, true),
            Scope::Run => (false, false),
        };
        if layer != self.layer.is_some() || pass != self.pass.is_some() {
            let wants = |wanted| if wanted { "one" } else { "no" };
            return Err(format!("tap '{point}' has {} layer and {} pass number", wants(layer), wants(pass)));
        }
        Ok(Site { point, layer: self.layer, pass: self.pass })
    }

    /// The element type, one of the six the contract knows.
    pub fn dtype(&self) -> Result<DType, String> {
        let known = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::U32, DType::I32];
        known
            .into_iter()
            .find(|dtype| dtype.name() == self.dtype)
            .ok_or_else(|| format!("dtype '{}' is not one of f32, f64, f16, bf16, u32, i32", self.dtype))
    }

    /// Bytes of its elements; no more than a number can say.
    pub fn size(&self) -> u64 {
        let width = self.dtype().map_or(0, DType::block_bytes);
        self.shape.iter().fold(width as u64, |size, &length| size.saturating_mul(length as u64))
    }

    /// What its axes count.
    pub fn axes(&self) -> Result<Vec<Axis>, String> {
        let Some(names) = &self.axes else { return Ok(self.tap.parse::<Point>()?.axes().to_vec()) };
        let parse = |name: &String| name.parse().map_err(|()| format!("no axis is named '{name}'"));
        names.iter().map(parse).collect()
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
        let axes = row.axes()?;
        if axes.len() != row.shape.len() {
            let names: Vec<_> = axes.iter().map(|axis| axis.name()).collect();
            return Err(format!(
                "shape {:?} does not have the axes [{}]; name others with \"axes\"",
                row.shape,
                names.join(", ")
            ));
        }
        if row.shape.iter().try_fold(1usize, |size, &length| size.checked_mul(length)).is_none() {
            return Err(format!("shape {:?} is too large", row.shape));
        }
        for (axis, &length) in axes.iter().zip(&row.shape) {
            self.check_length(site, *axis, length)?;
        }
        check_inside(&row.file)?;
        Ok(site)
    }

    /// An axis is as long as its pass says, where a pass says it.
    fn check_length(&self, site: Site, axis: Axis, length: usize) -> Result<(), String> {
        let pass = site.pass.map(|pass| &self.passes[pass]);
        let expected = match (axis, pass) {
            (Axis::Batch, _) => Some(1),
            (Axis::Token, Some(pass)) => Some(pass.tokens.len()),
            (Axis::Key, Some(pass)) => Some(pass.end()),
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
        "gemma3_text" => "gemma3",
        name if name.starts_with("bitnet") => "bitnet",
        name => name,
    }
}
