//! The tokenizer against the real sentencepiece, against a slow twin of itself, and against bad vocabularies.

use std::collections::HashMap;
use std::path::Path;

use proptest::prelude::*;
use serde::Deserialize;
use xcheck::error::{Error, TokenizerError};
use xcheck::format::{FileBytes, Gguf};
use xcheck::tokenizer::{
    PieceVocabulary, SentencePiece, SentencePieceSettings, Tokenizer, TokenizerRules, from_gguf,
};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama2");

// ---- the real sentencepiece -------------------------------------------------------------------------

/// What `reference-scripts/vectors/make_tokenizer_vectors.py` wrote.
#[derive(Deserialize)]
struct Vectors {
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    text: String,
    ids: Vec<u32>,
    decoded: String,
}

fn vectors() -> Vec<Vector> {
    let text =
        std::fs::read_to_string(Path::new(MODEL).join("tokenizer-vectors.json")).expect("it is committed");
    serde_json::from_str::<Vectors>(&text).expect("the script writes JSON").vectors
}

fn tiny_llama2() -> Box<dyn Tokenizer> {
    let source = FileBytes::open(&Path::new(MODEL).join("tiny-llama2-q8_0.gguf")).expect("it is committed");
    let file = Gguf::read(&source).expect("it is a GGUF file");
    from_gguf(&file).expect("its tokenizer is sound").expect("it has one")
}

/// Whether a text names control pieces: they are text for sentencepiece, and tokens here, as for llama.cpp.
fn names_tokens(text: &str) -> bool {
    ["<s>", "</s>", "<unk>"].iter().any(|name| text.contains(name))
}

#[test]
fn every_text_has_the_ids_that_sentencepiece_gives_it() {
    let tokenizer = tiny_llama2();
    for Vector { text, ids, .. } in vectors().into_iter().filter(|vector| !names_tokens(&vector.text)) {
        assert_eq!(tokenizer.encode(&text, true).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.encode(&text, false).unwrap(), ids[1..], "{text:?}");
    }
}

#[test]
fn ids_have_the_text_that_sentencepiece_gives_them() {
    let tokenizer = tiny_llama2();
    for Vector { ids, decoded, text } in vectors() {
        assert_eq!(tokenizer.decode_lossy(&ids).unwrap(), decoded, "{text:?}");
    }
}

#[test]
fn a_long_line_takes_no_longer_than_its_length() {
    let tokenizer = tiny_llama2();
    for text in ["a".repeat(1_000_000), " ".repeat(1_000_000), "Lily went home. ".repeat(100_000)] {
        let ids = tokenizer.encode(&text, true).unwrap();
        assert_eq!(tokenizer.decode_lossy(&ids).unwrap(), text);
    }
}

proptest! {
    #[test]
    fn any_text_comes_back(text in any::<String>()) {
        let tokenizer = tiny_llama2();
        let ids = tokenizer.encode(&text, true).unwrap();
        prop_assert_eq!(tokenizer.decode_lossy(&ids).unwrap(), text.replace('▁', " "));
    }
}

// ---- the slow twin ----------------------------------------------------------------------------------

/// Looks at all neighbours before each merge; no queue, nothing to go stale.
fn merge_slowly(text: &str, scores: &HashMap<String, f32>) -> Vec<String> {
    let mut symbols: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(usize, f32)> = None;
        for left in 1..symbols.len() {
            let Some(&score) = scores.get(&symbols[left - 1..=left].concat()) else { continue };
            if best.is_none_or(|(_, known)| score > known) {
                best = Some((left - 1, score));
            }
        }
        let Some((left, _)) = best else { return symbols };
        let right = symbols.remove(left + 1);
        symbols[left] += &right;
    }
}

fn some_vocabulary() -> impl Strategy<Value = HashMap<String, f32>> {
    // Few letters and few scores, so that merges compete and scores are equal.
    prop::collection::hash_map("[abc]{2,6}", (0..4_u8).prop_map(|score| -f32::from(score)), 0..24)
}

