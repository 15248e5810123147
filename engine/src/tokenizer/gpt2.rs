//! GPT-2's own two files: the ids of the pieces (JSON), and the merges, one a line. It is what tiktoken makes its
//! encoding "gpt2" from.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::format::FileBytes;
use crate::tokenizer::byte_level::{self, BpeVocabulary, PreTokenizer};
use crate::tokenizer::{Tokenizer, refuse};

/// The one special token, which stands between texts. Nothing is put around texts.
const END_OF_TEXT: &str = "<|endoftext|>";
/// The type of normal pieces, and that of control tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// Reads a tokenizer.
///
/// # Errors
/// If the ids are not those from 0 on, each once, or a merge makes no piece.
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
    // As many places as pieces, and none taken twice: all are taken.
    Ok(pieces.into_iter().flatten().collect())
}
