//! Tokenizers of Hugging Face directories: `tokenizer.json`, read by the `tokenizers` library, and the settings beside
//! it.
//!
//! As in transformers 5, only `tokenizer.json` decides which special tokens are added around texts: `add_bos_token`
//! and `add_eos_token` of `tokenizer_config.json` are ignored. Truncation and padding in `tokenizer.json` are
//! ignored too, which is transformers' default.

use std::fmt::Display;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::format::FileBytes;
use crate::tokenizer::library::{Library, caught, check_merge};
use crate::tokenizer::settings::{SettingsFiles, TokenizerClass, TokenizerSettings};
use crate::tokenizer::{Tokenizer, bounds, llama_class, refuse};

/// Files of a Hugging Face tokenizer.
#[derive(Clone, Debug)]
pub struct HuggingFaceFiles {
    /// `tokenizer.json`.
    pub tokenizer: FileBytes,
    /// Settings files in the same folder.
    pub settings: SettingsFiles,
}

/// Reads a tokenizer.
///
/// # Errors
/// If a file is damaged, or contradicts itself or another file.
pub fn from_hugging_face(files: &HuggingFaceFiles) -> Result<Box<dyn Tokenizer>> {
    let source = &files.tokenizer;
    let mut json: Value = serde_json::from_slice(&source.data).map_err(|error| bad_file(source, error))?;
    let settings = TokenizerSettings::read(&files.settings)?;
    match settings.class {
        TokenizerClass::Llama if is_bpe_of_characters(&json) => llama_class::apply(&mut json, &settings),
        TokenizerClass::Qwen2 | TokenizerClass::Gpt2 => {
            let has_prefix = settings.flag("add_prefix_space").unwrap_or(false);
            json.get_mut("pre_tokenizer").into_iter().for_each(|rule| set_prefix(rule, has_prefix));
        }
        _ => {}
    }
    let mut inner = build(source, json)?;
    settings.apply(&mut inner)?;
    Ok(Box::new(Library::new(inner, None, None).of(&source.path)))
}

/// Returns true for BPE without a byte-level pre-tokenizer or decoder. transformers applies `LlamaTokenizer`'s rules
/// only to such files.
fn is_bpe_of_characters(json: &Value) -> bool {
    let is_bytes = |rule: &Value| rule["type"] == "ByteLevel";
    let has = |rule: &Value, list: &str| {
        is_bytes(rule) || rule[list].as_array().is_some_and(|all| all.iter().any(is_bytes))
    };
    let is_bpe = json["model"]["type"] == "BPE" || json["model"].get("merges").is_some();
    is_bpe && !has(&json["pre_tokenizer"], "pretokenizers") && !has(&json["decoder"], "decoders")
}

/// Sets `add_prefix_space` of the byte-level rule, even inside a list of pre-tokenizers. If true, a space is added
/// before a text.
fn set_prefix(rule: &mut Value, has_prefix: bool) {
    if let Some(rule) = rule.as_object_mut().filter(|rule| rule.get("type") == Some(&"ByteLevel".into())) {
        rule.insert("add_prefix_space".to_owned(), has_prefix.into());
    }
    let inner = rule.get_mut("pretokenizers").and_then(Value::as_array_mut);
    inner.into_iter().flatten().for_each(|rule| set_prefix(rule, has_prefix));
}

/// Creates the library's tokenizer from the content of a `tokenizer.json`.
///
/// # Errors
/// If the library rejects it, or it would fail in use.
pub(super) fn build(source: &FileBytes, json: Value) -> Result<tokenizers::Tokenizer> {
    check_model(&json["model"])?;
    bounds::check(&json)?;
    let read = caught(|| serde_json::from_value::<tokenizers::Tokenizer>(json));
    let mut tokenizer = read.map_err(|error| bad_file(source, error))?;
    tokenizer.with_padding(None);
    caught(|| tokenizer.with_truncation(None).map(drop))?;
    Ok(tokenizer)
}

/// Returns an error for settings with which the library panics or gives random results.
fn check_model(model: &Value) -> Result<()> {
    if !(model["dropout"].is_null() || model["dropout"] == 0.0) {
        return Err(refuse(format!(
            "the dropout of its merges is {}, expected none: token ids would be random",
            model["dropout"]
        )));
    }
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or_default();
    let merges = model["merges"].as_array().map(Vec::as_slice).unwrap_or_default();
    for merge in merges.iter().filter_map(pair) {
        check_merge(merge, prefix, |piece| model["vocab"].get(piece).is_some())?;
    }
    Ok(())
}

/// Returns the two pieces of a merge, which files before 2024 store as one string. Other values are left to the library
/// to reject.
fn pair(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(text) => text.split_once(' '),
        Value::Array(pair) => Some((pair.first()?.as_str()?, pair.get(1)?.as_str()?)),
        _ => None,
    }
}

fn bad_file(source: &FileBytes, error: impl Display) -> Error {
    Error::BadContainer { file: source.path.clone(), format: "tokenizer", problem: error.to_string() }
}
