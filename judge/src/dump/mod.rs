//! The dump format: a directory or file with recorded activations, from any producer.

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

pub use manifest::{DumpInput, Layout, Manifest, ModelInfo, Pass};

pub(crate) use manifest::DecodeMode;
pub use producer::Producer;
pub use reader::{Dump, MANIFEST};
pub(crate) use tensor_row::{ArrayPart, ElementScale};
pub use tensor_row::{COARSEST, TensorRow};
pub use writer::Recorder;

use crate::view::View;

/// An array of a dump as `f64` values. `f64` represents every supported element type exactly.
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
