//! The dump contract: one directory or file of activations, whoever produced it.

mod directory;
mod dtype_names;
pub mod layout;
mod manifest;
mod npz;
mod parser;
mod producer;
mod reader;
mod sequence_part;
mod sequences;
pub mod sketch;
mod tensor_row;
mod writer;

pub use manifest::{DecodeMode, DumpInput, Layout, Manifest, ModelInfo, Pass};
pub use producer::Producer;
pub use reader::{Dump, MANIFEST};
pub use sequence_part::ForeignKeys;
pub use tensor_row::{ArrayPart, COARSEST, ElementScale, TensorRow};
pub use writer::Recorder;

use crate::view::View;

/// An array as a dump holds it, widened to `f64`, which represents every element type exactly.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayValues {
    /// Length of each axis, outermost first.
    pub shape: Vec<usize>,
    /// The elements, row-major.
    pub data: Vec<f64>,
}

impl<'v> From<&'v ArrayValues> for View<'v> {
    fn from(values: &'v ArrayValues) -> Self {
        View::of(&values.shape, &values.data)
    }
}

impl From<&View<'_>> for ArrayValues {
    fn from(view: &View<'_>) -> Self {
        Self { shape: view.shape().to_vec(), data: view.to_vec() }
    }
}
