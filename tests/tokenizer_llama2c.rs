//! llama2.c's tokenizer against its own program, and against damaged files.

use std::path::Path;

use crate::common::hard_texts::Vectors;
use xcheck::error::{Error, FormatError, TokenizerError};
use xcheck::format::FileBytes;
use xcheck::tokenizer::{Llama2cTokenizer, SpecialTokens, Tokenizer};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizers/llama2c");

fn committed() -> FileBytes {
    FileBytes::open(&Path::new(FOLDER).join("tokenizer.bin")).expect("it is committed")
}

fn tokenizer() -> Llama2cTokenizer {
    Llama2cTokenizer::read(&committed(), Some(512)).expect("the script wrote it")
}

#[test]
fn every_text_has_the_ids_that_run_c_gives_it() {
    let tokenizer = tokenizer();
    let compared = Vectors::read("llama2c").check("run.c", |text| tokenizer.encode(text, true));
    assert!(compared > 140, "{compared}");
}

#[test]
fn a_text_comes_back_but_for_names_of_byte_pieces() {
    let tokenizer = tokenizer();
    for text in Vectors::read("llama2c").texts() {
        for add in [true, false] {
            let ids = tokenizer.encode_with(&text, SpecialTokens { add, parse: false }).unwrap();
            assert_eq!(tokenizer.decode_lossy(&ids).unwrap(), text, "{text:?}");
        }
    }
}

#[test]
fn an_empty_text_gets_no_space() {
    assert_eq!(tokenizer().encode("", true).unwrap(), [1]);
    assert!(tokenizer().encode("", false).unwrap().is_empty());
}

#[test]
fn the_number_of_pieces_is_the_models_or_the_files() {
    assert_eq!(Llama2cTokenizer::read(&committed(), None).unwrap().vocab_size(), 512);
    assert_eq!(Llama2cTokenizer::read(&committed(), Some(500)).unwrap().vocab_size(), 500);
    let refused = Llama2cTokenizer::read(&committed(), Some(513)).unwrap_err();
    assert!(matches!(refused, Error::Format(FormatError::Truncated { .. })), "{refused}");
    assert!(refused.to_string().contains("the score of piece 512"), "{refused}");
}

#[test]
fn an_id_outside_the_vocabulary_has_no_text() {
    let refused = tokenizer().decode(&[1, 512]).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Tokenizer(TokenizerError::BadToken { id: 512, position: 1, vocab_size: 512 })
        ),
        "{refused}"
    );
    assert_eq!(tokenizer().piece(512), None);
}

#[test]
fn a_long_line_takes_no_longer_than_its_length() {
    let tokenizer = tokenizer();
    for text in ["a".repeat(100_000), " ".repeat(100_000), "Lily went home. ".repeat(10_000)] {
        let ids = tokenizer.encode(&text, true).unwrap();
        assert_eq!(tokenizer.decode_lossy(&ids).unwrap(), text);
    }
}

// ---- damaged files ------------------------------------------------------------------------------------

/// A file of these pieces, its longest piece declared as `longest`.
fn file(longest: u32, pieces: &[(&[u8], f32)]) -> FileBytes {
    let mut data = longest.to_le_bytes().to_vec();
    for (piece, score) in pieces {
        data.extend(score.to_le_bytes());
        data.extend((piece.len() as u32).to_le_bytes());
        data.extend(*piece);
    }
    FileBytes { path: "tokenizer.bin".into(), data: data.into() }
}

#[track_caller]
fn assert_refused(source: &FileBytes, vocab_size: Option<usize>, part: &str) {
    let refused = Llama2cTokenizer::read(source, vocab_size).unwrap_err().to_string();
    assert!(refused.contains(part), "{refused}");
}

#[test]
fn a_damaged_file_is_refused_with_the_place() {
    assert_refused(
        &file(4, &[(b"longer", 0.0)]),
        None,
        "byte 8: the length of piece 0 is 6, expected at most 4",
    );
    assert_refused(&file(4, &[(b" ", f32::NAN)]), None, "byte 4: the score of piece 0 is NaN");
    assert_refused(&file(4, &[(b" ", 0.0), (b"a\xFF", 0.0)]), None, "byte 22: piece 1 is not UTF-8");
    assert_refused(&file(4, &[(b"a", 0.0)]), None, "the piece ' ' is missing");
    assert_refused(&file(4, &[(b" ", 0.0), (b" ", 0.0)]), None, "duplicate piece ' ': ids 0 and 1");
    assert_refused(&file(4, &[]), None, "the piece ' ' is missing");
    assert_refused(&file(4, &[(b" ", 0.0)]), Some(usize::MAX), "truncated: the score of piece 1");
    let short = FileBytes { path: "tokenizer.bin".into(), data: vec![1, 0].into() };
    assert_refused(&short, None, "the length of the longest piece");
}

#[test]
fn every_truncation_is_refused() {
    let whole = committed();
    for len in (0..whole.data.len()).step_by(7) {
        let cut = FileBytes { path: whole.path.clone(), data: whole.data.slice(0..len) };
        assert!(
            matches!(
                Llama2cTokenizer::read(&cut, Some(512)),
                Err(Error::Format(FormatError::Truncated { .. }))
            ),
            "{len}"
        );
    }
}

#[test]
fn a_byte_that_has_no_piece_is_an_error_and_no_panic() {
    let tokenizer = Llama2cTokenizer::read(&file(1, &[(b" ", 0.0)]), None).unwrap();
    let refused = tokenizer.encode("x", true).unwrap_err().to_string();
    assert!(refused.ends_with("byte 0x78 is piece 123, but there are only 1 pieces"), "{refused}");
}

#[test]
fn bpe_merges_take_the_highest_score_then_the_leftmost_and_none_at_the_bottom() {
    let pieces: [(&[u8], f32); 6] =
        [(b" ", 0.0), (b"a", 0.0), (b"aa", -1.0), (b"aaa", -0.5), (b" a", -1.0), (b"aaaa", -1e10)];
    let tokenizer = Llama2cTokenizer::read(&file(4, &pieces), None).unwrap();
    assert_eq!(tokenizer.encode("aaa", false).unwrap(), [4, 2]);
    assert_eq!(tokenizer.encode("aaaa", false).unwrap(), [4, 3]);
    assert_eq!(tokenizer.encode("aaaaa", false).unwrap(), [4, 3, 1]);
}
