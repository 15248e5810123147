//! Every reader, with whatever bytes: what it gives back can be used, or is one message.

use std::io::Cursor;
use std::path::Path;

use arbitrary::Unstructured;
use xcheck::dump::{Dump, Manifest};
use xcheck::format::{Gguf, Llama2c, Messages, Pytorch, Safetensors, Source, TensorFile, npy as npy_file};
use xcheck::kld::{LogitsFile, first_row};
use xcheck::map::Map;
use xcheck::measure::Prediction;
use xcheck::model::ModelFiles;
use xcheck::ratchet::Baseline;
use xcheck::tokenizer::{HuggingFaceFiles, TokenizerFiles};

use super::build;

fn source(name: &str, data: &[u8]) -> Source {
    Source { path: name.into(), data: data.to_vec().into() }
}

/// Tensors hold what their shapes say.
fn look_at(tensors: &TensorFile) {
    for (_, tensor) in tensors.iter() {
        assert_eq!(tensor.elements(), tensor.shape.iter().product::<usize>());
    }
}

/// Reads every value of a dump.
fn use_dumps(data: &[u8], name: &str) {
    for dump in Dump::all_from_source(source(name, data)).into_iter().flatten() {
        for site in dump.sites() {
            let _ = (dump.read(site), dump.sketch(site), dump.foreign(site), dump.check_content(site));
        }
    }
}

/// A GGUF file, its model and its tokenizer.
pub fn gguf(data: &[u8]) {
    let source = source("fuzz.gguf", data);
    if let Ok(file) = Gguf::read(&source) {
        look_at(&file.tensors);
    }
    let files = ModelFiles::gguf(source, None);
    let _ = files.load();
    if let Ok(Some(tokenizer)) = files.tokenizer() {
        let _ = tokenizer.encode("Hello\u{301} <s> \u{10ffff}", true);
        let _ = tokenizer.decode(&[0, 1, 2, u32::MAX]);
    }
}

/// The same of files that are nearly right.
pub fn gguf_built(data: &[u8]) {
    let _ = build::gguf(&mut Unstructured::new(data)).map(|file| gguf(&file));
}

/// A safetensors file, as weights and as a dump.
pub fn safetensors(data: &[u8]) {
    if let Ok(file) = Safetensors::read(&source("fuzz.safetensors", data)) {
        look_at(&file.tensors);
    }
    use_dumps(data, "fuzz.safetensors");
}

/// What torch.save wrote.
pub fn pytorch(data: &[u8]) {
    let source = source("pytorch_model.bin", data);
    if let Ok(file) = Pytorch::read(&source) {
        look_at(&file.tensors);
    }
}

/// A llama2.c file.
pub fn llama2c(data: &[u8]) {
    if let Ok(file) = Llama2c::read(&source("model.bin", data)) {
        look_at(&file.tensors);
    }
}

/// What llama-perplexity leaves.
pub fn kld(data: &[u8]) {
    let Ok(file) = LogitsFile::of(source("fuzz.kld", data)) else { return };
    let (mut row, rows) = (Prediction::default(), file.n_ctx() - 1 - first_row(file.n_ctx()));
    for (chunk, tokens) in file.chunks().enumerate() {
        for (place, &next) in tokens[..rows].iter().enumerate() {
            if file.read(chunk, place, &mut row).is_ok() {
                let judged = row.judge(&row, next);
                assert!(
                    judged.same_top && judged.kld.abs() < 1e-3,
                    "a prediction differs from itself: {judged:?}"
                );
            }
        }
    }
}

/// A NumPy array.
pub fn npy(data: &[u8]) {
    let _ = npy_file::read(&source("fuzz.npy", data), None);
}

/// An archive that is nearly a dump.
pub fn npz_built(data: &[u8]) {
    let _ = build::npz(&mut Unstructured::new(data)).map(|file| use_dumps(&file, "fuzz.npz"));
}

/// A manifest.
pub fn manifest(data: &[u8]) {
    for manifest in Manifest::parse(data, Path::new("fuzz")).into_iter().flatten() {
        let _ = Dump::of_continuation(Path::new("fuzz"), &Manifest { tensors: Vec::new(), ..manifest });
    }
}

/// One that is nearly right.
pub fn manifest_built(data: &[u8]) {
    let _ = build::manifest(&mut Unstructured::new(data)).map(|json| manifest(json.to_string().as_bytes()));
}

/// A map of names.
pub fn map(data: &[u8]) {
    let _ = str::from_utf8(data).map(|text| Map::of_text("fuzz", text));
}

/// A baseline.
pub fn baseline(data: &[u8]) {
    if let Ok(Ok(baseline)) = str::from_utf8(data).map(Baseline::parse) {
        assert_eq!(Baseline::parse(&baseline.text()), Ok(baseline), "it reads what it writes");
    }
}

/// A report.
pub fn report(data: &[u8]) {
    let _ = str::from_utf8(data).map(xcheck::report::parse);
}

/// Messages through a pipe.
pub fn stream(data: &[u8]) {
    let mut messages = Messages::new(Box::new(Cursor::new(data.to_vec())), Path::new("fuzz"), 1 << 16);
    while let Ok(Some(message)) = messages.take() {
        let _ = Dump::from_source(message);
    }
}

/// `tokenizer.json`, and bytes as `tokenizer.model`.
pub fn tokenizer(data: &[u8]) {
    let json = HuggingFaceFiles { tokenizer: source("tokenizer.json", data), config: None };
    let model = TokenizerFiles::SentencePiece { model: source("tokenizer.model", data), config: None };
    for files in
        [TokenizerFiles::HuggingFace(json), model, TokenizerFiles::Llama2c(source("tokenizer.bin", data))]
    {
        let Ok(tokenizer) = files.read() else { continue };
        let _ = tokenizer.encode("a Hello\u{301}", true);
        let _ = tokenizer.decode(&[0, 1, u32::MAX]);
    }
}
