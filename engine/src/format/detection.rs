//! Detection of a file's format by its first bytes, because file names are unreliable.

use std::fmt::Write;

use super::llama2c;
use super::source::FileBytes;
use crate::error::{Error, FormatError, Result};

/// Supported formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// llama.cpp's model file.
    Gguf,
    /// Hugging Face's tensor file.
    Safetensors,
    /// PyTorch's checkpoint: a zip archive of a pickle and raw numbers.
    Pytorch,
    /// llama2.c's model file.
    Llama2c,
    /// One NumPy array.
    Npy,
    /// A zip archive of NumPy arrays.
    Npz,
}

impl Format {
    /// Recognises a file by its content.
    ///
    /// # Errors
    /// If the format is unknown; the message names a recognised foreign format.
    pub fn detect(source: &FileBytes) -> Result<Self> {
        if source.data.is_empty() {
            return Err(source.truncated("the file", 0, 1));
        }
        Self::of(source.data.first(LONGEST_START)).ok_or_else(|| wrong_magic(source, EXPECTED))
    }

    /// Creates an error for a file that is not in the format `expected`.
    pub fn unexpected(source: &FileBytes, expected: &'static str) -> Error {
        wrong_magic(source, expected)
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [b'G', b'G', b'U', b'F', ..] => Some(Format::Gguf),
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Some(Format::Npy),
            _ if starts_with_header(bytes) => Some(Format::Safetensors),
            _ if llama2c::is_start(bytes) => Some(Format::Llama2c),
            _ => Self::of_zip(first_member(bytes)?),
        }
    }

    /// Returns the format of a zip archive. torch and NumPy are recognised by the first member that they write.
    fn of_zip(first_member: &[u8]) -> Option<Self> {
        match first_member {
            name if name.ends_with(b".npy") || name == b"manifest.json" => Some(Format::Npz),
            name if name.ends_with(b"/data.pkl") => Some(Format::Pytorch),
            _ => None,
        }
    }

    /// Returns the name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Format::Gguf => "gguf",
            Format::Safetensors => "safetensors",
            Format::Pytorch => "pytorch",
            Format::Llama2c => "llama2.c",
            Format::Npy => "npy",
            Format::Npz => "npz",
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Format::Gguf => "a GGUF file",
            Format::Safetensors => "a safetensors file",
            Format::Pytorch => "a PyTorch checkpoint",
            Format::Llama2c => "a llama2.c model",
            Format::Npy => "a NumPy array",
            Format::Npz => "an archive of NumPy arrays (npz)",
        }
    }
}

/// Number of bytes needed to detect a format. The longest case is the name of a zip archive's first member.
const LONGEST_START: usize = 1 << 17;

/// Creates an error for a file that is not in the format `expected`. Names the actual format if it is known.
pub(super) fn wrong_magic(source: &FileBytes, expected: &'static str) -> Error {
    let bytes = source.data.first(LONGEST_START);
    let (found, hint) = match recognise(bytes) {
        Some((found, hint)) => (found.to_owned(), hint),
        None => (first_bytes(bytes), ""),
    };
    FormatError::WrongMagic { file: source.path.clone(), found, expected, hint }.into()
}

/// Returns true if a file starts with a safetensors header: the length of a JSON object (at most 100 MB, the
/// format's own limit), then that object.
fn starts_with_header(bytes: &[u8]) -> bool {
    let Some((len, text)) = bytes.split_first_chunk() else { return false };
    (2..=100_000_000).contains(&u64::from_le_bytes(*len)) && text.first() == Some(&b'{')
}

const EXPECTED: &str = "a GGUF, safetensors, PyTorch, llama2.c, npy or npz file";
const CONVERT: &str = "; convert it to GGUF with llama.cpp's convert_hf_to_gguf.py, or to safetensors";
const CONVERT_LEGACY: &str = "; convert the original model to GGUF again";
const SAVE_AGAIN: &str =
    "; load it with torch and save it again without _use_new_zipfile_serialization=False, or as safetensors";
const UNPACK: &str = "; unpack it";

/// First bytes of file formats that are often mistaken for weights, with their names and advice.
const FOREIGN: &[(&[u8], &str, &str)] = &[
    // Magics of formats before GGUF were written as little-endian numbers, so their bytes are reversed.
    (
        b"_logits_",
        "a log-probability file of llama-perplexity",
        "; xcheck kld compares it with a dump, a model or another such file; run, check and compare read it as a dump",
    ),
    (b"lmgg", "a legacy ggml file", CONVERT_LEGACY),
    (b"fmgg", "a legacy ggmf file", CONVERT_LEGACY),
    (b"tjgg", "a legacy ggjt file", CONVERT_LEGACY),
    (b"algg", "a legacy ggla adapter", CONVERT_LEGACY),
    (b"ggml", "a legacy ggml file", CONVERT_LEGACY),
    (b"ggmf", "a legacy ggmf file", CONVERT_LEGACY),
    (b"ggjt", "a legacy ggjt file", CONVERT_LEGACY),
    (b"FUGG", "a GGUF file with its magic byte-swapped", "; run gguf-convert-endian on it"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "; run git lfs pull"),
    (
        b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46",
        "a PyTorch checkpoint in the format before version 1.6",
        SAVE_AGAIN,
    ),
    (b"\x80\x02", "a Python pickle", CONVERT),
    (b"\x80\x03", "a Python pickle", CONVERT),
    (b"\x80\x04", "a Python pickle", CONVERT),
    (b"\x80\x05", "a Python pickle", CONVERT),
    (b"\x89HDF", "an HDF5 file (Keras)", CONVERT),
    (b"\x1f\x8b", "a gzip archive", UNPACK),
    (b"BZh", "a bzip2 archive", UNPACK),
    (b"\xfd7zXZ", "an xz archive", UNPACK),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", UNPACK),
];

/// Returns the file's format, and advice on how to convert it.
fn recognise(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    if let Some(format) = Format::of(bytes) {
        return Some((format.describe(), ""));
    }
    let foreign = FOREIGN.iter().find(|(magic, ..)| bytes.starts_with(magic));
    let foreign = foreign.map(|&(_, found, hint)| (found, hint));
    foreign.or_else(|| recognise_zip(bytes)).or_else(|| recognise_text(bytes))
}

/// Returns the name of a zip archive's first member.
fn first_member(bytes: &[u8]) -> Option<&[u8]> {
    let entry = bytes.strip_prefix(b"PK\x03\x04")?;
    let name_len = u16::from_le_bytes(*entry.get(22..)?.first_chunk()?);
    entry.get(26..)?.get(..name_len.into())
}

fn recognise_zip(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    first_member(bytes).map(|_| ("a zip archive", UNPACK))
}

fn recognise_text(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    const LONGEST: usize = 64;
    let start = bytes[..bytes.len().min(LONGEST)].trim_ascii_start().to_ascii_lowercase();
    match start.as_slice() {
        [b'<', b'!' | b'h' | b'?', ..] => Some(("a web page", "; the download failed, get the file again")),
        [b'{', ..] => Some(("JSON text", "; name the weight file, not its configuration or index")),
        _ => None,
    }
}

fn first_bytes(bytes: &[u8]) -> String {
    let start = &bytes[..bytes.len().min(8)];
    let mut text = String::from("bytes");
    for byte in start {
        let _ = write!(text, " {byte:02x}"); // writing to a String cannot fail
    }
    let _ = write!(text, " (\"{}\")", start.escape_ascii());
    text
}
