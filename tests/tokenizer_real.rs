//! Tokenizers against their real counterparts, on hard texts and 100 kB lines, with small vocabularies and real ones.
//!
//! The real vocabularies are fetched by `reference-scripts/vectors/get_vocabularies.py`; tests that need
//! them are skipped without them.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::common::hard_texts::Vectors;
use crate::common::skip::skip;
use xcheck::format::{FileBytes, Gguf};
use xcheck::tokenizer::{SettingsFiles, SpecialTokens, Tokenizer, TokenizerFiles, from_gguf};

const PARSED: SpecialTokens = SpecialTokens { add: true, parse: true };
const PLAIN: SpecialTokens = SpecialTokens { add: true, parse: false };

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn gguf(path: &Path) -> Box<dyn Tokenizer> {
    let source = FileBytes::open(path).expect("it is there");
    from_gguf(&Gguf::read(&source).expect("it is GGUF")).expect("it is sound").expect("there is one")
}

fn files(path: &str) -> Box<dyn Tokenizer> {
    TokenizerFiles::at(&root(path)).unwrap().expect("it is one").read().unwrap()
}

/// The shipped SentencePiece model without the settings beside it, which ask for transformers' rules.
fn sentencepiece() -> Box<dyn Tokenizer> {
    let model = FileBytes::open(&root("checkpoints/tiny-llama2/hf/tokenizer.model")).expect("it ships");
    TokenizerFiles::SentencePiece { model, settings: SettingsFiles::default() }.read().expect("it is sound")
}

/// A real vocabulary by llama.cpp's name for it.
fn real(name: &str) -> Option<Box<dyn Tokenizer>> {
    let file = format!("tests/data/vocabularies/ggml-vocab-{name}.gguf");
    if root(&file).is_file() {
        return Some(gguf(&root(&file)));
    }
    skip(format_args!("no {file}; get it with: python reference-scripts/vectors/get_vocabularies.py"));
    None
}

/// Holds both ways of reading names of special tokens against an engine's two columns.
fn check(folder: &str, engine: &str, tokenizer: &dyn Tokenizer) -> usize {
    let vectors = Vectors::of(folder, "hard.json");
    let mut compared = vectors.check(engine, |text| tokenizer.encode_with(text, PARSED));
    compared += vectors.check(&format!("{engine} plain"), |text| tokenizer.encode_with(text, PLAIN));
    compared
}

// ---- small vocabularies, always there -------------------------------------------------------------------

#[test]
fn small_vocabularies_have_the_ids_that_llama_cpp_gives() {
    for kind in ["gpt2", "llama3", "qwen2"] {
        let tokenizer = gguf(&root(&format!("tests/data/tokenizers/{kind}/vocabulary.gguf")));
        assert_eq!(check(kind, "llama.cpp", &*tokenizer), 332, "{kind}");
    }
    let tokenizer = gguf(&root("checkpoints/tiny-llama2/tiny-llama2-q8_0.gguf"));
    assert_eq!(check("llama2", "llama.cpp", &*tokenizer), 332);
}

#[test]
fn a_sentencepiece_model_has_the_ids_that_sentencepiece_gives() {
    let tokenizer = sentencepiece();
    assert_eq!(check("llama2", "sentencepiece", &*tokenizer), 166);
}

/// Where names are parsed, what follows one has no prefix. Before a space transformers puts none at all.
#[test]
fn a_sentencepiece_model_has_the_ids_that_transformers_gives_where_names_are_parsed() {
    let tokenizer = sentencepiece();
    let unprefixed = |text: &str| text.starts_with([' ', '▁']);
    let vectors = Vectors::read("llama2");
    let compared = vectors.check_but("transformers", unprefixed, |text| tokenizer.encode(text, true));
    assert_eq!(compared, 93);
}

#[test]
fn a_sentencepiece_model_with_transformers_settings_has_the_ids_that_transformers_gives() {
    let tokenizer = files("checkpoints/tiny-llama2/hf/tokenizer.model");
    let vectors = Vectors::read("llama2");
    assert_eq!(vectors.check_but("transformers", |_| false, |text| tokenizer.encode(text, true)), 93);
}

// ---- real vocabularies ----------------------------------------------------------------------------------

