//! Files that are not what their format says.

use std::path::PathBuf;

/// Error about the bytes of a file.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The file does not start as its format does.
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
    /// The format is right, the version is not one that is read here.
    #[error("{}: version {version} at byte 4 is not supported; {hint}", file.display())]
    UnsupportedVersion {
        /// The file.
        file: PathBuf,
        /// The version it declares.
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
    /// The file ends before what it announces.
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
        /// Number of bytes left in the file.
        available: u64,
    },
    /// Some bytes say something that cannot be.
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
        /// The tensor that starts inside the other.
        tensor: String,
        /// The tensor it starts in.
        other: String,
        /// Start of the overlap, in bytes.
        offset: u64,
    },
    /// A GGUF file written for machines of the other byte order.
    #[error("{}: big-endian GGUF (the version at byte 4 is byte-swapped), expected little-endian; run: gguf-convert-endian {} little", file.display(), file.display())]
    BigEndian {
        /// The file.
        file: PathBuf,
    },
    /// A name that must be unique stands there twice.
    #[error("{}: byte {offset}: second {kind} '{name}', expected each {kind} once; the file is damaged, get or convert it again", file.display())]
    Duplicate {
        /// The file.
        file: PathBuf,
        /// Offset of the second one, in bytes.
        offset: u64,
        /// "key", "tensor".
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A tensor's description says something that cannot be.
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
    /// A tensor of a type that is known by name, but has no place here.
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
    /// A tensor of a type id that is not known.
    #[error("{}: tensor '{tensor}' (byte {offset}) has unknown type id {id}; a newer xcheck may support it", file.display())]
    UnknownTensorType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Offset of its description, in bytes.
        offset: u64,
        /// The id.
        id: u32,
    },
    /// A pickle names something that is no part of a tensor: Python would import it, and mostly call it.
    #[error("{}: byte {offset}: the pickle refers to '{name}', which a state dict of tensors does not need; xcheck never runs code from a pickle; save only model.state_dict(), or, if you trust the file, convert it to safetensors", file.display())]
    ForeignPickle {
        /// The file.
        file: PathBuf,
        /// Offset in bytes.
        offset: u64,
        /// Module and name.
        name: String,
    },
}
