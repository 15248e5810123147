//! `manifest.json`: content, producer, model and input tokens of a dump.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::architecture::family;
use crate::checkpoint::{Point, Site, TapAxis};
use crate::dump::{Producer, TensorRow, sketch};
use crate::tensor::RopePairing;

/// The version of the dump format that is written.
pub(super) const VERSION: u32 = 1;
/// The latest version that can be read.
pub(super) const LATEST: u32 = Manifest::LATEST;
pub(super) const FORMAT: &str = "xcheck-dump";
/// Maximum number of layers. A larger number means a damaged manifest.
const MOST_LAYERS: usize = 1 << 16;

/// The manifest of a dump, as in the file. Unknown keys belong to the producer and are ignored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Always "xcheck-dump".
    pub format: String,
    /// Version of the dump format.
    pub version: u32,
    /// The program that made the dump.
    pub producer: Producer,
    /// The model that was run.
    pub model: ModelInfo,
    /// Conventions that hold for all arrays.
    #[serde(default)]
    pub layout: Layout,
    /// The prompt, and how later tokens were chosen.
    pub input: DumpInput,
    /// The forward passes, in order.
    pub passes: Vec<Pass>,
    /// The tokens of the greedy continuation, if recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated: Option<Vec<u32>>,
    /// The arrays.
    pub tensors: Vec<TensorRow>,
    /// Arrays that the model reads besides tokens, by argument. Only the evaluator reads them.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub inputs: Map<String, Value>,
    /// The name or number of the described sequence, in a dump of several sequences.
    #[serde(skip)]
    pub sequence: Option<String>,
}

/// The model a dump was made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelInfo {
    /// A name for display.
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
    /// The pairs of head values that RoPE rotates together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_pairing: Option<RopePairing>,
}

/// The input of the model.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DumpInput {
    /// The prompt's text, if known.
    #[serde(default)]
    pub prompt: String,
    /// The prompt's tokens.
    pub tokens: Vec<u32>,
    /// Rule by which the tokens after the prompt were chosen.
    #[serde(default)]
    pub decode: DecodeMode,
}

/// Rule that chooses the tokens after the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecodeMode {
    /// Each token is the greedy choice of the pass before it.
    #[default]
    Greedy,
    /// The tokens are given, e.g. by a test.
    Forced,
}

/// One forward pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    /// Absolute position of the pass's first token.
    pub position: usize,
    /// The tokens that the pass read.
    pub tokens: Vec<u32>,
    /// The temperature of `probs`. 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
}

impl ModelInfo {
    /// Architecture name of an unknown model.
    pub const UNKNOWN: &str = "unknown";
}

impl Pass {
    /// Returns the position after the last token, which equals the number of positions that attention sees.
    pub fn end(&self) -> usize {
        self.position + self.tokens.len()
    }

    /// Returns the index of the first pass that reaches position `end`. Uses a binary search, because a dump
    /// may have as many passes as tokens.
    pub(crate) fn reaching(passes: &[Self], end: usize) -> Option<usize> {
        let index = passes.partition_point(|pass| pass.end() < end);
        (index < passes.len()).then_some(index)
    }

    /// Returns the index of the pass that ends at `end`, if any.
    pub(crate) fn ending(passes: &[Self], end: usize) -> Option<usize> {
        Self::reaching(passes, end).filter(|&index| passes[index].end() == end)
    }
}

impl Manifest {
    /// The latest version of the dump format. From version 2 on, a dump may record only some rows of a pass.
    pub const LATEST: u32 = 2;

    /// Makes a manifest of version 1 without arrays.
    pub fn new(
        producer: Producer,
        model: ModelInfo,
        layout: Layout,
        input: DumpInput,
        passes: Vec<Pass>,
    ) -> Self {
        let (format, version) = (FORMAT.to_owned(), VERSION);
        let (generated, tensors, inputs, sequence) = (None, Vec::new(), Map::new(), None);
        Self { format, version, producer, model, layout, input, passes, generated, tensors, inputs, sequence }
    }

    /// Checks that ids of top tokens and their log-probabilities are recorded together, with the same rows.
    fn check_named_ids(&self) -> Result<(), String> {
        let of = |point: Point| self.tensors.iter().filter(move |row| row.tap == point.name());
        for (one, other) in [(Point::TopIds, Point::TopLogprobs), (Point::TopLogprobs, Point::TopIds)] {
            let is_its = |row: &&TensorRow, its: &TensorRow| {
                its.pass == row.pass && its.shape == row.shape && its.rows == row.rows
            };
            if let Some(row) = of(one).find(|row| !of(other).any(|its| is_its(row, its))) {
                let pass = row.pass.unwrap_or_default();
                return Err(format!("{one} of pass {pass} needs {other} with the same shape and rows"));
            }
        }
        Ok(())
    }

    /// Checks that the token after each position with a log-probability is known.
    pub(super) fn check_successors(&self) -> Result<(), String> {
        for row in self.tensors.iter().filter(|row| row.tap == Point::TokenLogprobs.name()) {
            let Some(pass) = row.pass.and_then(|pass| self.passes.get(pass)) else { continue };
            let all = || (0..pass.tokens.len()).collect();
            let rows: Vec<usize> = row.rows.clone().unwrap_or_else(all);
            if let Some(last) = rows.iter().find(|&&last| self.token_at(pass.position + last + 1).is_none()) {
                return Err(format!(
                    "{} ({}): entry {last} is for the token after position {}, which is unknown; entry i is \
                     for the token that follows token i of the pass: write one entry less, or list the \
                     entries with \"rows\"",
                    row.tap,
                    row.file,
                    pass.position + last
                ));
            }
        }
        Ok(())
    }

