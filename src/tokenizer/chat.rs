//! What a model's files say of how a conversation is written as text.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::format::{Gguf, Source};
use crate::tokenizer::Tokenizer;

/// A chat template, unread, and what it may name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatTemplate {
    /// The template, in Jinja's language as transformers understands it.
    pub source: String,
    /// Names of special tokens as the template calls them, such as `bos_token`, and their texts.
    pub tokens: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// Of a Hugging Face directory: `chat_template.jinja`, else what `tokenizer_config.json` has; of several that called
    /// "default".
    ///
    /// # Errors
    /// If a file is damaged.
    pub fn of_files(config: Option<&Source>, template: Option<&Source>) -> Result<Option<Self>> {
        let config = match config {
            Some(config) => serde_json::from_slice(&config.data)
                .map_err(|error| bad_file(config, "tokenizer configuration", error.to_string()))?,
            None => Value::Null,
        };
        let source = match template {
            Some(file) => Some(
                String::from_utf8(file.data.to_vec())
                    .map_err(|error| bad_file(file, "chat template", error.to_string()))?,
            ),
            None => within(&config["chat_template"]).map(str::to_owned),
        };
        Ok(source.map(|source| Self { source, tokens: names(&config) }))
    }

    /// Of a GGUF file.
    ///
    /// # Errors
    /// If a key has a value that cannot be used.
    pub fn of_gguf(file: &Gguf, tokenizer: Option<&dyn Tokenizer>) -> Result<Option<Self>> {
        let Some(source) = file.optional::<&str>("tokenizer.chat_template")? else { return Ok(None) };
        let mut tokens = BTreeMap::new();
        for name in ["bos", "eos", "unknown", "padding"] {
            let id = file.optional::<u32>(&format!("tokenizer.ggml.{name}_token_id"))?;
            let piece = id.and_then(|id| tokenizer?.piece(id));
            let called = match name {
                "unknown" => "unk",
                "padding" => "pad",
                other => other,
            };
            tokens.extend(piece.map(|piece| (format!("{called}_token"), piece)));
        }
        Ok(Some(Self { source: source.to_owned(), tokens }))
    }
}

/// The template, which may be one of several with names.
fn within(value: &Value) -> Option<&str> {
    let named = |entry: &&Value| entry["name"] == "default";
    value.as_str().or_else(|| value.as_array()?.iter().find(named)?["template"].as_str())
}

/// The names of special tokens, each a text or an object that holds one.
fn names(config: &Value) -> BTreeMap<String, String> {
    let entries = config.as_object().into_iter().flatten();
    let named = entries.filter(|(key, _)| key.ends_with("_token"));
    let text = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
    named.filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect()
}

fn bad_file(file: &Source, format: &'static str, problem: String) -> Error {
    Error::BadContainer { file: file.path.clone(), format, problem }
}
