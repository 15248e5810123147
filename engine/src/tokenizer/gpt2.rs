//! GPT-2's own two files: the ids of the pieces (JSON), and the merges, one per line. tiktoken creates its encoding
//! "gpt2" from them. Qwen 2 has the same files, but uses another word pattern and NFC.

use std::collections::HashMap;

use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::error::{Error, Result};
use crate::format::FileBytes;
use crate::tokenizer::byte_level::{self, BpeVocabulary, PreTokenizer};
use crate::tokenizer::library::Library;
use crate::tokenizer::settings::{SettingsFiles, TokenizerClass, TokenizerSettings};
use crate::tokenizer::{Tokenizer, refuse};

/// The only special token, which separates texts. No tokens are added before or after texts.
const END_OF_TEXT: &str = "<|endoftext|>";
/// Type numbers of normal pieces and of control tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// Reads a tokenizer.
///
/// # Errors
/// If the ids are not consecutive from 0, a merge does not form a piece, or the settings name another tokenizer.
pub(crate) fn read(
    pieces: &FileBytes,
    merges: &FileBytes,
    files: &SettingsFiles,
) -> Result<Box<dyn Tokenizer>> {
    let settings = TokenizerSettings::read(files)?;
    let is_qwen = match &settings.class {
        TokenizerClass::Qwen2 => true,
        TokenizerClass::Gpt2 => false,
        TokenizerClass::Backend if !settings.is_configured => false,
        other => return Err(other_class(other)),
    };
    let ids: HashMap<String, u32> = serde_json::from_slice(&pieces.data).map_err(|error| {
        Error::BadContainer { file: pieces.path.clone(), format: "vocabulary", problem: error.to_string() }
    })?;
    let text = str::from_utf8(&merges.data).map_err(|error| {
        merges.bad(error.valid_up_to(), "the list of merges", "not UTF-8", "UTF-8 text; get the file again")
    })?;
    let pieces = by_id(&ids)?;
    let types = pieces.iter().map(|&piece| if piece == END_OF_TEXT { CONTROL } else { NORMAL }).collect();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with("#version"));
    let vocabulary = BpeVocabulary { pieces, types, merges: lines.collect() };
    let words = PreTokenizer::of(if is_qwen { "qwen2" } else { "gpt-2" })
        .expect("the table of pre-tokenizers has qwen2 and gpt-2");
    let has_prefix = settings.flag("add_prefix_space") == Some(true);
    let mut inner = byte_level::build(&vocabulary, words, has_prefix)?;
    match is_qwen {
        true => _ = inner.with_normalizer(Some(NFC)),
        // GPT-2's rule puts the space before the text, not before each word.
        false if has_prefix => _ = inner.with_pre_tokenizer(Some(ByteLevel::new(true, true, true))),
        false => {}
    }
    settings.apply(&mut inner)?;
    let [before, after] = settings.around(&inner);
    Ok(Box::new(Library::new(inner, before, after)))
}

fn other_class(class: &TokenizerClass) -> Error {
    let name = match class {
        TokenizerClass::Other(name) => name,
        TokenizerClass::Llama => "LlamaTokenizer",
        _ => "no class for these files",
    };
    refuse(format!(
        "its tokenizer_class is {name}, expected GPT2Tokenizer or Qwen2Tokenizer for vocab.json and merges.txt; save the \
         tokenizer as tokenizer.json with transformers"
    ))
}

fn by_id(ids: &HashMap<String, u32>) -> Result<Vec<&str>> {
    let mut pieces = vec![None; ids.len()];
    for (piece, &id) in ids {
        match pieces.get_mut(id as usize) {
            Some(place @ None) => *place = Some(piece.as_str()),
            Some(Some(other)) => {
                return Err(refuse(format!("'{other}' and '{piece}' have the same id {id}")));
            }
            None => {
                return Err(refuse(format!(
                    "'{piece}' has the id {id}, but there are only {} pieces",
                    ids.len()
                )));
            }
        }
    }
    // There are as many ids as pieces, and no id occurs twice, so every id has a piece.
    Ok(pieces.into_iter().flatten().collect())
}
