//! Numerics that compute each token of a pass separately.

use std::ops::Range;

use crate::numerics::Numerics;
use crate::numerics::delegate::delegate;
use crate::ops::activation::{Activation, ClampedGlu};
use crate::ops::attention::{AttentionScale, Mask};
use crate::ops::experts::{ExpertRouting, RouterPrecision, ScoreFunction};
use crate::ops::norm::{LayerNorm, RmsNorm};
use crate::ops::rope::{Rope, RopeTable};
use crate::ops::scaling::Multiplier;
use crate::ops::state_space::{StateSpace, StepRule};
use crate::quant::ActivationCodes;
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix};

/// Computes every token with the summation order and the roundings of a single token. A pass of several tokens then
/// equals passes of one token bit for bit.
pub struct SingleTokenNumerics<'n>(pub &'n dyn Numerics);

/// Applies `of` to each row alone, `[1, d]`, and joins the results.
fn row_by_row(x: &Tensor, of: impl Fn(&Tensor) -> Tensor) -> Tensor {
    let row = |row| of(&Tensor::new(&[1, x.row_len()], x.row(row).to_vec())).into_data();
    let data: Vec<f32> = (0..x.rows()).flat_map(row).collect();
    Tensor::new(&[x.rows(), data.len() / x.rows()], data)
}

/// Applies `of` to the weights of each token alone, `[H, 1, S]`, and joins the results.
fn token_by_token(weights: &Tensor, of: impl Fn(&Tensor) -> Tensor) -> Tensor {
    let &[heads, tokens, keys] = weights.shape() else { panic!("weights are [H, T, S]") };
    let of_token = |token| {
        let rows = (0..heads).flat_map(|head| &weights.row(head)[token * keys..][..keys]);
        of(&Tensor::new(&[heads, 1, keys], rows.copied().collect())).into_data()
    };
    let data: Vec<f32> = (0..tokens).flat_map(of_token).collect();
    Tensor::new(&[tokens, data.len() / tokens], data)
}

/// Computes the scores of each token alone, `[1, H, D]` to `[H, 1, S]`, and joins them to `[H, T, S]`.
fn scores_by_token(q: &Tensor, of: impl Fn(&Tensor) -> Tensor) -> Tensor {
    let &[tokens, heads, head_dim] = q.shape() else { panic!("queries are [T, H, D]") };
    let of_token = |token| of(&Tensor::new(&[1, heads, head_dim], q.row(token).to_vec()));
    let scores: Vec<Tensor> = (0..tokens).map(of_token).collect();
    let rows = (0..heads).flat_map(|head| scores.iter().flat_map(move |scores| scores.row(head)));
    let data: Vec<f32> = rows.copied().collect();
    Tensor::new(&[heads, tokens, data.len() / heads / tokens], data)
}

impl Numerics for SingleTokenNumerics<'_> {
    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.0.linear_of_pass(x, w, None, 1)
    }

    fn linear_of_pass(&self, x: &Tensor, w: &Matrix, bias: Option<&[f32]>, _: usize) -> Tensor {
        self.0.linear_of_pass(x, w, bias, 1)
    }

    fn adds_rows_alike(&self, _: &Matrix, _: usize) -> bool {
        true
    }

    fn router_logits(&self, x: &Tensor, w: &Matrix, precision: RouterPrecision) -> Tensor {
        row_by_row(x, |row| self.0.router_logits(row, w, precision))
    }

    fn linear_of_expert(&self, x: &Tensor, w: &Matrix) -> Tensor {
        row_by_row(x, |row| self.0.linear_of_expert(row, w))
    }

    fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor {
        row_by_row(x, |row| self.0.affine(row, w, bias))
    }

    fn bit_linear(&self, x: &Tensor, w: &Matrix, scale: Option<Factor>) -> Tensor {
        row_by_row(x, |row| self.0.bit_linear(row, w, scale))
    }

    fn scores(&self, q: &Tensor, k: &Tensor, scale: AttentionScale) -> Tensor {
        scores_by_token(q, |q| self.0.scores(q, k, scale))
    }

    fn context(&self, weights: &Tensor, v: &Tensor) -> Tensor {
        token_by_token(weights, |weights| self.0.context(weights, v))
    }

    /// Runs the recurrence in its multi-token (prefill) form, because the first token of a sequence is computed in that
    /// form.
    fn recurrence(
        &self,
        x: &Tensor,
        steps: &Tensor,
        before: &Tensor,
        space: &StateSpace,
        _: bool,
    ) -> [Tensor; 2] {
        self.0.recurrence(x, steps, before, space, false)
    }

    fn step_sizes(&self, dt: &Tensor, rule: &StepRule, _: bool) -> Tensor {
        self.0.step_sizes(dt, rule, false)
    }

    fn gated_norm(&self, gate: &Tensor, x: &Tensor, norm: &RmsNorm, _: bool) -> Tensor {
        self.0.gated_norm(gate, x, norm, false)
    }

    delegate!(
        0: cache_transform, name, weight_types, native_types, activation_type, activation_codes, cache_type, cache_noise, embed, scale, rms_norm, layer_norm,
        rope_table, rotate, to_cache, softmax, softmax_with_sinks, add_alibi, clamped_glu, sums_of_values, activation, gated, likelihoods, scores_of_logits, expert_scores, choose, expert_weights, mix,
        shared_weights, add_shared, row_scaled, tempered, mix_streams, match_magnitude, mean_of_streams, sparse_gate, short_convolution, l2_norm, decay, delta_rule, silu_gated, gated_by_part, add, add_halves, probabilities
    );
}
