//! Models that cannot be found, or cannot be run.

use std::path::PathBuf;

use crate::weight::DType;

/// Error about a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The model cannot be found or is of no known kind.
    #[error("no model '{name}': {problem}")]
    NoModel {
        /// Requested name.
        name: String,
        /// Reason, and the known names.
        problem: String,
    },
    /// A tensor the architecture needs is absent.
    #[error("{}: tensor '{tensor}' is missing; the {architecture} architecture needs it", file.display())]
    MissingTensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Architecture.
        architecture: &'static str,
    },
    /// Tensors that the forward pass would not use: running without them would judge another model.
    #[error("{}: the {architecture} forward pass does not use {}: {}", file.display(), plural(tensors.len(), "tensor"), shorten(tensors))]
    UnusedTensors {
        /// The file.
        file: PathBuf,
        /// The tensors.
        tensors: Vec<String>,
        /// Architecture.
        architecture: &'static str,
    },
    /// A matrix that the configuration ties to the embedding table, and that the file holds with other values.
    #[error("{}: tensor '{tensor}' differs from the embedding table, but tie_word_embeddings says that it is the same; correct config.json or remove the tensor", file.display())]
    NotTied {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor's shape does not follow from the configuration.
    #[error("{}: tensor '{tensor}' has shape {found:?}, expected {expected:?} by the configuration", file.display())]
    WrongShape {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape found, outermost axis first.
        found: Vec<usize>,
        /// The shape that follows from the configuration.
        expected: Vec<usize>,
    },
    /// A tensor's type is known but cannot be computed with.
    #[error("{}: tensor '{tensor}' has the unsupported type {dtype}, expected {supported}", file.display())]
    UnsupportedTensorType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Type found.
        dtype: DType,
        /// The types that can be run.
        supported: String,
    },
    /// A block whose scale is infinite or not a number: none of its values would be one.
    #[error("{}: tensor '{tensor}' ({dtype}): block {block}, at byte {offset} of its data, has a scale that is not finite, expected a finite number; the file is damaged or badly quantised, get or make it again", file.display())]
    BadScale {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Type of the tensor.
        dtype: DType,
        /// The first such block, counted from the start of the tensor.
        block: usize,
        /// Start of the block, counted likewise.
        offset: usize,
    },
    /// A code that stands for no weight.
    #[error("{}: tensor '{tensor}' ({dtype}): byte {offset} of its data has an invalid code, expected -1, 0 or 1; the file is damaged or has another layout (--i2s-layout)", file.display())]
    BadCode {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Type of the tensor.
        dtype: DType,
        /// The first such byte, counted from the start of the tensor.
        offset: usize,
    },
    /// A ternary matrix in an order that cannot be told.
    #[error("{}: tensor '{tensor}' ({dtype}) cannot be unpacked: {problem}", file.display())]
    Unpackable {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Type of the tensor.
        dtype: DType,
        /// Reason and remedy.
        problem: String,
    },
}

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The first few names, so that a message stays a message.
fn shorten(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let more = names.len().saturating_sub(SHOWN);
    let shown = names[..names.len() - more].join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}
