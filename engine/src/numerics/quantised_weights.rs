//! Numerics with weights that are quantised in memory, to compute a quantised file of the same model.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use half::f16;

use crate::numerics::Numerics;
use crate::numerics::delegate::delegate;
use crate::ops::activation::{Activation, ClampedGlu};
use crate::ops::attention::{AttentionScale, Mask};
use crate::ops::experts::{ExpertRouting, RouterPrecision, ScoreFunction};
use crate::ops::norm::{LayerNorm, RmsNorm};
use crate::ops::rope::{Rope, RopeTable};
use crate::ops::scaling::Multiplier;
use crate::parallel;
use crate::quant::{ActivationCodes, WeightRounding, decode_matrix_row, largest_of};
use crate::tensor::Tensor;
use crate::weight::{DType, Factor, Matrix, StoredTensor};

/// Approximate time to round one weight in nanoseconds.
const ROUNDING: usize = 50;

/// Wraps numerics and replaces weights by quantised ones. A matrix is quantised at its first use and stored in f16,
/// whose error is far below that of 8-bit codes.
pub struct QuantisedWeights {
    inner: Box<dyn Numerics>,
    matrices: HashMap<MatrixAddress, QuantisedMatrix>,
}

/// Address and size of a matrix's elements, which identify it within a model.
type MatrixAddress = (usize, usize);

struct QuantisedMatrix {
    rounding: WeightRounding,
    result: OnceLock<Option<Matrix>>,
}

impl QuantisedWeights {
    /// Wraps `inner` and rounds these matrices of a model, each in its own way.
    pub fn over<'m>(
        inner: Box<dyn Numerics>,
        roundings: impl IntoIterator<Item = (&'m Matrix, WeightRounding)>,
    ) -> Self {
        let matrix = |(w, rounding)| (address(w), QuantisedMatrix { rounding, result: OnceLock::new() });
        Self { inner, matrices: roundings.into_iter().map(matrix).collect() }
    }

    fn of<'w>(&'w self, w: &'w Matrix) -> &'w Matrix {
        let found = self.matrices.get(&address(w));
        found
            .and_then(|found| found.result.get_or_init(|| quantised(w, found.rounding)).as_ref())
            .unwrap_or(w)
    }
}

fn address(w: &Matrix) -> MatrixAddress {
    (w.row(0).as_ptr() as usize, w.rows * w.cols)
}

/// Returns a copy with rounded weights; `None` for an empty matrix.
fn quantised(w: &Matrix, rounding: WeightRounding) -> Option<Matrix> {
    let decoded = |index: usize| {
        let mut row = vec![0.0; w.cols];
        decode_matrix_row(w, index, &mut row);
        row
    };
    let largest = match rounding {
        WeightRounding::Tensor(_) => {
            largest_of(&parallel::map(w.rows, w.cols, |index| largest_of(&decoded(index))))
        }
        _ => 0.0,
    };
    let mut data = vec![0u8; 2 * w.rows * w.cols];
    parallel::chunks(&mut data, 2 * w.cols, ROUNDING * w.cols, |index, out| {
        let mut row = decoded(index);
        rounding.round(&mut row, largest);
        for (out, value) in out.as_chunks_mut().0.iter_mut().zip(row) {
            *out = f16::from_f32(value).to_le_bytes();
        }
    });
    let shape = vec![w.rows, w.cols];
    let rounded = Matrix::from_stored(&StoredTensor { dtype: DType::F16, shape, data: data.into() })?;
    Some(rounded.with_input_scale(w.input_scale()).with_outliers(w.outliers()))
}

impl Numerics for QuantisedWeights {
    fn embed(&self, table: &Matrix, tokens: &[u32]) -> Tensor {
        self.inner.embed(self.of(table), tokens)
    }

    fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.inner.linear(x, self.of(w))
    }

    fn linear_of_pass(&self, x: &Tensor, w: &Matrix, bias: Option<&[f32]>, tokens: usize) -> Tensor {
        self.inner.linear_of_pass(x, self.of(w), bias, tokens)
    }

    fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor {
        self.inner.affine(x, self.of(w), bias)
    }

    fn router_logits(&self, x: &Tensor, w: &Matrix, precision: RouterPrecision) -> Tensor {
        self.inner.router_logits(x, self.of(w), precision)
    }

    fn linear_of_expert(&self, x: &Tensor, w: &Matrix) -> Tensor {
        self.inner.linear_of_expert(x, self.of(w))
    }

    delegate!(
        inner: cache_transform, name, weight_types, native_types, activation_type, activation_codes, scale, rms_norm, layer_norm, adds_rows_alike,
        bit_linear, rope_table, rotate, cache_type, cache_noise, to_cache, scores, softmax, softmax_with_sinks, add_alibi, clamped_glu, sums_of_values, context, activation, gated,
        likelihoods, scores_of_logits, expert_scores, choose, expert_weights, mix, shared_weights, add_shared, row_scaled, tempered, mix_streams, match_magnitude, mean_of_streams, sparse_gate, short_convolution, l2_norm, decay, delta_rule, silu_gated, gated_by_part, step_sizes, recurrence, recurs_alike, gated_norm, add, add_halves, probabilities
    );
}
