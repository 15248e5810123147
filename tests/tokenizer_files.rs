//! Tokenizers by their files: SentencePiece models and GPT-2's two files, sound, unfit and damaged.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;
use xcheck::Error;
use xcheck::format::FileBytes;
use xcheck::tokenizer::{SettingsFiles, SpecialTokens, Tokenizer, TokenizerFiles};

use crate::common::share::share;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &Path) -> Result<Box<dyn Tokenizer>, Error> {
    TokenizerFiles::at(path)?.expect("there is one").read()
}

fn model(bytes: Vec<u8>) -> Result<Box<dyn Tokenizer>, Error> {
    let model = FileBytes { path: "tokenizer.model".into(), data: bytes.into() };
    TokenizerFiles::SentencePiece { model, settings: SettingsFiles::default() }.read()
}

fn refusal(result: Result<Box<dyn Tokenizer>, Error>) -> String {
    match result {
        Ok(_) => panic!("this must be refused"),
        Err(error) => error.to_string(),
    }
}

// ---- SentencePiece models, byte for byte ---------------------------------------------------------------

/// A field of a protocol buffer: numbers as varints, everything else by its length.
fn number(tag: u64, value: u64) -> Vec<u8> {
    [varint(tag << 3), varint(value)].concat()
}

fn bytes(tag: u64, value: &[u8]) -> Vec<u8> {
    [varint(tag << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7F {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn piece(text: &str, score: f32, kind: u64) -> Vec<u8> {
    let score = [varint(2 << 3 | 5), score.to_le_bytes().to_vec()].concat();
    bytes(1, &[bytes(1, text.as_bytes()), score, number(3, kind)].concat())
}

const PIECES: [(&str, f32, u64); 11] = [
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    ("▁", -9.0, 1),
    ("a", -9.0, 1),
    ("b", -9.0, 1),
    ("ab", -1.0, 5),
    ("aba", -2.0, 1),
    ("▁▁", 0.0, 4),
    ("<cut>", 0.0, 4),
    ("▁a", -3.0, 1),
];

/// BPE that leaves texts as they are; later fields go before earlier ones.
fn some_model(trainer: &[u8], normalizer: &[u8]) -> Vec<u8> {
    let pieces: Vec<u8> = PIECES.iter().flat_map(|&(text, score, kind)| piece(text, score, kind)).collect();
    let trainer = bytes(2, &[&number(3, 2), trainer].concat());
    let normalizer = bytes(3, &[&number(4, 0), normalizer].concat());
    [pieces, trainer, normalizer].concat()
}

#[test]
fn a_model_is_used_by_the_rules_of_sentencepiece() {
    let tokenizer = model(some_model(&[], &[])).unwrap();
    let ids = |text: &str| tokenizer.encode_with(text, SpecialTokens { add: false, parse: false }).unwrap();
    assert_eq!(ids("a"), [10], "one space before the text");
    assert_eq!(ids("<cut>a"), [3, 9, 4], "and none after what was cut out");
    assert_eq!(ids(" a"), [8, 4], "user-defined pieces are found with the prefix");
    assert_eq!(ids("bab"), [3, 5, 4, 5], "unused pieces are taken apart");
    assert_eq!(ids("baba"), [3, 5, 7], "but are a step on the way");
    assert_eq!(ids("<s>"), [3, 0], "names are text, here of unknown characters");
    assert_eq!(tokenizer.encode("<s>a", true).unwrap(), [1, 1, 4]);
}

#[test]
fn the_configuration_says_whether_bos_is_added() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("tokenizer.model");
    fs::write(&path, some_model(&[], &[])).unwrap();
    assert_eq!(read(&path).unwrap().encode("a", true).unwrap(), [1, 10]);
    let config = folder.path().join("tokenizer_config.json");
    fs::write(&config, r#"{"add_bos_token": false, "add_eos_token": true}"#).unwrap();
    assert_eq!(read(&path).unwrap().encode("a", true).unwrap(), [10, 2]);
    assert_eq!(read(folder.path()).unwrap().encode("a", true).unwrap(), [10, 2]);
    fs::write(&config, "{").unwrap();
    assert!(refusal(read(&path)).contains("tokenizer_config.json: not a valid tokenizer file"));
}

#[test]
fn a_model_that_changes_texts_or_is_no_bpe_is_refused_with_what_it_asks_for() {
    let cases = [
        (some_model(&number(3, 1), &[]), "'trainer_spec.model_type' is unigram, expected BPE"),
        (some_model(&number(3, 99), &[]), "'trainer_spec.model_type' is unknown"),
        (
            some_model(&[], &[bytes(1, b"nmt_nfkc"), bytes(2, b"x")].concat()),
            "'normalizer_spec.name' is nmt_nfkc",
        ),
        (some_model(&[], &number(4, 1)), "'normalizer_spec.remove_extra_whitespaces' is true"),
        (some_model(&[], &number(5, 0)), "'normalizer_spec.escape_whitespaces' is false"),
        (some_model(&number(24, 1), &[]), "treat_whitespace_as_suffix"),
        ([some_model(&[], &[]), bytes(5, &bytes(2, b"x"))].concat(), "'normalizer_spec.name'"),
        ([some_model(&[], &[]), piece("a", 0.0, 1)].concat(), "duplicate piece 'a': ids 4 and 11"),
        ([some_model(&[], &[]), piece("x", f32::NAN, 1)].concat(), "NaN"),
        (Vec::new(), "unigram"),
        (b"GGUF".to_vec(), "tokenizer.model: not a valid tokenizer file"),
    ];
    for (bytes, part) in cases {
        let refused = refusal(model(bytes));
        assert!(refused.contains(part), "{refused}, expected {part}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: share(2, 256), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_model_is_sound_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        end in any::<Option<prop::sample::Index>>(),
        text in "[ab <cut>s]{0,12}",
    ) {
        let mut bytes = some_model(&[], &[]);
        changes.iter().for_each(|(at, byte)| { let at = at.index(bytes.len()); bytes[at] = *byte; });
        if let Some(end) = end {
            bytes.truncate(end.index(bytes.len()));
        }
        if let Ok(tokenizer) = model(bytes) {
            let _ = tokenizer.encode(&text, true).map(|ids| tokenizer.decode(&ids));
        }
    }
}

// ---- GPT-2's files --------------------------------------------------------------------------------------

fn gpt2(pieces: &str, merges: &[u8]) -> Result<Box<dyn Tokenizer>, Error> {
    let source = |name: &str, data: &[u8]| FileBytes { path: name.into(), data: data.to_vec().into() };
    let (pieces, merges) = (source("vocab.json", pieces.as_bytes()), source("merges.txt", merges));
    TokenizerFiles::Gpt2 { pieces, merges, settings: SettingsFiles::default() }.read()
}

#[test]
fn gpt_2s_two_files_make_the_tokenizer_that_tokenizer_json_makes() {
    let hf = root("checkpoints/tiny-gpt2/hf");
    let folder = TempDir::new().unwrap();
    for (from, to) in [("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")] {
        fs::copy(hf.join(from), folder.path().join(to)).unwrap();
    }
    let whole = read(&hf).unwrap();
    for path in [folder.path().to_owned(), folder.path().join("vocab.bpe"), hf.join("vocab.json")] {
        let ours = read(&path).unwrap();
        for text in ["Lily went home.", "  a\n\nb 123 don't", "🙂 é <|endoftext|>x", ""] {
            assert_eq!(ours.encode(text, true).unwrap(), whole.encode(text, true).unwrap(), "{text:?}");
        }
        assert_eq!(ours.vocab_size(), whole.vocab_size());
    }
}

#[test]
fn files_of_gpt_2_that_contradict_themselves_are_refused() {
    let cases: [(&str, &[u8], &str); 6] = [
        (r#"{"a": 0, "b": 0}"#, b"", "have the same id 0"),
        (r#"{"a": 0, "b": 4000000000}"#, b"", "'b' has the id 4000000000, but there are only 2 pieces"),
        (r#"{"a": 0, "b": 1}"#, b"#version: 0.2\na b\n", "the merge of 'a' and 'b' is not a piece"),
        (r#"{"a": 0}"#, b"\xFF", "merges.txt: byte 0: the list of merges is not UTF-8"),
        ("{}", b"", "the vocabulary is empty"),
        ("[", b"", "vocab.json: not a valid vocabulary file"),
    ];
    for (pieces, merges, part) in cases {
        let refused = refusal(gpt2(pieces, merges));
        assert!(refused.contains(part), "{refused}, expected {part}");
    }
}
