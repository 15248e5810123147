//! Numerics that quantise activations to codes of 8 or 4 bits before products with weights.

use std::ops::Range;

use crate::numerics::Numerics;
use crate::numerics::delegate::delegate;
use crate::ops::activation::{Activation, ClampedGlu};
use crate::ops::attention::{AttentionScale, Mask};
use crate::ops::experts::{ExpertRouting, RouterPrecision, ScoreFunction};
use crate::ops::norm::{LayerNorm, RmsNorm};
use crate::ops::rope::{Rope, RopeTable};
use crate::ops::scaling::Multiplier;
use crate::quant::{ActivationCodes, CodeGroup};
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix};

/// Wraps numerics and rounds activations to codes before each product with weights.
pub struct ActivationQuantisation {
    inner: Box<dyn Numerics>,
    codes: ActivationCodes,
}

impl ActivationQuantisation {
    /// Wraps `inner` and quantises the activations of its products.
    pub fn over(inner: Box<dyn Numerics>, codes: ActivationCodes) -> Self {
        Self { inner, codes }
    }

    /// Computes a product of quantised activations with `product`. Columns with outliers are multiplied separately.
    fn product(&self, x: &Tensor, w: &Matrix, product: impl Fn(&Tensor, bool) -> Tensor) -> Tensor {
        let Some(codes) = self.codes.of_product(w) else { return product(x, true) };
        let columns = codes.outlier_columns(x.data().chunks(x.row_len().max(1)), x.row_len());
        let Some(columns) = columns else { return product(&rounded(x, w, codes), true) };
        let [codes, outliers] = codes.split_outliers(x.data(), x.row_len(), &columns);
        let codes = product(&Tensor::new(x.shape(), codes), true);
        match columns.contains(&true) {
            true => self.inner.add(&codes, &product(&Tensor::new(x.shape(), outliers), false)),
            false => codes,
        }
    }
}

/// Returns activations with each value replaced by the value of its code.
fn rounded(x: &Tensor, w: &Matrix, codes: ActivationCodes) -> Tensor {
    let mut data = x.data().to_vec();
    match (codes.group, w.input_scale()) {
        (CodeGroup::Matrix, Some(input)) => codes.round_stored(&mut data, &input),
        _ => codes.round(&mut data, x.row_len()),
    }
    Tensor::new(x.shape(), data)
}

impl Numerics for ActivationQuantisation {
    fn activation_codes(&self) -> Option<ActivationCodes> {
        Some(self.codes)
    }

    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.product(x, w, |x, _| self.inner.linear(x, w))
    }

    fn linear_of_pass(&self, x: &Tensor, w: &Matrix, bias: Option<&[f32]>, tokens: usize) -> Tensor {
        self.product(x, w, |x, is_first| self.inner.linear_of_pass(x, w, bias.filter(|_| is_first), tokens))
    }

    fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor {
        self.product(x, w, |x, is_first| match is_first {
            true => self.inner.affine(x, w, bias),
            false => self.inner.linear(x, w),
        })
    }

    fn linear_of_expert(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.product(x, w, |x, _| self.inner.linear_of_expert(x, w))
    }

    delegate!(
        inner: cache_transform, name, weight_types, native_types, activation_type, embed, scale, rms_norm, layer_norm, adds_rows_alike,
        bit_linear, rope_table, rotate, cache_type, cache_noise, to_cache, scores, softmax, softmax_with_sinks, add_alibi, clamped_glu, sums_of_values, context, activation, gated,
        likelihoods, router_logits, scores_of_logits, expert_scores, choose, expert_weights, mix, shared_weights, add_shared, row_scaled, tempered, mix_streams, match_magnitude, mean_of_streams, sparse_gate, short_convolution, l2_norm, decay, delta_rule, silu_gated, gated_by_part, step_sizes, recurrence, recurs_alike, gated_norm, add, add_halves, probabilities
    );
}
