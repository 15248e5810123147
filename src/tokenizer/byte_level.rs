//! Byte-level BPE as llama.cpp runs it for GGUF files whose `tokenizer.ggml.model` is "gpt2".
//!
//! The pieces are written in GPT-2's alphabet, one printable character per byte. A text is cut at special tokens,
//! then into words by a pattern that the file names (`tokenizer.ggml.pre`), and within words pairs are merged in the
//! order of the list. Where the names of special tokens overlap, llama.cpp looks for the longest first wherever it
//! is; this takes the leftmost, then the longest. llama.cpp normalises nothing, nor does this.

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use super::library::{Library, caught, check_merge};
use crate::error::Result;
use crate::tokenizer::refuse;

/// How texts are cut into words, and what else follows from the name of it.
pub(super) struct Words {
    /// The names of `tokenizer.ggml.pre` for it.
    names: &'static [&'static str],
    /// A word; `None` for GPT-2's own pattern.
    pattern: Option<&'static str>,
    /// Whether each digit is cut off before words are looked for.
    single_digits: bool,
    /// Whether a word that is a piece is not merged but taken.
    ignore_merges: bool,
    /// Whether texts begin with BOS where the file does not say.
    pub add_bos: bool,
}

/// What llama.cpp knows these names as. They differ in digits: three of them make a word in Llama 3, one in Qwen 2
/// and SmolLM.
const WORDS: &[Words] = &[
    Words {
        names: &["gpt-2", "phi-2"],
        pattern: None,
        single_digits: false,
        ignore_merges: false,
        add_bos: false,
    },
    Words { names: &["smollm"], pattern: None, single_digits: true, ignore_merges: false, add_bos: false },
    Words {
        names: &["llama-bpe", "llama3", "llama-v3"],
        pattern: Some(
            r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        single_digits: false,
        ignore_merges: true,
        add_bos: true,
    },
    Words {
        names: &["qwen2", "deepseek-r1-qwen", "megrez"],
        pattern: Some(
            r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        single_digits: false,
        ignore_merges: false,
        add_bos: false,
    },
];

impl Words {
    pub fn of(name: &str) -> Option<&'static Self> {
        WORDS.iter().find(|words| words.names.contains(&name))
    }

    /// All names that are known.
    pub fn names() -> String {
        let names: Vec<&str> = WORDS.iter().flat_map(|words| words.names).copied().collect();
        names.join(", ")
    }

    fn pre_tokenizer(&self) -> Result<PreTokenizerWrapper> {
        let bytes = ByteLevel::new(false, true, self.pattern.is_none());
        if self.single_digits {
            return Ok(Sequence::new(vec![Digits::new(true).into(), bytes.into()]).into());
        }
        let Some(pattern) = self.pattern else { return Ok(bytes.into()) };
        let pattern = SplitPattern::Regex(pattern.to_owned());
        let split = caught(|| Split::new(pattern, SplitDelimiterBehavior::Isolated, false))?;
        Ok(Sequence::new(vec![split.into(), bytes.into()]).into())
    }
}

/// A vocabulary as files hold it.
pub(super) struct Vocabulary<'f> {
    /// The text of each piece, by id.
    pub pieces: Vec<&'f str>,
    /// 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub types: Vec<i32>,
    /// Pairs of pieces with a space between, in the order in which they are merged.
    pub merges: Vec<&'f str>,
}

/// Checks a vocabulary and makes it ready for use.
pub(super) fn tokenizer(
    vocabulary: &Vocabulary,
    words: &Words,
    before: Option<u32>,
    after: Option<u32>,
) -> Result<Library> {
    let Vocabulary { pieces, types, merges } = vocabulary;
    if types.len() != pieces.len() {
        return Err(refuse(format!("{} pieces, but {} types", pieces.len(), types.len())));
    }
    let (vocab, merges) = (ids(pieces)?, pairs(merges)?);
    for (left, right) in &merges {
        check_merge((left, right), "", |piece| vocab.contains_key(piece))?;
    }
    let bpe = BPE::builder().vocab_and_merges(vocab, merges);
    let model = caught(|| bpe.ignore_merges(words.ignore_merges).build())?;
    let mut inner = tokenizers::Tokenizer::new(model);
    inner.with_pre_tokenizer(Some(words.pre_tokenizer()?)).with_decoder(Some(ByteLevel::default()));
    caught(|| inner.add_tokens(special_tokens(pieces, types)))?;
    Ok(Library::new(inner, before, after))
}

/// The ids of the pieces. A piece that stands twice is refused, as llama.cpp does.
fn ids(pieces: &[&str]) -> Result<Vocab> {
    if pieces.is_empty() {
        return Err(refuse("the vocabulary is empty"));
    }
    let mut ids = Vocab::with_capacity(pieces.len());
    for (id, piece) in (0..).zip(pieces).filter(|(_, piece)| !piece.is_empty()) {
        if let Some(first) = ids.insert((*piece).to_owned(), id) {
            return Err(refuse(format!("'{piece}' is piece {first} and piece {id}")));
        }
    }
    Ok(ids)
}

/// The two pieces of each merge: between them is the first space that is not the first character.
fn pairs(merges: &[&str]) -> Result<Merges> {
    let pair = |merge: &&str| {
        let space = merge.bytes().skip(1).position(|byte| byte == b' ').map(|after_first| after_first + 1)?;
        Some((merge[..space].to_owned(), merge[space + 1..].to_owned()))
    };
    let pairs = merges.iter().map(|merge| {
        pair(merge)
            .ok_or_else(|| refuse(format!("the merge '{merge}' is not two pieces with a space between")))
    });
    pairs.collect()
}

/// The pieces that are found in a text before anything else.
fn special_tokens(pieces: &[&str], types: &[i32]) -> Vec<AddedToken> {
    let rows = pieces.iter().zip(types).filter(|(piece, _)| !piece.is_empty());
    let special = rows.filter_map(|(piece, kind)| match kind {
        2 | 3 => Some(AddedToken::from(*piece, true)),
        4 => Some(AddedToken::from(*piece, false)),
        _ => None,
    });
    special.map(|token| token.normalized(false)).collect()
}