#[test]
fn hello_is_what_the_specifications_say() {
    if let Some(tokenizer) = real("llama-spm") {
        assert_eq!(tokenizer.encode("Hello", true).unwrap(), [1, 15043]);
    }
    if let Some(tokenizer) = real("gpt-2") {
        assert_eq!(tokenizer.encode("Hello world", true).unwrap(), [15496, 995]);
    }
}

#[test]
fn llama_2_has_the_ids_that_llama_cpp_and_sentencepiece_give() {
    let Some(tokenizer) = real("llama-spm") else { return };
    assert_eq!(check("real-llama2", "llama.cpp", &*tokenizer), 332);
    assert_eq!(check("real-llama2", "sentencepiece", &*tokenizer), 166);
}

#[test]
fn gpt_2_has_the_ids_that_llama_cpp_tokenizers_and_tiktoken_give() {
    let Some(tokenizer) = real("gpt-2") else { return };
    for engine in ["llama.cpp", "tokenizers", "tiktoken"] {
        assert_eq!(check("real-gpt2", engine, &*tokenizer), 332, "{engine}");
    }
}

#[test]
fn llama_3_has_the_ids_that_llama_cpp_and_tokenizers_give() {
    let Some(tokenizer) = real("llama-bpe") else { return };
    for engine in ["llama.cpp", "tokenizers"] {
        assert_eq!(check("real-llama3", engine, &*tokenizer), 332, "{engine}");
    }
}

#[test]
fn qwen_2_has_the_ids_that_llama_cpp_and_tokenizers_give() {
    let Some(tokenizer) = real("qwen2") else { return };
    assert_eq!(check("real-qwen2", "tokenizers", &*tokenizer), 332);
    let vectors = Vectors::of("real-qwen2", "hard.json");
    // llama.cpp takes </s> for a control piece whatever the file says: here it is a normal one.
    let by_name = |text: &str| text.contains("</s>");
    let compared = vectors.check_but("llama.cpp", by_name, |text| tokenizer.encode_with(text, PARSED));
    let plain = vectors.check("llama.cpp plain", |text| tokenizer.encode_with(text, PLAIN));
    assert_eq!(compared + plain, 332);
}

#[test]
fn every_hard_text_comes_back() {
    let texts = Vectors::of("real-gpt2", "hard.json").texts();
    for name in ["llama-spm", "gpt-2", "llama-bpe", "qwen2"] {
        let Some(tokenizer) = real(name) else { continue };
        for text in &texts {
            let ids = tokenizer.encode_with(text, PLAIN).unwrap();
            let back = if name == "llama-spm" { text.replace('▁', " ") } else { text.clone() };
            assert_eq!(tokenizer.decode_lossy(&ids).unwrap(), back, "{name}: {text:?}");
        }
    }
}

// ---- time -----------------------------------------------------------------------------------------------

/// Ten times the text may take ten times as long, with room for a busy machine; squared it would be a hundred.
#[test]
fn no_line_takes_time_that_is_quadratic() {
    let kinds = [
        gguf(&root("checkpoints/tiny-llama2/tiny-llama2-q8_0.gguf")),
        gguf(&root("tests/data/tokenizers/gpt2/vocabulary.gguf")),
        gguf(&root("tests/data/tokenizers/llama3/vocabulary.gguf")),
        gguf(&root("tests/data/tokenizers/qwen2/vocabulary.gguf")),
        files("checkpoints/tiny-llama2/hf/tokenizer.json"),
        sentencepiece(),
        files("tests/data/tokenizers/llama2c/tokenizer.bin"),
    ];
    const TOKENIZER_JSON: usize = 4;
    for (kind, tokenizer) in kinds.iter().enumerate() {
        for unit in ["a", " ", "\n", "7", ".", "é", "漢", "🙂", " \n", "a ", "\u{301}", "the"] {
            let text = unit.repeat(100_000 / unit.len());
            let start = Instant::now();
            let ids = tokenizer.encode(&text, true).unwrap();
            assert!(start.elapsed().as_secs_f32() < 5.0, "kind {kind}, {unit:?}: {:?}", start.elapsed());
            // transformers puts no space before one, and takes one away all the same.
            let back = if kind == TOKENIZER_JSON { text.strip_prefix(' ').unwrap_or(&text) } else { &text };
            assert_eq!(tokenizer.decode_lossy(&ids).unwrap(), back, "kind {kind}, {unit:?}");
        }
    }
}