proptest! {
    #[test]
    fn the_bpe_merge_queue_merges_as_its_slow_twin_does(scores in some_vocabulary(), text in "[abc]{0,40}") {
        let characters = ["a", "b", "c"].map(|character| (character.to_owned(), 0.0));
        let rows: Vec<(String, f32)> = characters.into_iter().chain(scores.clone()).collect();
        let pieces = rows.iter().map(|(text, score)| (text.as_str(), *score, 1));
        let tokenizer = tokenizer(pieces, UNPREFIXED).unwrap();
        let ids = tokenizer.encode(&text, false).unwrap();
        let merged: Vec<&str> = ids.iter().map(|&id| rows[id as usize].0.as_str()).collect();
        prop_assert_eq!(merged, merge_slowly(&text, &scores));
    }
}

// ---- small vocabularies -----------------------------------------------------------------------------

const UNPREFIXED: SentencePieceSettings = SentencePieceSettings {
    bos: None,
    eos: None,
    unk: Some(0),
    add_bos: false,
    add_eos: false,
    add_space_prefix: false,
    rules: TokenizerRules::LlamaCpp,
};

fn tokenizer<'p>(
    pieces: impl IntoIterator<Item = (&'p str, f32, i32)>,
    settings: SentencePieceSettings,
) -> Result<SentencePiece, Error> {
    let mut vocabulary = PieceVocabulary::default();
    for (text, score, kind) in pieces {
        vocabulary.pieces.push(text.to_owned());
        vocabulary.scores.push(score);
        vocabulary.types.push(kind);
    }
    SentencePiece::new(vocabulary, settings)
}

/// Special pieces, two letters, a space, two bytes, and one user-defined piece.
const PIECES: [(&str, f32, i32); 10] = [
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    ("<0xC3>", 0.0, 6),
    ("<0xA9>", 0.0, 6),
    ("▁", -9.0, 1),
    ("a", -9.0, 1),
    ("▁a", -1.0, 1),
    ("<|cut|>", 0.0, 4),
    ("aa", -2.0, 5),
];

fn small() -> SentencePiece {
    tokenizer(PIECES, SentencePieceSettings::default()).unwrap()
}

#[test]
fn a_character_without_a_piece_is_its_bytes() {
    assert_eq!(small().encode("é", false).unwrap(), [5, 3, 4]);
    assert_eq!(small().decode(&[5, 3, 4]).unwrap(), "é".as_bytes());
    assert_eq!(small().decode_lossy(&[5, 3]).unwrap(), "\u{fffd}");
}

#[test]
fn characters_without_bytes_are_one_unknown() {
    assert_eq!(small().encode("xyz", false).unwrap(), [5, 0]);
    assert_eq!(small().encode("xaè", false).unwrap(), [5, 0, 6, 0]);
    assert_eq!(small().decode_lossy(&[7, 0]).unwrap(), "a ⁇ ");
}

#[test]
fn only_one_space_is_put_in_front_and_taken_away() {
    for text in ["", "a", " a", "  a", " ", "a ", "é", " é"] {
        let ids = small().encode(text, true).unwrap();
        assert_eq!(small().decode_lossy(&ids).unwrap(), text, "{text:?}");
    }
    let plain = tokenizer(
        PIECES,
        SentencePieceSettings { add_space_prefix: false, ..SentencePieceSettings::default() },
    )
    .unwrap();
    assert_eq!(plain.encode("a", true).unwrap(), [1, 6]);
    assert_eq!(plain.decode_lossy(&[1, 7]).unwrap(), " a");
}

#[test]
fn bos_and_eos_are_added_as_the_settings_say() {
    let ids = |add_bos, add_eos| {
        let settings = SentencePieceSettings { add_bos, add_eos, ..SentencePieceSettings::default() };
        tokenizer(PIECES, settings).unwrap().encode("a", true).unwrap()
    };
    assert_eq!(ids(false, false), [7]);
    assert_eq!(ids(true, false), [1, 7]);
    assert_eq!(ids(true, true), [1, 7, 2]);
    assert_eq!(small().encode("", true).unwrap(), [1]);
}

#[test]
fn the_name_of_a_control_token_is_that_token_even_where_it_could_be_merged() {
    let parts = [("<", 0.0, 1), ("s", 0.0, 1), (">", 0.0, 1), ("<s", 0.0, 1)];
    let tokenizer = tokenizer(PIECES.into_iter().chain(parts), UNPREFIXED).unwrap();
    assert_eq!(tokenizer.encode("<s><s", false).unwrap(), [1, 13]);
    assert_eq!(small().encode("a</s>a<unk>", true).unwrap(), [1, 7, 2, 7, 0]);
}

