//! SentencePiece's `tokenizer.model`, a protocol buffer. Only the fields needed for tokenizing are declared. Field
//! numbers and defaults are those of sentencepiece's `sentencepiece_model.proto`.

use prost::Message;

use crate::error::{Error, Result};
use crate::format::FileBytes;
use crate::tokenizer::library::Library;
use crate::tokenizer::sentencepiece::TokenizerRules;
use crate::tokenizer::settings::{SettingsFiles, TokenizerClass, TokenizerSettings};
use crate::tokenizer::{
    PieceVocabulary, SentencePiece, SentencePieceSettings, Tokenizer, hugging_face, llama_class,
};

#[derive(Clone, Message)]
struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<PieceProto>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<Normalizer>,
    #[prost(message, optional, tag = "5")]
    denormalizer: Option<Normalizer>,
}

#[derive(Clone, Message)]
struct PieceProto {
    #[prost(string, optional, tag = "1")]
    piece: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    #[prost(int32, optional, tag = "3", default = "1")]
    kind: Option<i32>,
}

#[derive(Clone, Message)]
struct Trainer {
    #[prost(int32, optional, tag = "3", default = "1")]
    model_type: Option<i32>,
    #[prost(bool, optional, tag = "24")]
    whitespace_as_suffix: Option<bool>,
    #[prost(string, optional, tag = "46", default = "<s>")]
    bos_piece: Option<String>,
    #[prost(string, optional, tag = "47", default = "</s>")]
    eos_piece: Option<String>,
}

#[derive(Clone, Message)]
struct Normalizer {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(bytes = "vec", optional, tag = "2")]
    charsmap: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3", default = "true")]
    dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4", default = "true")]
    remove_extra_spaces: Option<bool>,
    #[prost(bool, optional, tag = "5", default = "true")]
    escape_spaces: Option<bool>,
}

const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BPE: i32 = 2;
const MODEL_TYPES: [&str; 5] = ["0", "unigram", "BPE", "word", "char"];

/// Reads a SentencePiece model. If the settings name transformers' `LlamaTokenizer`, its rules apply, otherwise those of
/// the sentencepiece library.
///
/// # Errors
/// If the model is damaged, is not a BPE model, or normalises texts.
pub(crate) fn read(model: &FileBytes, files: &SettingsFiles) -> Result<Box<dyn Tokenizer>> {
    let proto = ModelProto::decode(&*model.data).map_err(|error| bad_file(model, &error.to_string()))?;
    let trainer = proto.trainer.clone().unwrap_or_default();
    let normalizer = proto.normalizer.clone().unwrap_or_default();
    check(model, &trainer, &normalizer, proto.denormalizer.clone().unwrap_or_default())?;
    let settings = TokenizerSettings::read(files)?;
    match settings.class {
        TokenizerClass::Llama => with_library(model, &proto, &settings),
        _ => with_sentencepiece(proto, &trainer, &normalizer, &settings),
    }
}

/// Creates the tokenizer that transformers makes of the model's pieces. BOS and EOS are added only on request.
fn with_library(
    model: &FileBytes,
    proto: &ModelProto,
    settings: &TokenizerSettings,
) -> Result<Box<dyn Tokenizer>> {
    let pieces: Vec<_> = proto.pieces.iter().map(|piece| (piece.piece().to_owned(), piece.kind())).collect();
    let mut json = llama_class::from_pieces(&pieces)?;
    llama_class::apply(&mut json, settings);
    let mut inner = hugging_face::build(model, json)?;
    settings.apply(&mut inner)?;
    let [before, after] = settings.around(&inner);
    Ok(Box::new(Library::new(inner, before, after).of(&model.path)))
}

/// Creates a tokenizer with the rules of the sentencepiece library. By default, BOS is added if the vocabulary has one,
/// as for Llama.
fn with_sentencepiece(
    proto: ModelProto,
    trainer: &Trainer,
    normalizer: &Normalizer,
    settings: &TokenizerSettings,
) -> Result<Box<dyn Tokenizer>> {
    settings.check_all_known(|text| proto.pieces.iter().any(|piece| piece.piece() == text))?;
    let (add_bos, add_eos) = (settings.flag("add_bos_token"), settings.flag("add_eos_token"));
    let find = |is_it: &dyn Fn(&PieceProto) -> bool| (0..).zip(&proto.pieces).find(|(_, piece)| is_it(piece));
    let control = |name: &str| find(&|piece| piece.kind() == CONTROL && piece.piece() == name);
    let bos = control(trainer.bos_piece()).map(|(id, _)| id);
    let settings = SentencePieceSettings {
        bos,
        eos: control(trainer.eos_piece()).map(|(id, _)| id),
        unk: find(&|piece| piece.kind() == UNKNOWN).map(|(id, _)| id),
        add_bos: add_bos.unwrap_or(bos.is_some()),
        add_eos: add_eos.unwrap_or(false),
        add_space_prefix: normalizer.dummy_prefix(),
        rules: TokenizerRules::SentencePiece,
    };
    let vocabulary = PieceVocabulary {
        scores: proto.pieces.iter().map(PieceProto::score).collect(),
        types: proto.pieces.iter().map(PieceProto::kind).collect(),
        pieces: proto.pieces.into_iter().map(|piece| piece.piece.unwrap_or_default()).collect(),
    };
    Ok(Box::new(SentencePiece::new(vocabulary, settings)?))
}

/// Returns an error for unsupported settings: models other than BPE, and normalisation of texts.
fn check(
    file: &FileBytes,
    trainer: &Trainer,
    normalizer: &Normalizer,
    denormalizer: Normalizer,
) -> Result<()> {
    let bad = |key: &str, found: &str, expected: &str| Err(Error::bad_key(&file.path, key, found, expected));
    if trainer.model_type() != BPE {
        let kind = usize::try_from(trainer.model_type()).ok().and_then(|kind| MODEL_TYPES.get(kind));
        let expected = "BPE; give --tokens instead of --prompt, or convert it to tokenizer.json";
        return bad("trainer_spec.model_type", kind.unwrap_or(&"unknown"), expected);
    }
    if !normalizer.charsmap().is_empty() || !denormalizer.charsmap().is_empty() {
        let expected = "identity, which does not change texts; use the model's tokenizer.json";
        return bad("normalizer_spec.name", normalizer.name(), expected);
    }
    let expected = "the other value; use the model's tokenizer.json";
    if normalizer.remove_extra_spaces() {
        return bad("normalizer_spec.remove_extra_whitespaces", "true", expected);
    }
    if !normalizer.escape_spaces() {
        return bad("normalizer_spec.escape_whitespaces", "false", expected);
    }
    if trainer.whitespace_as_suffix() {
        return bad("trainer_spec.treat_whitespace_as_suffix", "true", expected);
    }
    Ok(())
}

fn bad_file(source: &FileBytes, problem: &str) -> Error {
    Error::BadContainer { file: source.path.clone(), format: "tokenizer", problem: problem.to_owned() }
}
