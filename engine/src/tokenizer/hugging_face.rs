//! Tokenizers of Hugging Face directories: `tokenizer.json`, read by the `tokenizers` library.
//!
//! Like in transformers, `add_bos_token` and `add_eos_token` of `tokenizer_config.json` override the special tokens that
//! `tokenizer.json` adds to texts. Truncation and padding of `tokenizer.json` are ignored, which is transformers'
//! default.

use std::fmt::Display;

use serde_json::Value;
use tokenizers::PostProcessorWrapper;

use crate::error::{Error, Result};
use crate::format::FileBytes;
use crate::tokenizer::library::{Library, caught, check_merge};
use crate::tokenizer::{Tokenizer, bounds, refuse};

/// Files of a Hugging Face tokenizer.
#[derive(Clone, Debug)]
pub struct HuggingFaceFiles {
    /// `tokenizer.json`.
    pub tokenizer: FileBytes,
    /// `tokenizer_config.json`, if there is one.
    pub config: Option<FileBytes>,
}

/// Reads a tokenizer.
///
/// # Errors
/// If a file is damaged, or contradicts itself or the other file.
pub fn from_hugging_face(files: &HuggingFaceFiles) -> Result<Box<dyn Tokenizer>> {
    let mut inner = read(&files.tokenizer)?;
    let (before, after) = match &files.config {
        Some(config) => apply(config, &parse(config)?, &mut inner)?,
        None => (None, None),
    };
    Ok(Box::new(Library::new(inner, before, after).of(&files.tokenizer.path)))
}

fn read(source: &FileBytes) -> Result<tokenizers::Tokenizer> {
    let json = parse(source)?;
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

/// Applies the special tokens that `tokenizer_config.json` adds before and after texts, instead of those of
/// `tokenizer.json`. Without such settings, `tokenizer.json` applies.
fn apply(
    source: &FileBytes,
    config: &Value,
    inner: &mut tokenizers::Tokenizer,
) -> Result<(Option<u32>, Option<u32>)> {
    let [bos, eos] = ["add_bos_token", "add_eos_token"].map(|key| config[key].as_bool());
    if bos.is_none() && eos.is_none() {
        return Ok((None, None));
    }
    inner.with_post_processor(None::<PostProcessorWrapper>);
    let before = special_id(source, config, "bos_token", bos, inner)?;
    Ok((before, special_id(source, config, "eos_token", eos, inner)?))
}

/// Returns the id of a token that is added to texts. As in transformers, a token without a name is not added.
fn special_id(
    source: &FileBytes,
    config: &Value,
    key: &str,
    is_added: Option<bool>,
    tokenizer: &tokenizers::Tokenizer,
) -> Result<Option<u32>> {
    let named = config[key].as_str().or_else(|| config[key]["content"].as_str());
    let Some(name) = named.filter(|_| is_added == Some(true)) else { return Ok(None) };
    let id = tokenizer.token_to_id(name);
    id.map(Some).ok_or_else(|| Error::bad_key(&source.path, key, name, "a token of tokenizer.json"))
}

fn parse(source: &FileBytes) -> Result<Value> {
    serde_json::from_slice(&source.data).map_err(|error| bad_file(source, error))
}

fn bad_file(source: &FileBytes, error: impl Display) -> Error {
    Error::BadContainer { file: source.path.clone(), format: "tokenizer", problem: error.to_string() }
}
