//! Errors about models that cannot be found or run.

use std::path::PathBuf;

use crate::weight::DType;

/// Error about a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The model cannot be found, or its kind is unknown.
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
    /// The file has tensors that the forward pass would not use; running without them would judge another model.
    #[error("{}: the {architecture} forward pass does not use {}: {}", file.display(), plural(tensors.len(), "tensor"), shorten(tensors))]
    UnusedTensors {
        /// The file.
        file: PathBuf,
        /// The tensors.
        tensors: Vec<String>,
        /// Architecture.
        architecture: &'static str,
    },
    /// The configuration ties a matrix to the embedding table, but the file stores a matrix with other values.
    #[error("{}: tensor '{tensor}' differs from the embedding table, but tie_word_embeddings says that it is the same; correct config.json or remove the tensor", file.display())]
    NotTied {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor's shape contradicts the configuration.
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
    /// A tensor has a type that cannot be computed with.
    #[error("{}: tensor '{tensor}' has the unsupported type {dtype}, expected {supported}", file.display())]
    UnsupportedTensorType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Type found.
        dtype: DType,
        /// Types that can be run.
        supported: String,
    },
    /// A block's scale is infinite or NaN, so none of its values would be a number.
    #[error("{}: tensor '{tensor}' ({dtype}): block {block}, at byte {offset} of its data, has a scale that is not finite, expected a finite number; the file is damaged or badly quantised, get or make it again", file.display())]
    BadScale {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Type of the tensor.
        dtype: DType,
        /// First bad block, counted from the start of the tensor.
        block: usize,
        /// Start of the block in bytes, counted from the start of the tensor.
        offset: usize,
    },
    /// A ternary matrix contains a code without a weight.
    #[error("{}: tensor '{tensor}' ({dtype}): byte {offset} of its data has an invalid code, expected -1, 0 or 1; the file is damaged or has another layout (--i2s-layout)", file.display())]
    BadCode {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Type of the tensor.
        dtype: DType,
        /// Offset of the first byte with such a code, counted from the start of the tensor.
        offset: usize,
    },
    /// A ternary matrix whose layout cannot be determined.
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

/// Joins the first few names, to keep a message short.
fn shorten(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let more = names.len().saturating_sub(SHOWN);
    let shown = names[..names.len() - more].join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}
