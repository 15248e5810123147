//! Kinds of files in which programs save activations, and advice for kinds that cannot be read.

use super::super::{FileBytes, Format};
use crate::error::{FormatError, Result};

/// Kind of a file with activations.
pub(super) enum FileKind {
    /// A container of tensors.
    Container(Format),
    /// A Python pickle outside of an archive.
    Pickle,
    /// One tensor of ONNX, a protocol buffer.
    TensorProto,
    /// Results that Polygraphy saved as JSON.
    Polygraphy,
    /// Logits of a transformers model that llama.cpp's scripts save as numbers without a header.
    RawLogits,
}

/// Number of bytes at the start of a text file that are enough to recognise its kind.
const START: usize = 4096;
const EXPECTED: &str =
    "activations in a safetensors, npz, npy, torch.save, NumPy pickle, ONNX TensorProto or Polygraphy file";

impl FileKind {
    /// Recognises a file by its content, and by its name if the content has no magic.
    ///
    /// # Errors
    /// If the kind is unknown or not read; the message tells how to convert the file.
    pub(super) fn of(source: &FileBytes) -> Result<Self> {
        let start = source.data.first(START);
        let name = source.path.file_name().unwrap_or_default().to_string_lossy();
        let has_end = |end: &str| name.to_lowercase().ends_with(end);
        let detected = Format::detect(source);
        // The length of a safetensors header may look like the start of any other file; its last bytes are zero.
        if matches!(detected, Ok(Format::Safetensors)) && start.get(5..8) == Some(&[0; 3]) {
            return Ok(Self::Container(Format::Safetensors));
        }
        match start {
            [0x80, 2..=5, ..] if !start.starts_with(OLD_TORCH) => return Ok(Self::Pickle),
            [b'{', ..] if holds(start, b"\"lst\"") => return Ok(Self::Polygraphy),
            _ => {}
        }
        if let Some((_, found, hint)) = REFUSED.iter().find(|(mark, ..)| is_marked(start, mark)) {
            let (file, found) = (source.path.clone(), (*found).to_owned());
            return Err(FormatError::WrongMagic { file, found, expected: EXPECTED, hint }.into());
        }
        match detected {
            Ok(format) => Ok(Self::Container(format)),
            Err(_) if has_end(".pb") => Ok(Self::TensorProto),
            Err(_) if is_raw_logits(&name, "pytorch-") => Ok(Self::RawLogits),
            Err(_) if is_raw_logits(&name, "llamacpp-") => {
                let (file, found) = (source.path.clone(), "llama.cpp's logits without a header".to_owned());
                Err(FormatError::WrongMagic { file, found, expected: EXPECTED, hint: LLAMA_CPP_LOGITS }
                    .into())
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns true for the names of logits in llama.cpp's tools, such as `llamacpp-MODEL.bin`. Embeddings and tokens have the
/// same extension.
fn is_raw_logits(name: &str, begin: &str) -> bool {
    let stem = name.strip_suffix(".bin").filter(|stem| stem.starts_with(begin));
    stem.is_some_and(|stem| !["-embeddings", "-tokens"].iter().any(|end| stem.ends_with(end)))
}

/// Advice for logits that llama.cpp wrote: their file does not state the arithmetic that they depend on.
const LLAMA_CPP_LOGITS: &str = "; they depend on the attention and the KV cache, which the file does not state: convert it, \
     python -c \"import numpy; numpy.savez('FILE.npz', last_logits=numpy.fromfile('FILE.bin', '<f4'))\", and check \
     FILE.npz with --numerics llama.cpp-flash (llama.cpp's default) or llama.cpp, and --kv-cache";

const OLD_TORCH: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46";

/// Bytes by which a kind of file is recognised.
enum Mark {
    /// First bytes.
    Start(&'static [u8]),
    /// Text near the beginning.
    Text(&'static [u8]),
}

fn is_marked(start: &[u8], mark: &Mark) -> bool {
    match mark {
        Mark::Start(bytes) => start.starts_with(bytes),
        Mark::Text(text) => is_text(start) && holds(start, text),
    }
}

fn is_text(start: &[u8]) -> bool {
    start.iter().take(64).all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace())
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Kinds that cannot be read, each with its name and advice.
const REFUSED: &[(Mark, &str, &str)] = &[
    (
        Mark::Start(b"\x89HDF"),
        "an HDF5 file",
        "; convert it: python -c \"import h5py, numpy; d = {}; h5py.File('FILE.h5').visititems(lambda n, x: \
         d.update({n: x[()]}) if isinstance(x, h5py.Dataset) else None); numpy.savez('FILE.npz', **d)\"",
    ),
    (
        Mark::Start(OLD_TORCH),
        "a torch.save file in the format before torch 1.6",
        "; save it again: python -c \"import torch; torch.save(torch.load('FILE.pt'), 'NEW.pt')\"",
    ),
    (Mark::Text(b"common_debug_cb_eval:"), EVAL_TEXT, EVAL_HINT),
    (Mark::Text(b"ggml_debug:"), EVAL_TEXT, EVAL_HINT),
    (
        Mark::Text(b"\"module_path\""),
        "the tree of model_addition_debugger_context, which has excerpts of the values",
        "; call model_addition_debugger_context(model, debug_path='DIR', do_prune_layers=False, use_repr=False) and \
         name the folder DIR",
    ),
    (
        Mark::Text(b"\"dump_data_dir\""),
        "msprobe's index of a dump",
        "; with \"task\": \"tensor\" and \"level\": \"L0\", name the folder dump_tensor_data beside it",
    ),
    (
        Mark::Start(b"{"),
        "JSON text",
        "; save the arrays with numpy.savez('FILE.npz', **arrays), or write a dump with the xcheck package",
    ),
    (Mark::Start(b"["), "JSON text", "; save the arrays with numpy.savez('FILE.npz', **arrays)"),
    (Mark::Start(b"PAR1"), "a Parquet file", "; save the arrays with numpy.savez('FILE.npz', **arrays)"),
    (Mark::Start(b"\x1f\x8b"), "a gzip archive", "; unpack it"),
    (Mark::Start(b"\x28\xb5\x2f\xfd"), "a zstd archive", "; unpack it"),
];
const EVAL_TEXT: &str =
    "the text of llama.cpp's eval callback, which shows only six rounded values of each row";
const EVAL_HINT: &str = "; record the values themselves with reference-scripts/dump/dump_llama_cpp.cpp (docs/how-to/dump-from-llama-cpp.md)";
