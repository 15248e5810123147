//! SentencePiece BPE, with the rules of llama.cpp (GGUF files whose `tokenizer.ggml.model` is "llama") or those of the
//! sentencepiece library (`tokenizer.model`).
//!
//! Differences between the two:
//! - Only sentencepiece normalises texts (NFKC, removal of extra spaces). This module does not; models that require
//!   normalisation cause an error.
//! - User-defined pieces are split off first. llama.cpp starts anew after each, with another space prefix.
//!   sentencepiece uses one prefix and searches for the pieces after spaces became U+2581; of overlapping pieces it
//!   takes the leftmost, then the longest, and so does this module for both rules.
//! - sentencepiece treats the names of control pieces and of the unknown piece as text. If names are parsed, they are
//!   split off before everything else.
//! - Unused pieces: sentencepiece splits them again; llama.cpp keeps them.
//! - In sentencepiece and here, merging never forms byte pieces. In llama.cpp it does, if the vocabulary has the pieces
//!   to merge them from.
//! - llama.cpp has a list of names that are always control pieces. Here the file's types decide.
//! - Decoding removes the space that encoding added at the start, as in sentencepiece. llama.cpp keeps it after a BOS.

use std::collections::HashMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

use crate::error::{Result, TokenizerError};
use crate::tokenizer::merge::merge;
use crate::tokenizer::{SpecialTokens, Tokenizer, refuse};

/// Character for a space inside pieces: U+2581.
const SPACE: char = '▁';
/// Text that sentencepiece writes for the unknown piece: U+2047 between spaces.
const UNKNOWN_TEXT: &str = " ⁇ ";

/// Vocabulary of a SentencePiece tokenizer: columns of equal length, one row for each id.
#[derive(Clone, Debug, Default)]
pub struct PieceVocabulary {
    /// Text of each piece, with U+2581 for spaces.
    pub pieces: Vec<String>,
    /// Merge priority: the highest score first.
    pub scores: Vec<f32>,
    /// Type of each piece: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub types: Vec<i32>,
}

/// Rules to use where llama.cpp and the sentencepiece library differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizerRules {
    /// Rules of llama.cpp.
    LlamaCpp,
    /// Rules of the sentencepiece library.
    SentencePiece,
}

/// Special ids and rules for adding them. The defaults are those of llama.cpp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentencePieceSettings {
    /// Id that begins a text.
    pub bos: Option<u32>,
    /// Id that ends a text.
    pub eos: Option<u32>,
    /// Id of unknown characters.
    pub unk: Option<u32>,
    /// True if texts begin with BOS.
    pub add_bos: bool,
    /// True if texts end with EOS.
    pub add_eos: bool,
    /// True if a space is added before a text, so that its first word is encoded like any other word.
    pub add_space_prefix: bool,
    /// Rules to use where llama.cpp and the sentencepiece library differ.
    pub rules: TokenizerRules,
}

impl Default for SentencePieceSettings {
    fn default() -> Self {
        Self {
            bos: Some(1),
            eos: Some(2),
            unk: Some(0),
            add_bos: true,
            add_eos: false,
            add_space_prefix: true,
            rules: TokenizerRules::LlamaCpp,
        }
    }
}

/// A checked SentencePiece vocabulary. Encoding cannot fail: either every byte has a piece, or there is an id for
/// unknown text.
#[derive(Debug)]
pub struct SentencePiece {
    pieces: Vec<VocabularyPiece>,
    /// Ids of the pieces that text consists of, by their text.
    ids: HashMap<String, u32>,
    byte_ids: [Option<u32>; 256],
    user_defined: PieceFinder,
    /// Special pieces that are split off if their names are parsed.
    named: PieceFinder,
    settings: SentencePieceSettings,
}

#[derive(Debug)]
struct VocabularyPiece {
    text: String,
    score: f32,
    kind: PieceKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceKind {
    Text,
    Unused,
    UserDefined,
    Unknown,
    Control,
    Byte(u8),
}

impl SentencePiece {
    /// Checks a vocabulary and creates the tokenizer.
    ///
    /// # Errors
    /// [`TokenizerError::Unusable`] if its columns, pieces or special ids contradict each other.
    pub fn new(vocabulary: PieceVocabulary, settings: SentencePieceSettings) -> Result<Self> {
        let pieces = pieces(vocabulary)?;
        let byte_ids = byte_ids(&pieces);
        check_settings(&settings, pieces.len(), &byte_ids)?;
        let user_defined = PieceFinder::new(&pieces, &[PieceKind::UserDefined])?;
        let kinds: &[PieceKind] = match settings.rules {
            TokenizerRules::LlamaCpp => &[PieceKind::UserDefined, PieceKind::Control, PieceKind::Unknown],
            TokenizerRules::SentencePiece => &[PieceKind::Control, PieceKind::Unknown],
        };
        let named = PieceFinder::new(&pieces, kinds)?;
        Ok(Self { ids: text_ids(&pieces)?, user_defined, named, byte_ids, pieces, settings })
    }

