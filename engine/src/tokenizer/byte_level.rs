//! Byte-level BPE as llama.cpp runs it for GGUF files whose `tokenizer.ggml.model` is "gpt2".
//!
//! Pieces are written in GPT-2's alphabet, with one printable character per byte. A text is split at special
//! tokens, then into words by the pattern of the file's pre-tokenizer (`tokenizer.ggml.pre`). Within words, pairs
//! are merged in the order of the list. If the names of special tokens overlap, llama.cpp searches the whole text
//! for the longest name first; this module takes the leftmost name, then the longest. Like llama.cpp, it does not
//! normalise text.

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use super::library::{Library, caught, check_merge};
use crate::error::Result;
use crate::tokenizer::refuse;

/// Pre-tokenizer: the patterns that cut texts into words, and other settings that follow from its name.
pub(super) struct PreTokenizer {
    /// Names of the pre-tokenizer in `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Patterns. The first one splits a text into matches and the text between them, the next one splits the results,
    /// and so on.
    patterns: &'static [&'static str],
    /// True if a word that is itself a piece is used without applying merges.
    ignore_merges: bool,
    /// True if texts begin with BOS by default.
    pub(crate) add_bos: bool,
}

impl PreTokenizer {
    const fn new(names: &'static [&'static str], patterns: &'static [&'static str]) -> Self {
        Self { names, patterns, ignore_merges: false, add_bos: false }
    }

    const fn ignoring_merges(self) -> Self {
        Self { ignore_merges: true, ..self }
    }

    const fn adding_bos(self) -> Self {
        Self { add_bos: true, ..self }
    }
}

/// Pattern of English contractions, in either case.
macro_rules! contractions {
    () => {
        r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
    };
}

/// Pattern of whitespace: newlines with the spaces before them; spaces except the last one before a word; other
/// spaces.
macro_rules! spaces {
    () => {
        r"\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}

/// Pattern of words with capital letters before small letters, with an optional preceding character.
macro_rules! cased {
    ($letters:literal, $after:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?(?:(?=",
            $letters,
            r")[^a-z])*(?:(?=",
            $letters,
            r")[^A-Z])+",
            $after,
            r"|[^\r\n\p{L}\p{N}]?(?:(?=",
            $letters,
            r")[^a-z])+(?:(?=",
            $letters,
            r")[^A-Z])*",
            $after,
        )
    };
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|", spaces!());
const QWEN2: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|", spaces!());
const JAIS2: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)",
    r"|\s{1,2}(?!\S)|\s",
);
const MINICPM5: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|", spaces!());
const QWEN35: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|",
    spaces!()
);
const TEKKEN: &str = concat!(cased!(r"\p{L}", ""), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|", spaces!());
const GPT4O: &str = concat!(
    cased!(r"\p{L}", r"(?:'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL]))?"),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|",
    spaces!()
);
const GRANITE_EMBEDDING: &str = concat!(
    cased!(r"[\p{L}\p{M}]", r"(?:'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL]))?"),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|",
    spaces!()
);
/// Pattern of Chinese and Japanese characters.
const HAN_AND_KANA: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
/// Pattern that groups digits by threes from the end of a number, so that the first group may be shorter.
const DIGITS_IN_THREES: &str = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))";
/// Pattern of scripts without spaces between words, and of Hangul, in the ranges of llama.cpp.
const ASIAN: &str = "[一-鿿㐀-䶿豈-﫿\u{3040}-ゟ゠-ヿ･-ﾟ⼀-\u{2fdf}\u{e40}-\u{e7f}\u{e80}-\u{eff}ក-\u{17ff}က-႟ꩠ-ꩿꧠ-\u{a9ff}가-\u{d7af}ᄀ-ᇿ]+";
const DEEPSEEK3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"##,
    spaces!()
);
const SPARK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const BAILING: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
);
const SEED_CODER: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|", spaces!());
const UFAKZEKA: &str = concat!(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|", spaces!());
const EXAONE_MOE: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
);

