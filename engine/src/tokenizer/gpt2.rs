//! GPT-2's own two files: the ids of the pieces (JSON), and the merges, one per line. tiktoken creates its encoding
//! "gpt2" from them.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::format::FileBytes;
use crate::tokenizer::byte_level::{self, BpeVocabulary, PreTokenizer};
use crate::tokenizer::{Tokenizer, refuse};

/// The only special token, which separates texts. No tokens are added before or after texts.
const END_OF_TEXT: &str = "<|endoftext|>";
/// Type numbers of normal pieces and of control tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// Reads a tokenizer.
///
/// # Errors
/// If the ids are not consecutive from 0, or a merge does not form a piece.
pub fn read(pieces: &FileBytes, merges: &FileBytes) -> Result<Box<dyn Tokenizer>> {
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
    let words = PreTokenizer::of("gpt-2").expect("gpt-2 is in the table");
    Ok(Box::new(byte_level::tokenizer(&vocabulary, words, None, None)?))
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
