//! RMSNorm and LayerNorm as engines compute them.

use xcheck_engine::numerics::Numerics;
use xcheck_engine::ops::norm::{Gain, LayerNorm, RmsNorm};
use xcheck_engine::tensor::Tensor;

use super::dice::{Law, normal};
use super::order::Adder;
use super::specimen::{Specimen, Store, times};

/// What a row is divided with, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// Times the reciprocal of the root, then times the gain.
    Reciprocal,
    /// Divided by the root, then times the gain.
    Divided,
    /// The gain meets the reciprocal first.
    GainFirst,
}

/// Rows to be normed.
pub struct Rows {
    pub x: Vec<f32>,
    pub gain: Vec<f32>,
    pub bias: Vec<f32>,
    pub eps: f32,
    pub store: Store,
}

impl Rows {
    pub fn new(law: Law, [rows, width]: [usize; 2], rms: f64, store: Store, seed: u64) -> Self {
        let x = store.rounded(&times(&law.numbers(rows, width, seed), rms));
        let gain: Vec<f32> = normal(width, 0.25, seed + 1).iter().map(|x| 1.0 + x).collect();
        let bias = normal(width, 0.1, seed + 2);
        Self { x, gain: store.rounded(&gain), bias: store.rounded(&bias), eps: 1e-5, store }
    }

    pub fn width(&self) -> usize {
        self.gain.len()
    }

    pub fn tensor(&self) -> Tensor {
        Tensor::new(&[self.x.len() / self.width(), self.width()], self.x.clone())
    }

    pub fn norm(&self) -> RmsNorm {
        RmsNorm { weight: self.gain.clone(), eps: self.eps, gain: Gain::Weight, groups: 1 }
    }

    pub fn layer(&self) -> LayerNorm {
        LayerNorm { weight: self.gain.clone(), bias: self.bias.clone(), eps: self.eps, gain: Gain::Weight }
    }

    pub fn traced(&self) -> Tensor {
        self.store.traced().rms_norm(&self.tensor(), &self.norm())
    }

    pub fn specimen(&self, name: impl Into<String>, own: Vec<f32>) -> Specimen {
        Specimen::new(name, self.traced(), own)
    }

    /// RMSNorm by the model's formula.
    pub fn rms(&self, adder: &Adder, way: Way) -> Vec<f32> {
        let inside = |mean_square: f32| (mean_square + self.eps).sqrt();
        self.rms_by(adder, way, inside, self.store)
    }

    /// RMSNorm; `root` is taken of a mean square, and `normed` is what a row is rounded to before it meets its gain.
    pub fn rms_by(&self, adder: &Adder, way: Way, root: impl Fn(f32) -> f32, normed: Store) -> Vec<f32> {
        let width = self.width();
        let of_row = |x: &[f32]| {
            let root = root(adder.dot(x, x) / width as f32);
            let one = |(x, gain): (&f32, &f32)| {
                let product = match way {
                    Way::Reciprocal => normed.round(x * (1.0 / root)) * gain,
                    Way::Divided => normed.round(x / root) * gain,
                    Way::GainFirst => x * ((1.0 / root) * gain),
                };
                self.store.round(product)
            };
            x.iter().zip(&self.gain).map(one).collect::<Vec<_>>()
        };
        self.x.chunks(width).flat_map(of_row).collect()
    }

    /// LayerNorm: deviations, their mean square, and what is left of a row; or as PyTorch's CPU kernel has it, with what
    /// the mean comes to added to the scaled row.
    pub fn layered(&self, adder: &Adder, is_shifted: bool) -> Vec<f32> {
        let (width, n) = (self.width(), self.width() as f32);
        let of_row = |x: &[f32]| {
            let mean = adder.sum(x) / n;
            let deviations: Vec<f32> = x.iter().map(|x| x - mean).collect();
            let scale = 1.0 / (adder.dot(&deviations, &deviations) / n + self.eps).sqrt();
            let one = |at: usize| {
                let standardised =
                    if is_shifted { x[at] * scale + -mean * scale } else { deviations[at] * scale };
                self.store.round(standardised * self.gain[at] + self.bias[at])
            };
            (0..width).map(one).collect::<Vec<_>>()
        };
        self.x.chunks(width).flat_map(of_row).collect()
    }
}
