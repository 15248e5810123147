//! Text that comes out id by id: in whole characters, and in the end the same as all at once.

use std::path::{Path, PathBuf};

use crate::common::hard_texts::Vectors;
use proptest::prelude::*;
use xcheck::format::{FileBytes, Gguf};
use xcheck::tokenizer::{
    HuggingFaceFiles, Llama2cTokenizer, SettingsFiles, TextStream, Tokenizer, from_gguf, from_hugging_face,
};

fn source(path: &str) -> FileBytes {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    FileBytes::open(&path).expect("it is committed")
}

fn gguf(path: &str) -> Box<dyn Tokenizer> {
    from_gguf(&Gguf::read(&source(path)).unwrap()).unwrap().expect("there is one")
}

fn hugging_face(folder: &str) -> Box<dyn Tokenizer> {
    let [tokenizer, config] =
        ["tokenizer.json", "tokenizer_config.json"].map(|name| source(&format!("{folder}/{name}")));
    from_hugging_face(&HuggingFaceFiles { tokenizer, settings: SettingsFiles::of_config(Some(config)) })
        .unwrap()
}

/// One of every kind.
fn tokenizers() -> Vec<Box<dyn Tokenizer>> {
    let llama2c = source("tests/data/tokenizers/llama2c/tokenizer.bin");
    vec![
        gguf("checkpoints/tiny-llama2/tiny-llama2-q8_0.gguf"),
        hugging_face("checkpoints/tiny-llama2/hf"),
        gguf("tests/data/tokenizers/llama3/vocabulary.gguf"),
        hugging_face("tests/data/tokenizers/gpt2"),
        Box::new(Llama2cTokenizer::read(&llama2c, None).unwrap()),
    ]
}

/// The parts that come out.
fn streamed(tokenizer: &dyn Tokenizer, ids: &[u32]) -> Vec<String> {
    let mut stream = TextStream::new(tokenizer);
    let mut parts: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    parts.push(stream.finish().unwrap());
    parts
}

#[test]
fn every_text_comes_out_whole_and_in_whole_characters() {
    let texts = Vectors::read("llama2c").texts();
    for tokenizer in tokenizers() {
        for text in &texts {
            let ids = tokenizer.encode(text, true).unwrap();
            let parts = streamed(&*tokenizer, &ids);
            assert_eq!(parts.concat(), tokenizer.decode_lossy(&ids).unwrap(), "{text:?}");
            let replaced = |part: &String| part.contains('\u{fffd}');
            assert!(!parts.iter().any(replaced) || text.contains('\u{fffd}'), "{text:?}: {parts:?}");
        }
    }
}

#[test]
fn a_character_comes_out_with_its_last_byte() {
    let tokenizer = gguf("checkpoints/tiny-llama2/tiny-llama2-q8_0.gguf");
    let ids = tokenizer.encode("🙂a", true).unwrap();
    assert_eq!(streamed(&*tokenizer, &ids), ["", "", "", "", "", "🙂", "a", ""]);
}

#[test]
fn a_character_that_never_becomes_whole_is_replaced() {
    let tokenizer = gguf("checkpoints/tiny-llama2/tiny-llama2-q8_0.gguf");
    let ids = tokenizer.encode("🙂", true).unwrap();
    assert_eq!(streamed(&*tokenizer, &ids[..4]).concat(), "\u{fffd}");
    let broken = [&ids[..4], &tokenizer.encode("went", false).unwrap()].concat();
    assert_eq!(streamed(&*tokenizer, &broken).concat(), tokenizer.decode_lossy(&broken).unwrap());
}

/// Bytes that begin a character over and over must not be held back for ever.
#[test]
fn what_is_no_text_at_all_still_comes_out() {
    for tokenizer in tokenizers() {
        let byte = tokenizer.encode("🙂", false).unwrap().into_iter().rev().nth(3).unwrap();
        let parts = streamed(&*tokenizer, &[byte; 100]);
        let first = parts.iter().position(|part| !part.is_empty()).unwrap();
        assert!(first < 8, "{first}");
        assert!(parts[99].len() < 30, "{:?}", parts[99]);
    }
}

#[test]
fn after_a_prompt_only_what_is_new_comes_out() {
    for tokenizer in tokenizers() {
        let ids = tokenizer.encode("Lily went home 🙂. Tom saw", true).unwrap();
        for cut in 0..ids.len() {
            let mut stream = TextStream::after(&*tokenizer, &ids[..cut]).unwrap();
            let mut text =
                tokenizer.decode_lossy(&ids[..cut]).unwrap().trim_end_matches('\u{fffd}').to_owned();
            ids[cut..].iter().for_each(|&id| text += &stream.push(id).unwrap());
            text += &stream.finish().unwrap();
            assert_eq!(text, tokenizer.decode_lossy(&ids).unwrap(), "{cut}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_text_streamed_is_the_text(text in any::<String>()) {
        for tokenizer in tokenizers() {
            let ids = tokenizer.encode(&text, true).unwrap();
            prop_assert_eq!(streamed(&*tokenizer, &ids).concat(), tokenizer.decode_lossy(&ids).unwrap());
        }
    }
}
