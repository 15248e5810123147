//! Every reader, with whatever bytes: what it gives back can be used, or is one message.

use std::io::Cursor;
use std::path::Path;

use arbitrary::Unstructured;
use xcheck::dump::{Dump, Manifest};
use xcheck::format::{
    FileBytes, Gguf, Llama2cFile, Messages, Pytorch, Safetensors, TensorFile, npy as npy_file,
};
use xcheck::gap::{ParquetFile, ParquetRow};
use xcheck::kld::{LogitsFile, first_row};
use xcheck::map::NameMap;
use xcheck::measure::Prediction;
use xcheck::model::ModelFiles;
use xcheck::ratchet::Baseline;
use xcheck::tokenizer::{HuggingFaceFiles, SettingsFiles, TokenizerFiles};

use super::build;

fn source(name: &str, data: &[u8]) -> FileBytes {
    FileBytes { path: name.into(), data: data.to_vec().into() }
}

/// Tensors hold what their shapes say.
fn look_at(tensors: &TensorFile) {
    for (_, tensor) in tensors.iter() {
        assert_eq!(tensor.elements(), tensor.shape.iter().product::<usize>());
    }
}

/// Reads every value of a dump; true if it has any.
fn use_dumps(data: &[u8], name: &str) -> bool {
    let mut is_read = false;
    for dump in Dump::all_from_source(source(name, data)).into_iter().flatten() {
        for site in dump.sites() {
            is_read |= dump.read(site).is_ok_and(|values| values.is_some());
            let _ = (dump.sketch(site), dump.foreign(site), dump.check_content(site));
        }
    }
    is_read
}

/// A GGUF file, its model and its tokenizer.
pub fn gguf(data: &[u8]) -> bool {
    let source = source("fuzz.gguf", data);
    let file = Gguf::read(&source);
    if let Ok(file) = &file {
        look_at(&file.tensors);
    }
    let files = ModelFiles::gguf(source, None);
    let _ = files.load();
    if let Ok(Some(tokenizer)) = files.tokenizer() {
        let _ = tokenizer.encode("Hello\u{301} <s> \u{10ffff}", true);
        let _ = tokenizer.decode(&[0, 1, 2, u32::MAX]);
    }
    file.is_ok()
}

/// The same of files that are nearly right.
pub fn gguf_built(data: &[u8]) -> bool {
    build::gguf(&mut Unstructured::new(data)).is_ok_and(|file| gguf(&file))
}

/// A safetensors file, as weights and as a dump.
pub fn safetensors(data: &[u8]) -> bool {
    let file = Safetensors::read(&source("fuzz.safetensors", data));
    if let Ok(file) = &file {
        look_at(&file.tensors);
    }
    use_dumps(data, "fuzz.safetensors");
    file.is_ok()
}

/// What torch.save wrote.
pub fn pytorch(data: &[u8]) -> bool {
    let file = Pytorch::read(&source("pytorch_model.bin", data));
    if let Ok(file) = &file {
        look_at(&file.tensors);
    }
    file.is_ok()
}

/// A llama2.c file.
pub fn llama2c(data: &[u8]) -> bool {
    let file = Llama2cFile::read(&source("model.bin", data));
    if let Ok(file) = &file {
        look_at(&file.tensors);
    }
    file.is_ok()
}

/// What llama-perplexity leaves.
pub fn kld(data: &[u8]) -> bool {
    let Ok(file) = LogitsFile::of(source("fuzz.kld", data)) else { return false };
    let (mut row, rows) = (Prediction::default(), file.n_ctx() - 1 - first_row(file.n_ctx()));
    let mut is_read = false;
    for (chunk, tokens) in file.chunks().enumerate() {
        for (place, &next) in tokens[..rows].iter().enumerate() {
            if file.read(chunk, place, &mut row).is_ok() {
                let judged = row.judge(&row, next);
                assert!(
                    judged.same_top && judged.kld.abs() < 1e-3,
                    "a prediction differs from itself: {judged:?}"
                );
                is_read = true;
            }
        }
    }
    is_read
}

