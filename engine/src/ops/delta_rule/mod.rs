//! Gated delta rule (Yang et al., 2024): linear attention with a recurrent state S, `[Dv, Dk]`, in each head. For each token:
//!
//! - `S ← exp(g) · S`: the state decays;
//! - `S ← S + β · (v - S·k) ⊗ k`: the state's value for the key moves towards the token's value by the fraction β;
//! - `o = S·q / √Dk`.
//!
//! Queries and keys, `[T, Hk, Dk]`, values, `[T, H, Dv]`, and `g` and `β`, `[T, H]`, give outputs, `[T, H, Dv]`, and the
//! state after the last token, `[H, Dv, Dk]`. Head `h` reads query and key head `h / (H / Hk)`.
//!
//! Many engines compute chunks of tokens by products of matrices. The results differ by rounding only
//! ([`Profile::chunk`](crate::exact::Profile)).

pub(crate) mod exact;
pub(crate) mod faults;

use crate::kernels::dot::Kernel;
use crate::kernels::exp::exp;
use crate::parallel;
use crate::tensor::Tensor;

/// Inputs of a gated delta rule for the tokens of a pass.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaTokens {
    /// Queries of length 1, `[T, Hk, Dk]`.
    pub(crate) q: Tensor,
    /// Keys of length 1, `[T, Hk, Dk]`.
    pub(crate) k: Tensor,
    /// `[T, H, Dv]`
    pub(crate) v: Tensor,
    /// Logarithms of the decay, `[T, H]`.
    pub(crate) decay: Tensor,
    /// Fraction β by which each token moves the state's value towards its own value, `[T, H]`.
    pub(crate) beta: Tensor,
}

impl DeltaTokens {
    /// Returns the number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.v.rows()
    }

    /// Returns the number of heads, H.
    pub(crate) fn heads(&self) -> usize {
        self.v.shape()[1]
    }

    /// Returns the query and key head of a head.
    pub(crate) fn key_head(&self, head: usize) -> usize {
        head * self.k.shape()[1] / self.heads()
    }

    /// Returns the widths of a key, Dk, and of a value, Dv.
    pub(crate) fn widths(&self) -> [usize; 2] {
        [self.k.shape()[2], self.v.shape()[2]]
    }

    /// Returns all input tensors.
    pub(crate) fn tensors(&self) -> [&Tensor; 5] {
        [&self.q, &self.k, &self.v, &self.decay, &self.beta]
    }
}

/// Arithmetic of an engine for the gated delta rule, token by token.
#[derive(Clone, Copy)]
pub(crate) struct DeltaArithmetic {
    /// Exponential.
    pub(crate) exp: fn(f32) -> f32,
    /// Dot product.
    pub(crate) dot: fn(&[f32], &[f32]) -> f32,
    /// Computes `a · b + c`.
    pub(crate) multiply_add: fn(f32, f32, f32) -> f32,
}

impl DeltaArithmetic {
    /// Plain `f32`.
    pub(crate) const PLAIN: Self =
        Self { exp: |x| exp(x), dot: |a, b| Kernel::fastest().dot(a, b), multiply_add: |a, b, c| a * b + c };

    /// Computes the state after the tokens, `[H, Dv, Dk]`, and the outputs, `[T, H, Dv]`.
    pub(crate) fn of(self, tokens: &DeltaTokens, state: &Tensor) -> [Tensor; 2] {
        let ([keys, values], heads, len) = (tokens.widths(), tokens.heads(), tokens.len());
        let size = keys * values;
        let of_head = |head: usize| {
            let mut state = state.data()[head * size..][..size].to_vec();
            let out: Vec<f32> =
                (0..len).flat_map(|token| self.step(tokens, [token, head], &mut state)).collect();
            (state, out)
        };
        let made = parallel::map(heads, len * size, of_head);
        let from = |flat: usize| {
            let (row, column) = (flat / values, flat % values);
            made[row % heads].1[row / heads * values + column]
        };
        let out = Tensor::new(tokens.v.shape(), (0..tokens.v.data().len()).map(from).collect());
        [Tensor::new(state.shape(), made.into_iter().flat_map(|(state, _)| state).collect()), out]
    }

    /// Updates a head's state with one token. Returns the output, `[Dv]`.
    fn step(self, tokens: &DeltaTokens, [token, head]: [usize; 2], state: &mut [f32]) -> Vec<f32> {
        let [keys, values] = tokens.widths();
        let at = (token * tokens.k.shape()[1] + tokens.key_head(head)) * keys;
        let (q, k) = (&tokens.q.data()[at..][..keys], &tokens.k.data()[at..][..keys]);
        let at = token * tokens.heads() + head;
        let v = &tokens.v.data()[at * values..][..values];
        let (decay, beta) = ((self.exp)(tokens.decay.data()[at]), tokens.beta.data()[at]);
        let scale = 1.0 / (keys as f32).sqrt();
        let of_row = |(row, &v): (&mut [f32], &f32)| {
            row.iter_mut().for_each(|s| *s *= decay);
            let delta = (v - (self.dot)(row, k)) * beta;
            row.iter_mut().zip(k).for_each(|(s, &k)| *s = (self.multiply_add)(k, delta, *s));
            (self.dot)(row, q) * scale
        };
        state.chunks_mut(keys).zip(v).map(of_row).collect()
    }
}
