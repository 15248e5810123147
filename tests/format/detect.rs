use std::io;
use std::path::{Path, PathBuf};

use xcheck::error::{Error, FormatError};
use xcheck::format::{FileBytes, Format};

use super::builder::GgufBuilder;
use super::{assert_refused, detect_format};

/// The start of a zip archive whose first member is `name`.
fn zip(name: &str) -> Vec<u8> {
    let mut bytes = b"PK\x03\x04".to_vec();
    bytes.resize(26, 0);
    bytes.extend((name.len() as u16).to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(name.as_bytes());
    bytes
}

fn refuses(bytes: &[u8], found: &str, hint: &str) {
    assert_refused!(
        detect_format(bytes),
        FormatError::WrongMagic { .. },
        found,
        "byte 0",
        "GGUF, safetensors",
        hint
    );
}

#[test]
fn known_formats_are_told_by_their_content() {
    assert_eq!(detect_format(GgufBuilder::sample().build()).unwrap(), Format::Gguf);
    assert_eq!(detect_format(*b"\x02\0\0\0\0\0\0\0{}").unwrap(), Format::Safetensors);
    assert_eq!(detect_format(*b"\x93NUMPY\x01\0").unwrap(), Format::Npy);
    assert_eq!(detect_format(zip("p0/embed.npy")).unwrap(), Format::Npz);
    assert_eq!(detect_format(zip("manifest.json")).unwrap(), Format::Npz);
    assert_eq!(detect_format(zip("archive/data.pkl")).unwrap(), Format::Pytorch);
    assert_eq!(detect_format(zip("archive/data.pkl.npy")).unwrap(), Format::Npz);
}

#[test]
fn the_real_files_are_told_by_their_content() {
    let open = |file: &str| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama2/").to_owned() + file;
        FileBytes::open(Path::new(&path)).unwrap()
    };
    assert_eq!(Format::detect(&open("tiny-llama2-q8_0.gguf")).unwrap(), Format::Gguf);
    assert_eq!(Format::detect(&open("hf/model.safetensors")).unwrap(), Format::Safetensors);
    assert!(matches!(
        Format::detect(&open("hf/config.json")),
        Err(Error::Format(FormatError::WrongMagic { .. }))
    ));
}

#[test]
fn files_of_other_programs_are_refused_by_name_with_what_to_do() {
    refuses(b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46", "a PyTorch checkpoint", "save it again");
    refuses(b"\x80\x02}q\0", "a Python pickle", "convert");
    refuses(b"\x89HDF\r\n\x1a\n", "HDF5", "convert");
    refuses(b"tjgg\x03\0\0\0", "a legacy ggjt file", "GGUF again");
    refuses(b"lmgg\x20\0\0\0", "a legacy ggml file", "GGUF again");
    refuses(b"FUGG\0\0\0\x03", "byte-swapped", "gguf-convert-endian");
    refuses(&zip("model.gguf"), "a zip archive", "unpack");
    refuses(&zip("archive/constants.pkl"), "a zip archive", "unpack");
    refuses(b"\x1f\x8b\x08\0", "a gzip archive", "unpack");
}

#[test]
fn texts_in_place_of_weights_are_refused_by_name_with_what_to_do() {
    refuses(b"version https://git-lfs.github.com/spec/v1\noid sha256:", "Git LFS pointer", "git lfs pull");
    refuses(b"\n<!DOCTYPE html><title>Sign in</title>", "a web page", "get the file again");
    refuses(b"<HTML><body>", "a web page", "get the file again");
    refuses(b"{\"weight_map\": {}}", "JSON text", "weight file");
}

#[test]
fn unknown_bytes_are_shown() {
    refuses(b"\x01\x02AB\n", "bytes 01 02 41 42 0a", "\\x01\\x02AB\\n");
    refuses(b"G", "bytes 47", "");
    refuses(b"\0\0\0\0\0\0\0\x01{}", "bytes 00 00", ""); // no header is that long
}

#[test]
fn an_empty_file_is_called_so() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = FileBytes::open(file.path()).unwrap_err();
    assert!(matches!(error, Error::Format(FormatError::Empty { .. })), "{error}");
    assert!(error.to_string().contains(&file.path().display().to_string()));
    assert_refused!(detect_format([]), FormatError::Truncated { .. }, "byte 0");
}

#[test]
fn a_directory_and_a_missing_file_cannot_be_opened() {
    let directory = tempfile::tempdir().unwrap();
    let missing: PathBuf = directory.path().join("model.gguf");
    for (path, kind) in [(directory.path(), io::ErrorKind::IsADirectory), (&missing, io::ErrorKind::NotFound)]
    {
        let error = FileBytes::open(path).unwrap_err();
        assert!(matches!(&error, Error::Io { source, .. } if source.kind() == kind), "{error:?}");
        assert!(error.to_string().contains(&path.display().to_string()));
    }
}

#[cfg(unix)]
#[test]
fn a_device_cannot_be_opened() {
    let error = FileBytes::open(Path::new("/dev/null")).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
}

#[test]
fn a_mapped_file_holds_the_bytes_of_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"weights").unwrap();
    let source = FileBytes::open(file.path()).unwrap();
    assert_eq!(&source.data[..], b"weights");
    assert_eq!(FileBytes::embedded("built in", b"weights").data, source.data);
}