/// A NumPy array.
pub fn npy(data: &[u8]) -> bool {
    npy_file::read(&source("fuzz.npy", data), None).is_ok()
}

/// A Parquet file: each column that holds numbers, lists of them, or texts.
pub fn parquet(data: &[u8]) -> bool {
    let Ok(file) = ParquetFile::read(source("fuzz.parquet", data)) else { return false };
    let names: Vec<_> = file.names().map(str::to_owned).collect();
    let mut is_read = false;
    for name in &names {
        let (mut numbers, mut texts) = (ParquetRow::<f64>::default(), ParquetRow::default());
        if let Ok(mut rows) = file.rows(name, 3) {
            while let Ok(true) = rows.read(&mut numbers) {
                if let Some(lengths) = numbers.lengths() {
                    assert_eq!(lengths.iter().product::<usize>(), numbers.values.len());
                }
                is_read = true;
            }
        }
        if let Ok(mut rows) = file.rows::<bytes::Bytes>(name, 3) {
            while let Ok(true) = rows.read(&mut texts) {
                is_read = true;
            }
        }
    }
    is_read
}

/// An archive that is nearly a dump.
pub fn npz_built(data: &[u8]) -> bool {
    build::npz(&mut Unstructured::new(data)).is_ok_and(|file| use_dumps(&file, "fuzz.npz"))
}

/// A manifest.
pub fn manifest(data: &[u8]) -> bool {
    let manifests = Manifest::parse(data, Path::new("fuzz"));
    let is_read = manifests.is_ok();
    for manifest in manifests.into_iter().flatten() {
        let _ = Dump::of_continuation(Path::new("fuzz"), &Manifest { tensors: Vec::new(), ..manifest });
    }
    is_read
}

/// One that is nearly right.
pub fn manifest_built(data: &[u8]) -> bool {
    build::manifest(&mut Unstructured::new(data)).is_ok_and(|json| manifest(json.to_string().as_bytes()))
}

/// A map of names.
pub fn map(data: &[u8]) -> bool {
    str::from_utf8(data).is_ok_and(|text| NameMap::of_text("fuzz", text).is_ok())
}

/// A baseline.
pub fn baseline(data: &[u8]) -> bool {
    let Ok(Ok(baseline)) = str::from_utf8(data).map(Baseline::parse) else { return false };
    assert_eq!(Baseline::parse(&baseline.text()), Ok(baseline), "it reads what it writes");
    true
}

/// What stands in a report of the corpus for the program that wrote it: a report of another version is read no further.
const PROGRAM: &str = "\"@program@\"";

/// A report.
pub fn report(data: &[u8]) -> bool {
    let this = || xcheck::report::program().to_string();
    str::from_utf8(data).is_ok_and(|text| xcheck::report::parse(&text.replacen(PROGRAM, &this(), 1)).is_ok())
}

/// Messages through a pipe.
pub fn stream(data: &[u8]) -> bool {
    let mut messages = Messages::new(Box::new(Cursor::new(data.to_vec())), Path::new("fuzz"), 1 << 16);
    let mut is_read = false;
    while let Ok(Some(message)) = messages.take() {
        is_read |= Dump::from_source(message).is_ok();
    }
    is_read
}

/// `tokenizer.json`, and bytes as `tokenizer.model`.
pub fn tokenizer(data: &[u8]) -> bool {
    let json =
        HuggingFaceFiles { tokenizer: source("tokenizer.json", data), settings: SettingsFiles::default() };
    let model = TokenizerFiles::SentencePiece {
        model: source("tokenizer.model", data),
        settings: SettingsFiles::default(),
    };
    let mut is_read = false;
    for files in
        [TokenizerFiles::HuggingFace(json), model, TokenizerFiles::Llama2c(source("tokenizer.bin", data))]
    {
        let Ok(tokenizer) = files.read() else { continue };
        let _ = tokenizer.encode("a Hello\u{301}", true);
        let _ = tokenizer.decode(&[0, 1, u32::MAX]);
        is_read = true;
    }
    is_read
}
