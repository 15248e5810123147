//! transformers' linear layers of BitNet, `AutoBitLinear` and `BitLinear`: each token's activations are rounded to int8
//! between −128 and 127, and multiplied with ternary weights in the model's dtype.

use crate::numerics::Transformers;
use crate::ops::norm::per_row;
use crate::tensor::Tensor;
use crate::weight::{Factor, Matrix};

/// Lower limit for the largest activation of a token.
const FLOOR: f32 = 1e-5;

impl Transformers {
    /// Computes `x · wᵀ` and applies the factor: `[T, cols]` to `[T, rows]`.
    pub(super) fn bit_products(self, x: &Tensor, w: &Matrix, factor: Factor) -> Tensor {
        match factor {
            Factor::Multiplies(scale) => {
                let (products, scale) =
                    (self.rounded(self.products(&self.quantised(x), w)), self.round(scale));
                products.map(|product| self.round(product * scale))
            }
            Factor::InWeights(scale) => {
                let weights = w.clone().with_scale(scale);
                self.rounded(self.products(&self.quantised(x), &weights))
            }
            Factor::Divides(scale) => self.divided(x, w, scale),
        }
    }

    /// Quantises activations, and divides the codes by their scale again in `f32`. The result is rounded to the dtype.
    fn quantised(self, x: &Tensor) -> Tensor {
        per_row(x, x.row_len(), |x, out| {
            let scale = Transformers::F32.scale_of(largest(x).max(FLOOR));
            out.iter_mut().zip(x).for_each(|(out, x)| *out = self.round(code(x * scale) / scale));
        })
    }

    /// Computes the scale as torch does when it divides a number by a tensor: it rounds the reciprocal, then
    /// multiplies.
    fn scale_of(self, largest: f32) -> f32 {
        self.round(self.round(1.0 / largest) * 127.0)
    }

    /// Multiplies activation codes by weight codes and divides the result by the product of both scales. Every step is
    /// rounded to the dtype.
    fn divided(self, x: &Tensor, w: &Matrix, weight_scale: f32) -> Tensor {
        let scale = |row: &[f32]| self.scale_of(largest(row).max(self.round(FLOOR)));
        let codes = per_row(x, x.row_len(), |x, out| {
            let scale = scale(x);
            out.iter_mut().zip(x).for_each(|(out, x)| *out = code(self.round(x * scale)));
        });
        let products = self.rounded(self.products(&codes, w));
        let weight_scale = self.round(weight_scale);
        Tensor::from_rows(x.rows(), w.rows, |token, out| {
            let both = self.round(scale(x.row(token)) * weight_scale);
            out.iter_mut()
                .zip(products.row(token))
                .for_each(|(out, product)| *out = self.round(product / both));
        })
    }
}

fn largest(row: &[f32]) -> f32 {
    row.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()))
}

fn code(scaled: f32) -> f32 {
    scaled.round_ties_even().clamp(-128.0, 127.0)
}
