//! The norms of a decoder: RMSNorm, or LayerNorm with or without weights.

use crate::numerics::Numerics;
use crate::ops::norm::{LayerNorm, RmsNorm};
use crate::tensor::Tensor;

/// Kind of the norms of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// RMSNorm.
    Rms,
    /// LayerNorm with a weight and a bias.
    Layer,
    /// LayerNorm with a weight only.
    LayerWithoutBias,
    /// LayerNorm without parameters.
    LayerAlone,
}

impl NormKind {
    /// Returns the name for messages.
    pub(super) fn name(self) -> &'static str {
        if self == NormKind::Rms { "RMSNorm" } else { "LayerNorm" }
    }

    /// Returns the GGUF key of epsilon without its prefix, the architecture's name.
    pub(super) fn gguf_eps(self) -> &'static str {
        if self == NormKind::Rms {
            "attention.layer_norm_rms_epsilon"
        } else {
            "attention.layer_norm_epsilon"
        }
    }
}

/// A norm of rows.
#[derive(Clone, Debug)]
pub enum Norm {
    /// RMSNorm.
    Rms(RmsNorm),
    /// LayerNorm. Absent weights are 1, absent biases are 0.
    Layer(LayerNorm),
}

impl Norm {
    /// Norms each row: `[T, d]`.
    pub(crate) fn of(&self, n: &dyn Numerics, x: &Tensor) -> Tensor {
        match self {
            Norm::Rms(norm) => n.rms_norm(x, norm),
            Norm::Layer(norm) => n.layer_norm(x, norm),
        }
    }

    /// Returns the weight: `[d]`.
    pub fn weight_mut(&mut self) -> &mut [f32] {
        match self {
            Norm::Rms(norm) => &mut norm.weight,
            Norm::Layer(norm) => &mut norm.weight,
        }
    }
}
