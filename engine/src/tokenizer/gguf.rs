//! Tokenizers in GGUF files.

use crate::error::{Error, Result};
use crate::format::Gguf;
use crate::format::gguf::StringArray;
use crate::tokenizer::byte_level::{self, PreTokenizer};
use crate::tokenizer::{PieceVocabulary, SentencePiece, SentencePieceSettings, Tokenizer, refuse};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";

/// Reads the tokenizer of a GGUF file, if the file has one.
///
/// # Errors
/// If its kind is neither SentencePiece BPE ("llama") nor byte-level BPE ("gpt2"), or it contradicts itself.
pub fn from_gguf(file: &Gguf) -> Result<Option<Box<dyn Tokenizer>>> {
    kind(file).map_err(|error| error.of_tokenizer(file.tensors.path()))
}

fn kind(file: &Gguf) -> Result<Option<Box<dyn Tokenizer>>> {
    match file.optional::<&str>(MODEL)? {
        None | Some("none" | "no_vocab") => Ok(None),
        Some("llama") => Ok(Some(Box::new(sentencepiece(file)?))),
        Some("gpt2") => Ok(Some(byte_level(file)?)),
        Some(other) => {
            let expected =
                "llama (SentencePiece BPE) or gpt2 (byte-level BPE); give --tokens instead of --prompt";
            Err(Error::bad_key(file.tensors.path(), MODEL, other, expected))
        }
    }
}

fn sentencepiece(file: &Gguf) -> Result<SentencePiece> {
    let vocabulary = PieceVocabulary {
        pieces: pieces(file)?.into_iter().map(str::to_owned).collect(),
        scores: file.require("tokenizer.ggml.scores")?,
        types: file.require("tokenizer.ggml.token_type")?,
    };
    let default = SentencePieceSettings::default();
    let settings = SentencePieceSettings {
        bos: file.optional("tokenizer.ggml.bos_token_id")?.or(default.bos),
        eos: file.optional("tokenizer.ggml.eos_token_id")?.or(default.eos),
        unk: file.optional("tokenizer.ggml.unknown_token_id")?.or(default.unk),
        add_bos: file.optional("tokenizer.ggml.add_bos_token")?.unwrap_or(default.add_bos),
        add_eos: file.optional("tokenizer.ggml.add_eos_token")?.unwrap_or(default.add_eos),
        add_space_prefix: file
            .optional("tokenizer.ggml.add_space_prefix")?
            .unwrap_or(default.add_space_prefix),
        rules: default.rules,
    };
    SentencePiece::new(vocabulary, settings)
}

fn byte_level(file: &Gguf) -> Result<Box<dyn Tokenizer>> {
    let pre = file.require::<&str>(PRE)?;
    let words = PreTokenizer::of(pre).ok_or_else(|| {
        let expected = format!("one of {}; give --tokens instead of --prompt", PreTokenizer::names());
        Error::bad_key(file.tensors.path(), PRE, pre, expected)
    })?;
    let add_bos = file.optional("tokenizer.ggml.add_bos_token")?.unwrap_or(words.add_bos);
    let add_eos = file.optional("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    let vocabulary = byte_level::BpeVocabulary {
        pieces: pieces(file)?,
        types: file.require("tokenizer.ggml.token_type")?,
        merges: file.require::<&StringArray>("tokenizer.ggml.merges")?.iter().collect(),
    };
    let before = add_bos.then(|| special_id(file, "bos", vocabulary.pieces.len())).transpose()?;
    let after = add_eos.then(|| special_id(file, "eos", vocabulary.pieces.len())).transpose()?;
    Ok(Box::new(byte_level::tokenizer(&vocabulary, words, before, after)?))
}

fn pieces(file: &Gguf) -> Result<Vec<&str>> {
    Ok(file.require::<&StringArray>("tokenizer.ggml.tokens")?.iter().collect())
}

/// Returns the id of a token that is added before or after texts.
fn special_id(file: &Gguf, name: &str, vocab_size: usize) -> Result<u32> {
    let id: u32 = file.require(&format!("tokenizer.ggml.{name}_token_id"))?;
    match (id as usize) < vocab_size {
        true => Ok(id),
        false => Err(refuse(format!("the {name} id {id} is outside the vocabulary of {vocab_size}"))),
    }
}
