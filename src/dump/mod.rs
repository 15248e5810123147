//! The dump contract: one directory or file of activations, whoever produced it.

mod manifest;
mod npz;
mod producer;
mod reader;
mod row;
mod spelling;
mod writer;

pub use manifest::{Decode, Input, Layout, Manifest, ModelInfo, Pass, family};
pub use producer::Producer;
pub use reader::Dump;
pub use row::TensorRow;
pub use writer::Recorder;

use crate::tensor::Tensor;

/// An array as a dump holds it, widened to `f64`, which represents every element type exactly.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    /// Length of each axis, outermost first.
    pub shape: Vec<usize>,
    /// The elements, row-major.
    pub data: Vec<f64>,
}

impl From<&Tensor> for Values {
    fn from(tensor: &Tensor) -> Self {
        Self {
            shape: tensor.shape().to_vec(),
            data: tensor.data().iter().map(|&value| value.into()).collect(),
        }
    }
}
