//! Chat settings in a model's files.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::format::{FileBytes, Gguf};
use crate::tokenizer::Tokenizer;

/// Chat template of a model, and the special tokens that its files name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chat {
    /// The template that writes a conversation as text, in Jinja's language as transformers understands it.
    pub template: Option<String>,
    /// Names of special tokens as templates call them, such as `bos_token`, and their texts.
    pub tokens: BTreeMap<String, String>,
}

impl Chat {
    /// Reads a Hugging Face directory: `chat_template.jinja`, else the template in `tokenizer_config.json`; of
    /// several templates, the one named "default".
    ///
    /// # Errors
    /// If a file is damaged.
    pub fn of_files(config: Option<&FileBytes>, template: Option<&FileBytes>) -> Result<Self> {
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

    /// Reads a GGUF file.
    ///
    /// # Errors
    /// If a key has a value that cannot be used.
    pub fn of_gguf(file: &Gguf, tokenizer: Option<&dyn Tokenizer>) -> Result<Self> {
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

fn bad_file(file: &FileBytes, format: &'static str, problem: String) -> Error {
    Error::BadContainer { file: file.path.clone(), format, problem }
}
