//! llama2.c's `tokenizer.bin`, read and used as in `run.c`.
//!
//! File format: the length of the longest piece (i32), then for every piece its score (f32), its length in bytes (i32)
//! and its text, with plain spaces. The number of pieces is the model's vocabulary size. Pieces 0, 1 and 2 are unknown,
//! BOS and EOS; the next 256 are the bytes, written `<0x0A>`.
//!
//! Differences between `run.c` and sentencepiece, whose model the file was exported from:
//! - A non-empty text begins with the piece of a space, regardless of the model's training.
//! - Both treat names of special pieces as text, so nothing is parsed here either.
//! - Merging begins with the pieces' texts, including those of byte pieces, and may form any piece of the vocabulary.
//! - `run.c` reads C strings, so it ignores everything after a NUL.

use std::collections::HashMap;

use crate::error::{Result, TokenizerError};
use crate::format::{Cursor, FileBytes};
use crate::tokenizer::merge::merge_from;
use crate::tokenizer::sentencepiece::byte;
use crate::tokenizer::{SpecialTokens, Tokenizer, refuse};

const BOS: u32 = 1;
const EOS: u32 = 2;
/// Id of byte 0.
const FIRST_BYTE: u32 = 3;
/// Score that a pair must exceed to be merged in `run.c`.
const LOWEST: f32 = -1e10;
/// Number of bytes that precede a piece's text.
const HEAD: usize = 8;

/// A checked vocabulary.
#[derive(Debug)]
pub struct Llama2cTokenizer {
    pieces: Vec<String>,
    scores: Vec<f32>,
    ids: HashMap<String, u32>,
}

impl Llama2cTokenizer {
    /// Reads `tokenizer.bin`: `vocab_size` pieces, or all pieces of the file if `vocab_size` is `None`.
    ///
    /// # Errors
    /// If the file ends early, or contains data that `run.c` could not use.
    pub fn read(source: &FileBytes, vocab_size: Option<usize>) -> Result<Self> {
        let mut cursor = Cursor::new(source);
        let longest = cursor.u32("the length of the longest piece")?;
        let (mut pieces, mut scores) = (Vec::new(), Vec::new());
        while vocab_size.map_or(cursor.left() > 0, |size| pieces.len() < size) {
            let (piece, score) = piece(&mut cursor, pieces.len(), longest)?;
            pieces.push(piece);
            scores.push(score);
        }
        let ids = ids(&pieces)?;
        if !ids.contains_key(" ") {
            return Err(refuse("the piece ' ' is missing; llama2.c puts it before every text"));
        }
        Ok(Self { pieces, scores, ids })
    }

    fn score(&self, piece: &str) -> Option<f32> {
        let score = self.ids.get(piece).map(|&id| self.scores[id as usize]);
        score.filter(|&score| score > LOWEST)
    }

    /// Returns the pieces from which merging starts: the space, then the piece of each character, or the pieces of its
    /// bytes.
    fn symbols(&self, text: &str) -> Result<Vec<&str>> {
        let mut symbols = vec![" "];
        for character in text.chars() {
            let mut utf8 = [0; 4];
            let character = &*character.encode_utf8(&mut utf8);
            match self.ids.get(character) {
                Some(&id) => symbols.push(&self.pieces[id as usize]),
                None => {
                    character.bytes().try_for_each(|byte| self.byte(byte).map(|one| symbols.push(one)))?
                }
            }
        }
        Ok(symbols)
    }

    fn byte(&self, byte: u8) -> Result<&str> {
        let id = FIRST_BYTE + u32::from(byte);
        let piece = self.pieces.get(id as usize);
        piece.map(String::as_str).ok_or_else(|| {
            refuse(format!(
                "byte 0x{byte:02X} is piece {id}, but there are only {} pieces",
                self.pieces.len()
            ))
        })
    }
}

impl Tokenizer for Llama2cTokenizer {
    fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    fn encode_with(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>> {
        let mut ids = if special.add { vec![BOS] } else { Vec::new() };
        if text.is_empty() {
            return Ok(ids);
        }
        let symbols = self.symbols(text)?;
        let ends: Vec<usize> = symbols
            .iter()
            .scan(0, |end, symbol| {
                *end += symbol.len();
                Some(*end)
            })
            .collect();
        let merged = symbols.concat();
        // Texts are unique, so the text of a byte piece has that piece's id.
        ids.extend(
            merge_from(&merged, &ends, |piece, _| self.score(piece)).iter().map(|piece| self.ids[*piece]),
        );
        Ok(ids)
    }

    fn piece(&self, id: u32) -> Option<String> {
        self.pieces.get(id as usize).cloned()
    }

    fn decode(&self, ids: &[u32]) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut before = BOS;
        for (position, &id) in ids.iter().enumerate() {
            let vocab_size = self.pieces.len();
            let piece =
                self.pieces.get(id as usize).ok_or(TokenizerError::BadToken { id, position, vocab_size })?;
            match byte(piece) {
                _ if id == BOS || id == EOS => {}
                Some(byte) => bytes.push(byte),
                None if before == BOS => bytes.extend(piece.strip_prefix(' ').unwrap_or(piece).bytes()),
                None => bytes.extend(piece.bytes()),
            }
            before = id;
        }
        Ok(bytes)
    }
}

fn piece(cursor: &mut Cursor, id: usize, longest: u32) -> Result<(String, f32)> {
    let at = cursor.at;
    let score = cursor.array(format_args!("the score of piece {id}")).map(f32::from_le_bytes)?;
    let len = cursor.u32(format_args!("the length of piece {id}"))?;
    let bad = |offset, what, found: String, expected| {
        cursor.source.bad(offset, format_args!("{what} of piece {id}"), found, expected)
    };
    if score.is_nan() {
        return Err(bad(at, "the score", score.to_string(), "a number".to_owned()));
    }
    if len > longest {
        let expected =
            format!("at most {longest}, the maximum in the header; is this llama2.c's tokenizer.bin?");
        return Err(bad(at + 4, "the length", len.to_string(), expected));
    }
    let bytes = cursor.take(len.into(), format_args!("piece {id}"))?;
    let text = str::from_utf8(bytes).map_err(|error| {
        cursor.source.bad(
            at + HEAD + error.valid_up_to(),
            format_args!("piece {id}"),
            "not UTF-8",
            "UTF-8 text",
        )
    })?;
    // Adding zero turns −0 into 0: they are equal scores.
    Ok((text.to_owned(), score + 0.0))
}

/// Returns the ids of the pieces. Duplicate texts are an error, since `run.c`'s sort determines which of them it
/// finds.
fn ids(pieces: &[String]) -> Result<HashMap<String, u32>> {
    let mut ids = HashMap::with_capacity(pieces.len());
    for (id, piece) in (0..).zip(pieces).filter(|(_, piece)| !piece.is_empty()) {
        if let Some(first) = ids.insert(piece.clone(), id) {
            return Err(refuse(format!("duplicate piece '{}': ids {first} and {id}", piece.escape_debug())));
        }
    }
    Ok(ids)
}
