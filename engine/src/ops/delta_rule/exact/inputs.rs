//! Inputs of a gated delta rule, token by token.

use crate::exact::input::{InputTensor, InputValues};
use crate::exact::{ExactValue, Profile};
use crate::ops::delta_rule::DeltaTokens;

/// Inputs of a pass, with their uncertainty.
pub(super) struct KnownPass<'t> {
    pub(super) tokens: &'t DeltaTokens,
    q: InputTensor<'t>,
    k: InputTensor<'t>,
    v: InputTensor<'t>,
    decay: InputTensor<'t>,
    beta: InputTensor<'t>,
}

/// Evaluates the inputs of a pass.
pub(super) fn known<'t>(tokens: &'t DeltaTokens, profile: &Profile) -> KnownPass<'t> {
    let [q, k, v, decay, beta] = tokens.tensors().map(|x| InputTensor::of(x, profile));
    KnownPass { tokens, q, k, v, decay, beta }
}

/// Inputs of one token in a head.
pub(super) struct TokenInputs {
    pub(super) q: InputValues,
    pub(super) k: InputValues,
    pub(super) v: InputValues,
    pub(super) decay: ExactValue,
    pub(super) beta: ExactValue,
}

impl KnownPass<'_> {
    /// Returns the inputs of a token in a head.
    pub(super) fn token(&self, token: usize, head: usize) -> TokenInputs {
        let [keys, values] = self.tokens.widths();
        let key = (token * self.tokens.k.shape()[1] + self.tokens.key_head(head)) * keys;
        let at = token * self.tokens.heads() + head;
        TokenInputs {
            q: self.q.part(key, keys),
            k: self.k.part(key, keys),
            v: self.v.part(at * values, values),
            decay: self.decay.get(at),
            beta: self.beta.get(at),
        }
    }
}

/// Returns the sum of products, and the sum of their squares.
pub(super) fn dot(a: &[f64], b: &[f64]) -> (f64, f64) {
    let products = a.iter().zip(b).map(|(a, b)| a * b);
    products.fold((0.0, 0.0), |(sum, squares), product| (sum + product, product.mul_add(product, squares)))
}

/// Returns the largest square, and the sum of the squares.
pub(super) fn sizes(row: &[f64]) -> [f64; 2] {
    row.iter().map(|x| x * x).fold([0.0, 0.0], |[most, sum], square| [square.max(most), sum + square])
}
