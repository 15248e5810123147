//! Known end-to-end cases: a prompt, its tokens, and the expected greedy continuation of a model.

use std::path::Path;

use serde::Deserialize;

use crate::dump::{Dump, DumpInput, Layout, Manifest, ModelInfo, Pass, Producer};
use crate::error::{Error, Result};
use crate::input;
use crate::model::Dimensions;

/// Shipped cases, taken from the specifications.
const SHIPPED: &str = include_str!("../checkpoints/cases.toml");

/// A prompt with its known continuation, as observed in another program.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Unique name of the case.
    pub name: String,
    /// Names of the models that the case applies to.
    pub models: Vec<String>,
    /// Text of the prompt.
    pub prompt: String,
    /// Token ids of the prompt, with those that the tokenizer adds.
    pub tokens: Vec<u32>,
    /// Text of the continuation, for people; empty if unknown.
    #[serde(default)]
    pub continuation: String,
    /// Token ids of the greedy continuation; empty if unknown.
    #[serde(default)]
    pub generated: Vec<u32>,
    /// Source of the case.
    pub source: String,
    /// Sizes of these models. A model with the same sizes is recognised under any name.
    #[serde(default)]
    pub sizes: Vec<ModelSizes>,
    /// A note on how the case was found.
    #[serde(skip)]
    pub note: Option<String>,
}

/// Sizes that identify a model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSizes {
    architecture: String,
    vocab_size: usize,
    context_length: usize,
    n_layers: usize,
    hidden_size: usize,
    n_heads: usize,
    n_kv_heads: usize,
}

impl ModelSizes {
    fn are_of(&self, architecture: &str, sizes: Dimensions) -> bool {
        self.architecture == architecture
            && self.vocab_size == sizes.vocab_size
            && self.context_length == sizes.context_length
            && self.n_layers == sizes.n_layers
            && self.hidden_size == sizes.hidden_size
            && self.n_heads == sizes.n_heads
            && self.n_kv_heads == sizes.kv_heads()
    }
}

/// Returns only the letters and digits of a name, in lower case.
fn condensed(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Words in model names that describe the storage format.
const FORMATS: [&str; 9] = ["hf", "gguf", "safetensors", "bin", "f32", "f16", "fp16", "fp32", "bf16"];

fn is_format(word: &str) -> bool {
    let word = word.to_lowercase();
    let is_quantised = ["q", "iq", "tq"].iter().any(|start| {
        word.strip_prefix(start).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    });
    is_quantised || FORMATS.contains(&word.as_str())
}

/// Returns true if a name contains all words of a known name, and otherwise only words for formats. A name with
/// another word, such as `chat`, may belong to a fine-tuned model.
fn is_called(name: &str, known: &str) -> bool {
    let words = |part: &str| -> String {
        let words = part.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.filter(|word| !is_format(word)).map(condensed).collect()
    };
    let repository = name.rsplit('/').next().unwrap_or(name);
    let mut parts = repository.split(':').map(words).filter(|words| !words.is_empty()).peekable();
    parts.peek().is_some() && parts.all(|words| words == condensed(known))
}

/// Known cases with unique names.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cases {
    case: Vec<Case>,
}

impl Cases {
    /// Returns the shipped cases.
    pub fn shipped() -> Self {
        parse(SHIPPED).expect("the shipped cases are parsed by a test")
    }

    /// Adds the cases of a file.
    ///
    /// # Errors
    /// If the file cannot be read or is invalid, a case has no tokens, or a name already exists.
    pub(crate) fn and(mut self, file: &Path) -> Result<Self> {
        let text = input::text(file)?;
        let refuse = |problem: String| Error::Usage(format!("{}: {problem}", file.display()));
        self.case.extend(parse(&text).map_err(refuse)?.case);
        self.check().map_err(refuse)?;
        Ok(self)
    }

    /// Returns the cases of a model, found by its name or by its sizes. A model that matches only by its sizes may be
    /// fine-tuned, so only its tokenizer is checked, not its continuation.
    pub fn of_model(&self, name: &str, architecture: &str, sizes: Dimensions) -> Vec<Case> {
        let has_name = |case: &Case| case.models.iter().any(|known| known == name);
        let is_called_alike = |case: &Case| case.models.iter().any(|known| is_called(name, known));
        let has_sizes = |case: &Case| case.sizes.iter().any(|known| known.are_of(architecture, sizes));
        let found = |case: &Case| match (has_name(case), has_sizes(case)) {
            (true, _) => Some(case.clone()),
            (false, true) if is_called_alike(case) || case.generated.is_empty() => Some(case.clone()),
            (false, true) => Some(case.by_sizes_alone()),
            (false, false) => None,
        };
        self.case.iter().filter_map(found).collect()
    }

    /// Returns the case with this name.
    ///
    /// # Errors
    /// If no case has this name; the message lists the names.
    pub(crate) fn named(&self, name: &str) -> Result<&Case> {
        self.case.iter().find(|case| case.name == name).ok_or_else(|| {
            let known: Vec<_> = self.case.iter().map(|case| case.name.as_str()).collect();
            Error::Usage(format!("unknown case '{name}'; known: {}", known.join(", ")))
        })
    }

    fn check(&self) -> Result<(), String> {
        for (index, case) in self.case.iter().enumerate() {
            if case.tokens.is_empty() {
                return Err(format!("case '{}' has no tokens", case.name));
            }
            if self.case[..index].iter().any(|earlier| earlier.name == case.name) {
                return Err(format!("duplicate case name '{}'", case.name));
            }
        }
        Ok(())
    }
}

fn parse(text: &str) -> Result<Cases, String> {
    let cases: Cases = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
    cases.check()?;
    Ok(cases)
}

impl Case {
    fn by_sizes_alone(&self) -> Self {
        let note = format!(
            "the model has the sizes of {}, but another name: its continuation was not checked; if it is that model, \
             check it with --case {}",
            self.models.join(" or "),
            self.name
        );
        Self { generated: Vec::new(), continuation: String::new(), note: Some(note), ..self.clone() }
    }

    /// Returns the case as a reference dump: the prompt in one pass, and the continuation if known.
    ///
    /// # Errors
    /// Never for a case that was read from a file.
    pub fn reference(&self, architecture: &str) -> Result<Dump> {
        let settings = [("source".to_owned(), self.source.clone().into())].into_iter().collect();
        let producer = Producer { name: "known case".into(), settings, ..Producer::default() };
        let model = ModelInfo { name: String::new(), architecture: architecture.into(), sha256: None };
        let input =
            DumpInput { prompt: self.prompt.clone(), tokens: self.tokens.clone(), ..DumpInput::default() };
        let prompt = Pass { position: 0, tokens: self.tokens.clone(), temperature: None };
        let mut manifest = Manifest::new(producer, model, Layout::default(), input, vec![prompt]);
        manifest.generated = (!self.generated.is_empty()).then(|| self.generated.clone());
        Dump::of_continuation(Path::new(&self.name), &manifest)
    }
}