    /// Appends the ids of a text without special pieces.
    fn encode_text(&self, text: &str, is_first: bool, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let has_prefix =
            self.settings.add_space_prefix && (is_first || self.settings.rules == TokenizerRules::LlamaCpp);
        let escaped = [if has_prefix { " " } else { "" }, text].concat().replace(' ', "▁");
        if self.settings.rules == TokenizerRules::LlamaCpp {
            return self.encode_merged(&escaped, ids);
        }
        let mut start = 0;
        for (span, id) in self.user_defined.find_all(&escaped) {
            self.encode_merged(&escaped[start..span.start], ids);
            ids.push(id);
            start = span.end;
        }
        self.encode_merged(&escaped[start..], ids);
    }

    /// Appends the ids of the pieces that the characters are merged into.
    fn encode_merged(&self, text: &str, ids: &mut Vec<u32>) {
        let mut halves = HashMap::new();
        let pieces = merge(text, |piece, left| {
            let &id = self.ids.get(piece)?;
            let piece_of_id = &self.pieces[id as usize];
            if piece_of_id.kind == PieceKind::Unused && self.settings.rules == TokenizerRules::SentencePiece {
                halves.insert(piece, left);
            }
            Some(piece_of_id.score)
        });
        pieces.into_iter().for_each(|piece| self.encode_piece(piece, &halves, ids));
    }

    /// Appends the id of a piece; a piece marked unused is split into the parts it was merged from.
    fn encode_piece(&self, piece: &str, halves: &HashMap<&str, usize>, ids: &mut Vec<u32>) {
        if let Some(&left) = halves.get(piece) {
            self.encode_piece(&piece[..left], halves, ids);
            return self.encode_piece(&piece[left..], halves, ids);
        }
        match self.ids.get(piece) {
            Some(&id) => ids.push(id),
            None => self.encode_character(piece, ids),
        }
    }

    /// Appends the ids of a character without its own piece: its byte pieces, or unknown. A run of unknown characters
    /// is one unknown id.
    fn encode_character(&self, character: &str, ids: &mut Vec<u32>) {
        let bytes: Option<Vec<u32>> =
            character.bytes().map(|byte| self.byte_ids[usize::from(byte)]).collect();
        match bytes {
            Some(bytes) => ids.extend(bytes),
            None if ids.last() != self.settings.unk.as_ref() => ids.extend(self.settings.unk),
            None => {}
        }
    }

    fn piece(&self, position: usize, id: u32) -> Result<&VocabularyPiece> {
        let vocab_size = self.pieces.len();
        self.pieces.get(id as usize).ok_or(TokenizerError::BadToken { id, position, vocab_size }.into())
    }
}

impl Tokenizer for SentencePiece {
    fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    fn encode_with(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>> {
        let SentencePieceSettings { bos, eos, add_bos, add_eos, .. } = self.settings;
        let mut ids: Vec<u32> = bos.filter(|_| special.add && add_bos).into_iter().collect();
        let cut_out = if special.parse {
            Some(&self.named)
        } else {
            Some(&self.user_defined).filter(|_| self.settings.rules == TokenizerRules::LlamaCpp)
        };
        let mut start = 0;
        for (span, id) in cut_out.into_iter().flat_map(|cut_out| cut_out.find_all(text)) {
            self.encode_text(&text[start..span.start], start == 0, &mut ids);
            ids.push(id);
            start = span.end;
        }
        self.encode_text(&text[start..], start == 0, &mut ids);
        ids.extend(eos.filter(|_| special.add && add_eos));
        Ok(ids)
    }

    fn piece(&self, id: u32) -> Option<String> {
        self.pieces.get(id as usize).map(|piece| piece.text.clone())
    }

    fn decode(&self, ids: &[u32]) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut prefix = self.settings.add_space_prefix;
        for (position, &id) in ids.iter().enumerate() {
            let piece = self.piece(position, id)?;
            match piece.kind {
                PieceKind::Control => continue,
                PieceKind::Byte(byte) => bytes.push(byte),
                PieceKind::Unknown => bytes.extend(UNKNOWN_TEXT.bytes()),
                PieceKind::Text | PieceKind::Unused | PieceKind::UserDefined => {
                    let text = piece.text.strip_prefix(SPACE).filter(|_| prefix).unwrap_or(&piece.text);
                    bytes.extend(text.replace(SPACE, " ").bytes());
                }
            }
            prefix = false;
        }
        Ok(bytes)
    }
}

/// Finds the pieces that are split off before the rest is merged.
#[derive(Debug)]
struct PieceFinder {
    finder: AhoCorasick,
    ids: Vec<u32>,
}

impl PieceFinder {
    fn new(pieces: &[VocabularyPiece], kinds: &[PieceKind]) -> Result<Self> {
        // Some files pad with empty pieces, which would match everywhere.
        let is_one = |piece: &VocabularyPiece| !piece.text.is_empty() && kinds.contains(&piece.kind);
        let (ids, texts): (Vec<u32>, Vec<&str>) = (0..)
            .zip(pieces)
            .filter(|(_, piece)| is_one(piece))
            .map(|(id, piece)| (id, &*piece.text))
            .unzip();
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts);
        Ok(Self { finder: finder.map_err(|problem| refuse(problem.to_string()))?, ids })
    }

