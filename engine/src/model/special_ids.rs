//! Ids of the tokens that begin and end a text, in the files of a Hugging Face directory.

use crate::error::Result;
use crate::format::FileBytes;
use crate::model::json::{Config, json_of};

const BEGIN: &str = "bos_token_id";
const END: &str = "eos_token_id";

/// Ids of the tokens that begin and end a text.
#[derive(Debug, Default)]
pub(super) struct SpecialIds {
    pub(crate) begin: Option<u32>,
    pub(crate) end: Vec<u32>,
}

impl SpecialIds {
    /// Reads the ids as transformers' `generate` does: from `generation_config.json`, which replaces the end tokens of
    /// `config.json` even if it states none.
    ///
    /// # Errors
    /// If `generation_config.json` is not JSON, or an id is not a token id.
    pub(crate) fn read(config: &Config, generation: Option<&FileBytes>) -> Result<Self> {
        let of_config = Self { begin: first(config, BEGIN)?, end: outer(config, END)? };
        let Some(file) = generation else { return Ok(of_config) };
        let json = json_of(file)?;
        let stated = Config::new(&file.path, &json);
        let begin = stated.token_ids(BEGIN)?.first().copied().or(of_config.begin);
        Ok(Self { begin, end: stated.token_ids(END)? })
    }
}

fn first(config: &Config, key: &str) -> Result<Option<u32>> {
    Ok(outer(config, key)?.first().copied())
}

/// Reads the ids of a configuration, or of its text model's configuration if it states none itself.
fn outer(config: &Config, key: &str) -> Result<Vec<u32>> {
    let ids = config.token_ids(key)?;
    match config.object("text_config")? {
        Some(text) if ids.is_empty() => text.token_ids(key),
        _ => Ok(ids),
    }
}