/// Pre-tokenizers by llama.cpp's names, with the patterns of the models' own files.
const WORDS: &[PreTokenizer] = &[
    PreTokenizer::new(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        &[GPT2],
    ),
    PreTokenizer::new(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[r"\p{N}", GPT2],
    ),
    PreTokenizer::new(
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        &[LLAMA3],
    )
    .ignoring_merges()
    .adding_bos(),
    PreTokenizer::new(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA3]),
    PreTokenizer::new(&["glm4"], &[LLAMA3]).ignoring_merges(),
    PreTokenizer::new(&["jais-2"], &[JAIS2]),
    PreTokenizer::new(&["minicpm5"], &[r"\p{N}{1,3}", MINICPM5]).ignoring_merges(),
    PreTokenizer::new(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "megrez",
            "kormo",
            "f2llmv2",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[QWEN2],
    ),
    PreTokenizer::new(&["qwen35"], &[QWEN35]),
    PreTokenizer::new(&["laguna"], &[r"[^\n]+|[\n]+", QWEN2]),
    PreTokenizer::new(&["tekken"], &[TEKKEN]).ignoring_merges().adding_bos(),
    PreTokenizer::new(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O]),
    PreTokenizer::new(&["granite-embed-multi-97m"], &[GRANITE_EMBEDDING]).ignoring_merges(),
    PreTokenizer::new(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[r"\p{N}{1,3}", HAN_AND_KANA, DEEPSEEK3],
    ),
    PreTokenizer::new(&["afmoe"], &[DIGITS_IN_THREES, ASIAN, DEEPSEEK3]),
    // If a range of characters contains spaces, llama.cpp excludes the spaces from it.
    PreTokenizer::new(
        &["deepseek-coder"],
        &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"(?:(?!\s)[一-龥ࠀ-一가-퟿])+", r"\p{N}"],
    ),
    PreTokenizer::new(&["spark2_5"], &[r"\p{N}{1,3}", HAN_AND_KANA, SPARK, r"\p{N}"]),
    PreTokenizer::new(&["falcon"], &[r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"]),
    PreTokenizer::new(&["default"], &[r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    PreTokenizer::new(&["poro-chat", "bloom", "gpt3-finnish"], &[BLOOM]),
    PreTokenizer::new(&["viking"], &[BLOOM, r"\p{N}"]),
    PreTokenizer::new(&["superbpe"], &[r"\p{N}+", "(?=([0-9]{3})+(?![0-9]))"]),
    PreTokenizer::new(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    PreTokenizer::new(&["seed-coder"], &[SEED_CODER]),
    PreTokenizer::new(&["ufakzeka"], &[UFAKZEKA]),
    PreTokenizer::new(&["exaone-moe"], &[EXAONE_MOE]),
    PreTokenizer::new(
        &["chameleon"],
        &[
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ],
    )
    .adding_bos(),
];

impl PreTokenizer {
    pub(crate) fn of(name: &str) -> Option<&'static Self> {
        WORDS.iter().find(|words| words.names.contains(&name))
    }

    /// Returns all known names.
    pub(crate) fn names() -> String {
        let names: Vec<&str> = WORDS.iter().flat_map(|words| words.names).copied().collect();
        names.join(", ")
    }

    /// Returns the `tokenizers` library's version of the rule. With `has_prefix`, a space is added before every word
    /// that has none.
    fn pre_tokenizer(&self, has_prefix: bool) -> Result<PreTokenizerWrapper> {
        let cut = |pattern: &&str| {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            caught(|| Split::new(pattern, SplitDelimiterBehavior::Isolated, false)).map(Into::into)
        };
        let mut steps = self.patterns.iter().map(cut).collect::<Result<Vec<PreTokenizerWrapper>>>()?;
        steps.push(ByteLevel::new(has_prefix, true, false).into());
        Ok(Sequence::new(steps).into())
    }
}

/// Vocabulary of a byte-level BPE tokenizer, as files store it.
pub(super) struct BpeVocabulary<'f> {
    /// Text of each piece, by id.
    pub(crate) pieces: Vec<&'f str>,
    /// Type of each piece: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub(crate) types: Vec<i32>,
    /// Pairs of pieces, separated by a space, in merge order.
    pub(crate) merges: Vec<&'f str>,
}

/// Checks a vocabulary and creates the tokenizer.
pub(super) fn tokenizer(
    vocabulary: &BpeVocabulary,
    words: &PreTokenizer,
    before: Option<u32>,
    after: Option<u32>,
) -> Result<Library> {
    Ok(Library::new(build(vocabulary, words, false)?, before, after))
}

/// Checks a vocabulary and creates the library's tokenizer.
pub(super) fn build(
    vocabulary: &BpeVocabulary,
    words: &PreTokenizer,
    has_prefix: bool,
) -> Result<tokenizers::Tokenizer> {
    let BpeVocabulary { pieces, types, merges } = vocabulary;
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
    inner.with_pre_tokenizer(Some(words.pre_tokenizer(has_prefix)?)).with_decoder(Some(ByteLevel::default()));
    caught(|| inner.add_tokens(special_tokens(pieces, types)))?;
    Ok(inner)
}

/// Returns the ids of the pieces. A duplicate piece is an error, as in llama.cpp.
fn ids(pieces: &[&str]) -> Result<Vocab> {
    if pieces.is_empty() {
        return Err(refuse("the vocabulary is empty"));
    }
    let mut ids = Vocab::with_capacity(pieces.len());
    for (id, piece) in (0..).zip(pieces).filter(|(_, piece)| !piece.is_empty()) {
        if let Some(first) = ids.insert((*piece).to_owned(), id) {
            return Err(refuse(format!("duplicate piece '{piece}': ids {first} and {id}")));
        }
    }
    Ok(ids)
}

/// Returns the two pieces of each merge. They are separated by the first space that is not the first character.
fn pairs(merges: &[&str]) -> Result<Merges> {
    let pair = |merge: &&str| {
        let space = merge.bytes().skip(1).position(|byte| byte == b' ').map(|after_first| after_first + 1)?;
        Some((merge[..space].to_owned(), merge[space + 1..].to_owned()))
    };
    let pairs = merges.iter().map(|merge| {
        pair(merge)
            .ok_or_else(|| refuse(format!("the merge '{merge}' is not two pieces with a space between them")))
    });
    pairs.collect()
}

/// Returns the special tokens, which are split off before everything else.
fn special_tokens(pieces: &[&str], types: &[i32]) -> Vec<AddedToken> {
    let rows = pieces.iter().zip(types).filter(|(piece, _)| !piece.is_empty());
    let special = rows.filter_map(|(piece, kind)| match kind {
        2 | 3 => Some(AddedToken::from(*piece, true)),
        4 => Some(AddedToken::from(*piece, false)),
        _ => None,
    });
    special.map(|token| token.normalized(false)).collect()
}
