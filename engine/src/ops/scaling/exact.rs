//! Exact evaluation of elementwise sums and products, embedding lookups, cache rows and probabilities.

use std::sync::Arc;

use crate::exact::attention::softmax;
use crate::exact::choice::Choice;
use crate::exact::float::Float;
use crate::exact::input::InputTensor;
use crate::exact::operand::integers;
use crate::exact::operation::{Node, Operation, by_row, is_given, node_of};
use crate::exact::profile::Profile;
use crate::exact::value::{ExactValue, K, LAMBDA, U, both};
use crate::numerics::CACHE_CODES;
use crate::ops::multiplier::Multiplier;
use crate::quant::{self, decode_matrix_row};
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Rows looked up in an embedding table.
pub struct EmbeddingLookup {
    /// `[V, d]`
    pub table: Matrix,
    /// Token ids of the rows.
    pub tokens: Vec<u32>,
}

impl Operation for EmbeddingLookup {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let width = self.table.cols;
        let mut row = vec![0.0f32; width];
        let of_token = |flat: &[usize]| {
            let token = self.tokens[flat[0] / width] as usize;
            decode_matrix_row(&self.table, token, &mut row);
            let parts = quant::parts(self.table.dtype, self.table.row(token));
            let one = |&flat: &usize| {
                let at = flat % width;
                let value = profile.weights.round(row[at].into());
                // Subtracting a block's minimum adds one rounding, unless it is fused.
                let bound = parts
                    .as_ref()
                    .map_or(0.0, |[_, minima]| 2.0 * U * (value.abs() + 2.0 * minima[at].abs()));
                ExactValue::bounded(value, bound)
            };
            flat.iter().map(one).collect::<Vec<_>>()
        };
        by_row(wanted, width).flat_map(of_token).collect()
    }

    fn results(&self, profile: &Profile) -> Float {
        profile.stream()
    }

    fn is_certain(&self) -> bool {
        true
    }
}

/// Multiplies or divides each value by a number.
pub struct Scaling {
    /// Scaled value.
    pub x: Tensor,
    /// Number that the values are multiplied or divided by.
    pub by: Multiplier,
}

impl Operation for Scaling {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        // If the engine multiplies by a reciprocal, the reciprocal is rounded as well.
        let (factor, roundings) = match self.by {
            Multiplier::Element(factor) => (self.results(profile).round(factor.into()), 1.0),
            Multiplier::Number(factor) => (factor.into(), 1.0),
            Multiplier::Divisor(divisor) => (1.0 / f64::from(divisor), 2.0),
        };
        each(&InputTensor::read(&self.x, profile), wanted, |x| {
            let value = x.value * factor;
            let rounding = roundings * U * value.abs();
            x.through(value, factor).moved(K * rounding, rounding)
        })
    }

    fn results(&self, profile: &Profile) -> Float {
        // The result keeps its input's type: the stream's type for embeddings, the product's type for products.
        let is_embedding = |node: Arc<Node>| node.operation::<EmbeddingLookup>().is_some();
        let is_of_stream = self.x.origins().iter().filter_map(node_of).any(is_embedding);
        if is_of_stream { profile.stream() } else { profile.results }
    }

    fn is_certain(&self) -> bool {
        true
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::ChainedNorms]
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }
}

/// `a + b`.
pub struct Addition {
    /// First summand.
    pub a: Tensor,
    /// Second summand.
    pub b: Tensor,
}

impl Operation for Addition {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let (a, b) = (InputTensor::read(&self.a, profile), InputTensor::read(&self.b, profile));
        let add = |&flat: &usize| {
            let (a, b) = (a.get(flat), b.get(flat));
            let value = a.value + b.value;
            ExactValue { value, sigma: both(a.sigma, b.sigma), radius: a.radius + b.radius }
                .moved(K * U * value.abs(), U * value.abs())
        };
        wanted.iter().map(add).collect()
    }

    fn results(&self, profile: &Profile) -> Float {
        if profile.wide_sums { Float::F32 } else { profile.stream() }
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.a, &self.b]
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::ChainedNorms, Choice::Chained, Choice::WideSums]
    }

    fn is_sum(&self) -> bool {
        true
    }

    fn is_unbiased(&self, _: &Profile) -> bool {
        is_given(&self.a) && is_given(&self.b)
    }

    fn is_fused(&self) -> bool {
        true
    }
}

/// New key or value rows, rounded to the cache's type.
pub struct CachedRows {
    /// The new rows.
    pub x: Tensor,
    /// Type that they are rounded to.
    pub cache: Float,
}

impl Operation for CachedRows {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        each(&InputTensor::of(&self.x, profile), wanted, |x| x)
    }

    fn results(&self, _: &Profile) -> Float {
        self.cache
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }
}

/// New key or value rows, quantised to an int8 cache.
pub struct CachedCodes {
    /// The new rows, `[T, Hkv, D]`.
    pub x: Tensor,
}

impl Operation for CachedCodes {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let (x, width) = (InputTensor::of(&self.x, profile), self.x.row_len());
        let of_head = |flats: &[usize]| {
            let head = integers(&x.part(flats[0] / width * width, width), &CACHE_CODES, None);
            flats.iter().map(|flat| head.get(flat % width)).collect::<Vec<_>>()
        };
        by_row(wanted, width).flat_map(of_head).collect()
    }

    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }
}

/// The last row of logits.
pub struct LastRow {
    /// `[T, V]`
    pub logits: Tensor,
}

impl Operation for LastRow {
    fn at(&self, _: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let last = self.logits.row(self.logits.rows() - 1);
        wanted.iter().map(|&flat| ExactValue::sure(last[flat].into())).collect()
    }

    /// Returns `F32`, since the values were rounded before.
    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }
}

/// softmax(logits / temperature) of one row, always in `f32`.
pub struct Probabilities {
    /// `[V]`
    pub logits: Tensor,
    /// Divisor of the logits.
    pub temperature: f32,
}

impl Operation for Probabilities {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let temperature = f64::from(self.temperature);
        let logits = InputTensor::of(&self.logits, profile).part(0, self.logits.data().len()).map(|x| {
            let value = x.value / temperature;
            let rounding = if temperature == 1.0 { 0.0 } else { U * value.abs() };
            x.through(value, 1.0 / temperature).moved(K * rounding, rounding)
        });
        let all = softmax(&logits, profile);
        let n = all.len() as f64;
        let spread = |exact: ExactValue| match profile.one_by_one {
            true => exact.moved(0.0, n * U * exact.value),
            false => exact.moved(K * U * n.sqrt() * exact.value, LAMBDA * K * U * n.sqrt() * exact.value),
        };
        wanted.iter().map(|&flat| spread(all[flat])).collect()
    }

    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::OneByOne]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.logits]
    }
}

/// Applies `f` to each requested value.
fn each(x: &InputTensor, wanted: &[usize], f: impl Fn(ExactValue) -> ExactValue) -> Vec<ExactValue> {
    wanted.iter().map(|&flat| f(x.get(flat))).collect()
}