    /// Finds the pieces in a text, from left to right.
    fn find_all(&self, text: &str) -> impl Iterator<Item = (Range<usize>, u32)> {
        self.finder.find_iter(text).map(|found| (found.range(), self.ids[found.pattern()]))
    }
}

fn pieces(vocabulary: PieceVocabulary) -> Result<Vec<VocabularyPiece>> {
    let PieceVocabulary { pieces, scores, types } = vocabulary;
    if pieces.is_empty() {
        return Err(refuse("the vocabulary is empty"));
    }
    for (column, length) in [("scores", scores.len()), ("types", types.len())] {
        if length != pieces.len() {
            return Err(refuse(format!("{} pieces, but {length} {column}", pieces.len())));
        }
    }
    if u32::try_from(pieces.len()).is_err() {
        return Err(refuse(format!("{} pieces, more than 32-bit ids allow", pieces.len())));
    }
    let rows = pieces.into_iter().zip(scores).zip(types).enumerate();
    rows.map(|(id, ((text, score), kind))| piece(id, text, score, kind)).collect()
}

fn piece(id: usize, text: String, score: f32, kind: i32) -> Result<VocabularyPiece> {
    if score.is_nan() {
        return Err(refuse(format!("the score of piece {id}, '{text}', is NaN")));
    }
    let kind = match kind {
        1 => PieceKind::Text,
        5 => PieceKind::Unused,
        2 => PieceKind::Unknown,
        3 => PieceKind::Control,
        4 => PieceKind::UserDefined,
        6 => PieceKind::Byte(byte(&text).ok_or_else(|| {
            refuse(format!(
                "piece {id} has the type byte and the text '{text}', expected '<0x00>' to '<0xFF>'"
            ))
        })?),
        other => return Err(refuse(format!("piece {id}, '{text}', has type {other}, expected 1 to 6"))),
    };
    // Adding zero turns −0 into 0: the first merge that sentencepiece learns has the score −0.
    Ok(VocabularyPiece { text, score: score + 0.0, kind })
}

/// Returns the byte for a piece such as "<0x0A>".
pub(super) fn byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_plain = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_plain.then(|| u8::from_str_radix(digits, 16).ok())?
}

fn byte_ids(pieces: &[VocabularyPiece]) -> [Option<u32>; 256] {
    let mut ids = [None; 256];
    for (id, piece) in (0..).zip(pieces) {
        if let PieceKind::Byte(byte) = piece.kind {
            ids[usize::from(byte)] = Some(id);
        }
    }
    ids
}

/// Returns the ids of the pieces that text consists of. Duplicate texts are an error, as in llama.cpp, since the
/// intended id is undetermined.
fn text_ids(pieces: &[VocabularyPiece]) -> Result<HashMap<String, u32>> {
    let mut all: HashMap<&str, u32> = HashMap::new();
    for (id, piece) in (0..).zip(pieces).filter(|(_, piece)| !piece.text.is_empty()) {
        if let Some(first) = all.insert(&piece.text, id) {
            return Err(refuse(format!("duplicate piece '{}': ids {first} and {id}", piece.text)));
        }
    }
    let is_text = |id: &u32| {
        matches!(pieces[*id as usize].kind, PieceKind::Text | PieceKind::Unused | PieceKind::UserDefined)
    };
    Ok(all.into_iter().filter(|(_, id)| is_text(id)).map(|(text, id)| (text.to_owned(), id)).collect())
}

fn check_settings(
    settings: &SentencePieceSettings,
    vocab_size: usize,
    byte_ids: &[Option<u32>; 256],
) -> Result<()> {
    let &SentencePieceSettings { bos, eos, unk, add_bos, add_eos, .. } = settings;
    for (name, id) in [("BOS", bos), ("EOS", eos), ("unknown", unk)] {
        if let Some(id) = id.filter(|&id| id as usize >= vocab_size) {
            return Err(refuse(format!("the {name} id {id} is outside the vocabulary of {vocab_size}")));
        }
    }
    for (name, id, is_added) in [("BOS", bos, add_bos), ("EOS", eos, add_eos)] {
        if is_added && id.is_none() {
            return Err(refuse(format!("{name} must be added to texts, but has no id")));
        }
    }
    let missing = byte_ids.iter().position(Option::is_none);
    match missing.filter(|_| unk.is_none()) {
        Some(byte) => Err(refuse(format!("no piece '<0x{byte:02X}>', and no unknown id to replace it"))),
        None => Ok(()),
    }
}
