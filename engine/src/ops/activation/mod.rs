//! Activation functions of the feed-forward block: `activation(x)`, or `activation(gate) · up` in GLU variants (Shazeer,
//! 2020), elementwise.

pub(crate) mod exact;
pub(crate) mod faults;

use std::fmt;

use multiversion::multiversion;

use crate::kernels::elementwise::{piecewise, zip};
use crate::kernels::exp::exp;
use crate::tensor::Tensor;

/// An elementwise activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)` (Elfwing et al., 2017).
    Silu,
    /// `max(x, 0)²` (So et al., 2021).
    SquaredRelu,
    /// GELU (Hendrycks and Gimpel, 2016), tanh form.
    GeluTanh,
    /// GELU's tanh form with a rounding after each operation: transformers' `gelu_new`.
    GeluNew,
    /// GELU's tanh form with a rounding after each operation, in BLOOM's order: `x · (1 + 0.044715 x²)` in place of
    /// `x + 0.044715 x³`.
    GeluFactored,
    /// GELU with the error function: `x/2 · (1 + erf(x / √2))`.
    GeluErf,
    /// `max(x, 0)`.
    Relu,
    /// GELU with a logistic function: `x / (1 + e^-1.702x)`.
    QuickGelu,
    /// Hyperbolic tangent, used by soft caps.
    Tanh,
    /// Logistic function, `1 / (1 + e^-x)`, used by the weight of a shared expert.
    Sigmoid,
}

impl Activation {
    /// All activation functions of feed-forward blocks.
    pub const ALL: &'static [Activation] = &[
        Activation::Silu,
        Activation::SquaredRelu,
        Activation::GeluTanh,
        Activation::GeluErf,
        Activation::GeluNew,
        Activation::GeluFactored,
        Activation::Relu,
        Activation::QuickGelu,
    ];

    /// Replaces this form of GELU by `form`; returns `false` and changes nothing if this function is not a GELU.
    pub(crate) fn replace_gelu(&mut self, form: Activation) -> bool {
        use Activation::{Relu, Sigmoid, Silu, SquaredRelu, Tanh};
        let is_gelu = !matches!(self, Silu | SquaredRelu | Relu | Tanh | Sigmoid);
        if is_gelu {
            *self = form;
        }
        is_gelu
    }

    /// Returns the mathematical function, independent of rounding: the first variant with the same function.
    pub fn function(self) -> Self {
        if matches!(self, Activation::GeluNew | Activation::GeluFactored) {
            Activation::GeluTanh
        } else {
            self
        }
    }

    /// Applies the function to each value of `x`, in `f32`.
    pub(crate) fn of(self, x: &Tensor) -> Tensor {
        match self {
            Activation::Silu => piecewise(x, silu),
            _ => x.clone().map(|x| self.at(x)),
        }
    }

    fn at(self, x: f32) -> f32 {
        match self {
            Activation::Silu => x / (1.0 + exp(-x)),
            Activation::SquaredRelu => x.max(0.0) * x.max(0.0),
            Activation::GeluTanh | Activation::GeluNew | Activation::GeluFactored => gelu_tanh(x),
            Activation::GeluErf => 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
            Activation::Relu => x.max(0.0),
            Activation::QuickGelu => x / (1.0 + (-QUICK * x).exp()),
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => 1.0 / (1.0 + exp(-x)),
        }
    }
}

/// A clamped GLU (OpenAI, 2025): `(u + 1) · g · sigmoid(alpha · g)`, with `g = min(gate, limit)` and `u` = the up
/// projection between `-limit` and `limit`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClampedGlu {
    /// Factor inside the sigmoid.
    pub alpha: f32,
    /// Largest gate and largest size of the up projection.
    pub limit: f32,
}

impl ClampedGlu {
    /// Computes it as ggml does, in `f32`.
    pub(crate) fn of(self, gate: &Tensor, up: &Tensor) -> Tensor {
        zip(gate, up, |gate, up| {
            let (gate, up) = self.clamped(gate, up);
            gate / (1.0 + (self.alpha * -gate).exp()) * (up + 1.0)
        })
    }

    /// Clamps a gate and an up projection. NaN stays NaN, as in torch.
    pub(crate) fn clamped(self, gate: f32, up: f32) -> (f32, f32) {
        (if gate > self.limit { self.limit } else { gate }, up.clamp(-self.limit, self.limit))
    }
}

/// Writes the name used in the literature.
impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Activation::Silu => "SiLU",
            Activation::SquaredRelu => "squared ReLU",
            Activation::GeluTanh => "GELU (tanh form)",
            Activation::GeluNew => "GELU (tanh form, step by step)",
            Activation::GeluFactored => "GELU (tanh form, step by step, factored)",
            Activation::GeluErf => "GELU (erf form)",
            Activation::Relu => "ReLU",
            Activation::QuickGelu => "GELU (logistic form)",
            Activation::Tanh => "tanh",
            Activation::Sigmoid => "sigmoid",
        })
    }
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn silu(x: &[f32], out: &mut [f32]) {
    out.iter_mut().zip(x).for_each(|(out, &x)| *out = x / (1.0 + exp(-x)));
}

/// Factor in the logistic form of GELU.
pub(crate) const QUICK: f32 = 1.702;

pub(crate) const SQRT_2_OVER_PI: f32 = 0.797_884_6;

/// Coefficient of the cubic term in the tanh form.
pub(crate) const CUBIC: f32 = 0.044_715;

/// Computes `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.
fn gelu_tanh(x: f32) -> f32 {
    0.5 * x * (1.0 + (SQRT_2_OVER_PI * x * (1.0 + CUBIC * x * x)).tanh())
}
