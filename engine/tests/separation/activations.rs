//! Activations and sums of two rows, as engines compute them.

use xcheck_engine::numerics::Numerics;
use xcheck_engine::ops::activation::Activation;
use xcheck_engine::tensor::Tensor;

use super::dice::{Law, normal};
use super::specimen::{Specimen, Store};

/// A formula of an activation, in `f32`.
pub type Formula = fn(f32) -> f32;

pub const SILU: [Formula; 4] = [
    |x| x / (1.0 + (-x).exp()),
    |x| x * (1.0 / (1.0 + (-x).exp())),
    |x| x / (1.0 + libm::expf(-x)),
    |x| (f64::from(x) / (1.0 + f64::from(-x).exp())) as f32,
];

const C: f32 = 0.797_884_6;

pub const GELU_TANH: [Formula; 5] = [
    |x| 0.5 * x * (1.0 + (C * (x + 0.044_715 * x * x * x)).tanh()),
    |x| 0.5 * x * (1.0 + libm::tanhf(C * (x + 0.044_715 * x * x * x))),
    |x| x * (0.5 * (1.0 + (C * x * (0.044_715 * x).mul_add(x, 1.0)).tanh())),
    |x| x / (1.0 + (-2.0 * (C * (x + 0.044_715 * x * x * x))).exp()),
    |x| {
        let x = f64::from(x);
        (0.5 * x * (1.0 + (f64::from(C) * (x + f64::from(0.044_715f32) * x * x * x)).tanh())) as f32
    },
];

pub const GELU_ERF: [Formula; 3] = [
    |x| 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
    |x| x * 0.5 * libm::erfcf(-x * std::f32::consts::FRAC_1_SQRT_2),
    |x| (0.5 * f64::from(x) * (1.0 + libm::erf(f64::from(x) * std::f64::consts::FRAC_1_SQRT_2))) as f32,
];

/// A gate, and what it lets through.
pub struct Gated {
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
    pub width: usize,
    pub activation: Activation,
    pub store: Store,
}

impl Gated {
    pub fn new(activation: Activation, law: Law, [rows, width]: [usize; 2], store: Store, seed: u64) -> Self {
        let gate = store.rounded(&law.numbers(rows, width, seed));
        let up = store.rounded(&normal(rows * width, 1.0, seed + 1));
        Self { gate, up, width, activation, store }
    }

    fn tensor(&self, data: &[f32]) -> Tensor {
        Tensor::new(&[data.len() / self.width, self.width], data.to_vec())
    }

    pub fn traced(&self, by: &impl Numerics) -> Tensor {
        by.gated(&self.tensor(&self.gate), &self.tensor(&self.up), self.activation)
    }

    /// The activation is rounded to `activated` before it meets the up projection.
    pub fn by(&self, formula: Formula, activated: Store) -> Vec<f32> {
        let pairs = self.gate.iter().zip(&self.up);
        pairs.map(|(&gate, up)| self.store.round(activated.round(formula(gate)) * up)).collect()
    }

    pub fn specimen(&self, name: impl Into<String>, own: Vec<f32>) -> Specimen {
        Specimen::new(name, self.traced(&self.store.traced()), own)
    }

    /// Without an up projection.
    pub fn alone(&self, name: impl Into<String>, formula: Formula) -> Specimen {
        let own = self.gate.iter().map(|&x| self.store.round(formula(x))).collect();
        Specimen::new(name, self.store.traced().activation(&self.tensor(&self.gate), self.activation), own)
    }

    /// The residual add.
    pub fn added(&self, name: impl Into<String>, own: Vec<f32>) -> Specimen {
        Specimen::new(name, self.store.traced().add(&self.tensor(&self.gate), &self.tensor(&self.up)), own)
    }

    pub fn sums(&self, add: impl Fn(f32, f32) -> f32) -> Vec<f32> {
        self.gate.iter().zip(&self.up).map(|(&a, &b)| self.store.round(add(a, b))).collect()
    }
}
