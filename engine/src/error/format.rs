//! Errors about files that violate their format.

use std::path::PathBuf;

/// Error about the bytes of a file.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The file does not start with its format's magic bytes.
    #[error("{}: {found} at byte 0, expected {expected}{hint}", file.display())]
    WrongMagic {
        /// The file.
        file: PathBuf,
        /// Bytes found.
        found: String,
        /// Format expected.
        expected: &'static str,
        /// Remedy; empty or starts with "; ".
        hint: &'static str,
    },
    /// The file's format version is not supported.
    #[error("{}: version {version} at byte 4 is not supported; {hint}", file.display())]
    UnsupportedVersion {
        /// The file.
        file: PathBuf,
        /// The version that the file states.
        version: u32,
        /// Supported versions, and the remedy.
        hint: &'static str,
    },
    /// The file is empty.
    #[error("{}: the file is empty", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// The file ends before the data that its header requires.
    #[error("{}: truncated: {what} at byte {offset} needs {needed} bytes, the file has {available} left", file.display())]
    Truncated {
        /// The file.
        file: PathBuf,
        /// Item being read.
        what: String,
        /// Start of the item, in bytes.
        offset: u64,
        /// Number of bytes that the item needs.
        needed: u64,
        /// Number of bytes that are left in the file.
        available: u64,
    },
    /// A field has an invalid value.
    #[error("{}: byte {offset}: {what} is {found}, expected {expected}", file.display())]
    BadBytes {
        /// The file.
        file: PathBuf,
        /// Offset in bytes.
        offset: u64,
        /// Field.
        what: String,
        /// Value found.
        found: String,
        /// Allowed values.
        expected: String,
    },
    /// Two tensors claim the same bytes.
    #[error("{}: tensor '{tensor}' overlaps tensor '{other}' at byte {offset}; the file is damaged, get it again", file.display())]
    OverlappingTensors {
        /// The file.
        file: PathBuf,
        /// Tensor that starts inside the other tensor.
        tensor: String,
        /// Tensor that contains the start.
        other: String,
        /// Start of the overlap, in bytes.
        offset: u64,
    },
    /// A GGUF file is big-endian.
    #[error("{}: big-endian GGUF (the version at byte 4 is byte-swapped), expected little-endian; run: gguf-convert-endian {} little", file.display(), file.display())]
    BigEndian {
        /// The file.
        file: PathBuf,
    },
    /// A name that must be unique occurs twice.
    #[error("{}: byte {offset}: second {kind} '{name}', expected each {kind} once; the file is damaged, get or convert it again", file.display())]
    Duplicate {
        /// The file.
        file: PathBuf,
        /// Offset of the second occurrence, in bytes.
        offset: u64,
        /// Kind of the name: "key" or "tensor".
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A field of a tensor's description has an invalid value.
    #[error("{}: byte {offset}: tensor '{tensor}': {what} is {found}, expected {expected}", file.display())]
    BadTensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Offset in bytes.
        offset: u64,
        /// Field.
        what: &'static str,
        /// Value found.
        found: String,
        /// Allowed values.
        expected: String,
    },
    /// A tensor has a known type that is not supported.
    #[error("{}: tensor '{tensor}' (byte {offset}) has type {name}, which is not supported; {hint}", file.display())]
    RefusedTensorType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Offset of its description or of its data, in bytes.
        offset: u64,
        /// The type.
        name: String,
        /// Remedy.
        hint: &'static str,
    },
    /// A tensor has an unknown type id.
    #[error("{}: tensor '{tensor}' (byte {offset}) has unknown type id {id}; a newer xcheck may support it", file.display())]
    UnknownTensorType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Offset of its description, in bytes.
        offset: u64,
        /// Type id.
        id: u32,
    },
    /// A pickle references something other than tensor data, which Python would import and usually call.
    #[error("{}: byte {offset}: the pickle refers to '{name}', {expected}", file.display())]
    ForeignPickle {
        /// The file.
        file: PathBuf,
        /// Offset in bytes.
        offset: u64,
        /// Module and name.
        name: String,
        /// Content that is expected, and how to save it.
        expected: &'static str,
    },
}
