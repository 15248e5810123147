//! The dump contract: one directory or file of activations, whoever produced it.

mod directory;
pub mod layout;
mod manifest;
mod npz;
mod parse;
mod producer;
mod reader;
mod row;
mod sequences;
mod share;
pub mod sketch;
mod spelling;
mod writer;

pub use manifest::{Decode, Input, Layout, Manifest, ModelInfo, Pass};
pub use producer::Producer;
pub use reader::{Dump, MANIFEST};
pub use row::{COARSEST, Of, Scale, TensorRow};
pub use share::Foreign;
pub use writer::Recorder;

use crate::view::View;

/// An array as a dump holds it, widened to `f64`, which represents every element type exactly.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    /// Length of each axis, outermost first.
    pub shape: Vec<usize>,
    /// The elements, row-major.
    pub data: Vec<f64>,
}

impl<'v> From<&'v Values> for View<'v> {
    fn from(values: &'v Values) -> Self {
        View::of(&values.shape, &values.data)
    }
}

impl From<&View<'_>> for Values {
    fn from(view: &View<'_>) -> Self {
        Self { shape: view.shape().to_vec(), data: view.to_vec() }
    }
}