#[test]
fn a_user_defined_piece_is_cut_out_and_the_text_after_it_starts_anew() {
    assert_eq!(small().encode("a<|cut|>a<|cut|><|cut|>", false).unwrap(), [7, 8, 7, 8, 8]);
    assert_eq!(small().encode("<|cut|", false).unwrap(), [5, 0]);
}

#[test]
fn an_unused_piece_is_merged_as_llama_cpp_does() {
    assert_eq!(small().encode("aaa", false).unwrap(), [7, 9]);
}

#[test]
fn an_empty_piece_is_never_found() {
    let padding = [("", 0.0, 1), ("", 0.0, 4)];
    let tokenizer = tokenizer(PIECES.into_iter().chain(padding), SentencePieceSettings::default()).unwrap();
    assert_eq!(tokenizer.encode("a a", false).unwrap(), [7, 7]);
}

#[test]
fn an_id_outside_the_vocabulary_has_no_text() {
    assert_eq!(small().vocab_size(), 10);
    let refused = small().decode(&[1, 10]).unwrap_err();
    assert!(
        matches!(refused, Error::Tokenizer(TokenizerError::BadToken { id: 10, position: 1, vocab_size: 10 })),
        "{refused}"
    );
}

// ---- vocabularies that contradict themselves --------------------------------------------------------

fn refusal(pieces: &[(&str, f32, i32)], settings: SentencePieceSettings) -> String {
    let refused = tokenizer(pieces.iter().copied(), settings).unwrap_err();
    assert!(matches!(refused, Error::Tokenizer(TokenizerError::Unusable { .. })), "{refused}");
    refused.to_string().trim_start_matches("the tokenizer cannot be used: ").to_owned()
}

#[test]
fn an_empty_vocabulary_is_refused() {
    assert_eq!(refusal(&[], UNPREFIXED), "the vocabulary is empty");
}

#[test]
fn columns_of_different_lengths_are_refused() {
    let vocabulary = PieceVocabulary { pieces: vec!["a".into(); 2], scores: vec![0.0; 2], types: vec![1] };
    let refused = SentencePiece::new(vocabulary, UNPREFIXED).unwrap_err();
    assert!(refused.to_string().ends_with("2 pieces, but 1 types"), "{refused}");
}

#[test]
fn a_piece_that_stands_twice_is_refused() {
    assert_eq!(
        refusal(&[("a", 0.0, 1), ("b", 0.0, 1), ("a", 0.0, 3)], UNPREFIXED),
        "duplicate piece 'a': ids 0 and 2"
    );
}

#[test]
fn an_unknown_type_is_refused() {
    assert_eq!(refusal(&[("a", 0.0, 7)], UNPREFIXED), "piece 0, 'a', has type 7, expected 1 to 6");
}

#[test]
fn a_byte_that_is_not_written_as_one_is_refused() {
    for text in ["0x0A", "<0x0>", "<0x+A>", "<0x1FF>", "a"] {
        assert!(refusal(&[(text, 0.0, 6)], UNPREFIXED).contains("has the type byte"), "{text}");
    }
}

#[test]
fn a_score_that_is_no_number_is_refused() {
    assert_eq!(refusal(&[("a", f32::NAN, 1)], UNPREFIXED), "the score of piece 0, 'a', is NaN");
}

#[test]
fn special_ids_outside_the_vocabulary_are_refused() {
    let pieces = [("<unk>", 0.0, 2)];
    assert!(refusal(&pieces, SentencePieceSettings::default()).starts_with("the BOS id 1 is outside"));
    assert!(
        refusal(&pieces, SentencePieceSettings { eos: Some(9), ..UNPREFIXED })
            .starts_with("the EOS id 9 is outside")
    );
    assert!(
        refusal(&pieces, SentencePieceSettings { unk: Some(1), ..UNPREFIXED })
            .starts_with("the unknown id 1 is outside")
    );
}

#[test]
fn a_special_token_to_be_added_needs_an_id() {
    let refused = refusal(&PIECES, SentencePieceSettings { bos: None, ..SentencePieceSettings::default() });
    assert_eq!(refused, "BOS must be added to texts, but has no id");
}

#[test]
fn a_byte_without_a_piece_needs_an_unknown_id() {
    let refused = refusal(&PIECES, SentencePieceSettings { unk: None, ..UNPREFIXED });
    assert_eq!(refused, "no piece '<0x00>', and no unknown id to replace it");
}
