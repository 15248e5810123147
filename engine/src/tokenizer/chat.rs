//! Chat settings in a model's files.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::format::{FileBytes, Gguf};
use crate::tokenizer::Tokenizer;

/// Chat template of a model, and the special tokens that its files name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chat {
    /// Template that renders a conversation, in transformers' dialect of Jinja.
    pub template: Option<String>,
    /// Texts of special tokens, by the names that templates use, such as `bos_token`.
    pub tokens: BTreeMap<String, String>,
}

impl Chat {
    /// Reads the chat settings of a Hugging Face directory: `chat_template.jinja`, or otherwise the template in
    /// `tokenizer_config.json`. Of several templates, the one named "default" is used.
    ///
    /// # Errors
    /// If a file is damaged.
    pub(crate) fn of_files(config: Option<&FileBytes>, template: Option<&FileBytes>) -> Result<Self> {
        let config = match config {
            Some(config) => serde_json::from_slice(&config.data)
                .map_err(|error| bad_file(config, "tokenizer configuration", error.to_string()))?,
            None => Value::Null,
        };
        let template = match template {
            Some(file) => Some(
                String::from_utf8(file.data.to_vec())
                    .map_err(|error| bad_file(file, "chat template", error.to_string()))?,
            ),
            None => within(&config["chat_template"]).map(str::to_owned),
        };
        Ok(Self { template, tokens: names(&config) })
    }

    /// Reads the chat settings of a GGUF file.
    ///
    /// # Errors
    /// If a key has an invalid value.
    pub(crate) fn of_gguf(file: &Gguf, tokenizer: Option<&dyn Tokenizer>) -> Result<Self> {
        let template = file.optional::<&str>("tokenizer.chat_template")?.map(str::to_owned);
        let mut tokens = BTreeMap::new();
        let names = [("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")];
        for (name, called) in names {
            let id = file.optional::<u32>(&format!("tokenizer.ggml.{name}_token_id"))?;
            let piece = id.and_then(|id| tokenizer?.piece(id));
            tokens.extend(piece.map(|piece| (format!("{called}_token"), piece)));
        }
        Ok(Self { template, tokens })
    }
}

/// Returns the template from a value, which may be a list of named templates.
fn within(value: &Value) -> Option<&str> {
    let named = |entry: &&Value| entry["name"] == "default";
    value.as_str().or_else(|| value.as_array()?.iter().find(named)?["template"].as_str())
}

/// Returns the special tokens by name; each value is a string, or an object that contains one.
fn names(config: &Value) -> BTreeMap<String, String> {
    let entries = config.as_object().into_iter().flatten();
    let named = entries.filter(|(key, _)| key.ends_with("_token"));
    let text = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
    named.filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect()
}

fn bad_file(file: &FileBytes, format: &'static str, problem: String) -> Error {
    Error::BadContainer { file: file.path.clone(), format, problem }
}