    /// Returns the token at a position, from the passes, the prompt, or the continuation.
    pub(crate) fn token_at(&self, position: usize) -> Option<u32> {
        let pass = position.checked_add(1).and_then(|end| Pass::reaching(&self.passes, end));
        let read = pass.and_then(|pass| {
            let pass = &self.passes[pass];
            pass.tokens.get(position.checked_sub(pass.position)?).copied()
        });
        let prompt = &self.input.tokens;
        let chosen = || self.generated.as_ref()?.get(position.checked_sub(prompt.len())?).copied();
        read.or_else(|| prompt.get(position).copied()).or_else(chosen)
    }

    /// Returns the canonical name of the model's architecture. Config files use various names for it.
    pub fn architecture(&self) -> &str {
        family(&self.model.architecture)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        self.check_passes()?;
        let mut seen = HashSet::new();
        for (index, row) in self.tensors.iter().enumerate() {
            let place = |problem| format!("tensors[{index}] ({}): {problem}", row.file);
            let site = self.check_row(row).map_err(place)?;
            if !seen.insert(site) {
                return Err(place(format!("{site} is listed twice")));
            }
        }
        self.check_named_ids()
    }

    /// Returns true if the model reads arrays in place of tokens, as a vision tower does.
    fn is_of_arrays(&self) -> bool {
        !self.inputs.is_empty() && self.tensors.iter().all(|row| row.module.is_some())
    }

    /// Checks that passes start with the prompt, and that each continues where the previous one ended.
    pub(super) fn check_passes(&self) -> Result<(), String> {
        let mut position = 0;
        for (index, pass) in self.passes.iter().enumerate() {
            if pass.tokens.is_empty() && !self.is_of_arrays() {
                return Err(format!("passes[{index}] has no tokens"));
            }
            if pass.position != position {
                return Err(format!(
                    "passes[{index}] starts at position {}, expected {position}",
                    pass.position
                ));
            }
            if pass.temperature.is_some_and(|t| !(t > 0.0 && t.is_finite())) {
                return Err(format!(
                    "passes[{index}] has an invalid temperature, expected a positive number"
                ));
            }
            position += pass.tokens.len();
        }
        let read: Vec<u32> = self.passes.iter().flat_map(|pass| &pass.tokens).copied().collect();
        let both = read.len().min(self.input.tokens.len());
        if self.passes.is_empty() || read[..both] != self.input.tokens[..both] {
            return Err("the tokens of the passes differ from input.tokens".into());
        }
        Ok(())
    }

    fn check_row(&self, row: &TensorRow) -> Result<Site, String> {
        let site = row.site()?;
        row.dtype()?;
        if site.pass.is_some_and(|pass| pass >= self.passes.len()) {
            return Err(format!("pass {} does not exist", site.pass.unwrap_or_default()));
        }
        if let Some(layer) = site.layer.filter(|&layer| layer >= MOST_LAYERS) {
            return Err(format!("invalid layer {layer}: no model has so many layers"));
        }
        if row.sketch && (row.axes.is_some() || !sketch::is_sketched(site.point)) {
            return Err(
                "\"sketch\" cannot be used with token ids, log-probabilities, attn_scores, or an array with \
                    \"axes\""
                    .into(),
            );
        }
        row.check_parts()?;
        if row.size().is_none() {
            return Err(format!("shape {:?} is too large", row.shape));
        }
        if row.module.is_some() {
            let has_other = row.sketch
                || row.rows.is_some()
                || row.axes.is_some()
                || row.scale.is_some()
                || row.of.is_some()
                || row.computed.is_some()
                || row.step.is_some();
            let problem = "\"sketch\", \"rows\", \"axes\", \"scale\", \"of\", \"computed\" and \"step\" cannot be used with the output of a module; write all of its values";
            return if has_other { Err(problem.to_owned()) } else { Ok(site) };
        }
        let axes = row.axes()?;
        if axes.len() != row.shape.len() {
            let names = TapAxis::names(axes);
            return Err(format!(
                "shape {:?} does not match the axes [{}]; state other axes with \"axes\"",
                row.shape,
                names.join(", ")
            ));
        }
        if site.point == Point::TokenLogprobs && row.shape.contains(&0) {
            return Err("the array is empty; omit it if no token of the pass is followed by another".into());
        }
        for (axis, &length) in axes.iter().zip(&row.shape) {
            self.check_length(site, row, *axis, length)?;
        }
        Ok(site)
    }

    /// Checks the length of an axis against its pass. The number of keys is not checked here, because a
    /// difference is a finding.
    fn check_length(&self, site: Site, row: &TensorRow, axis: TapAxis, length: usize) -> Result<(), String> {
        let pass = site.pass.map(|pass| &self.passes[pass]);
        let expected = match (axis, pass, &row.rows) {
            (TapAxis::Batch, ..) => Some(1),
            (TapAxis::Token, Some(pass), Some(rows)) => {
                check_rows(rows, pass.tokens.len())?;
                Some(rows.len())
            }
            (TapAxis::Token, Some(pass), None) => Some(pass.tokens.len()),
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

/// Checks that rows of a pass are listed in ascending order and exist.
pub(super) fn check_rows(rows: &[usize], tokens: usize) -> Result<(), String> {
    let is_ascending = rows.windows(2).all(|two| two[0] < two[1]);
    if is_ascending && rows.last().is_some_and(|&last| last < tokens) {
        return Ok(());
    }
    Err(format!("invalid \"rows\" {rows:?}, expected ascending row numbers below {tokens}"))
}
