//! Numerics whose products add in one order, however many rows there are.

use std::ops::Range;

use crate::numerics::Numerics;
use crate::ops::attention::{Mask, Scale};
use crate::ops::ffn::Activation;
use crate::ops::norm::{LayerNorm, RmsNorm};
use crate::ops::rope::{Rope, RopeTable};
use crate::tensor::Tensor;
use crate::weight::{DType, Matrix};

/// Other numerics, but every product adds as that of a single row. What several tokens give together and one by one is
/// then the same to the last bit, if nothing else is wrong.
pub struct OneOrder<'n>(pub &'n dyn Numerics);

macro_rules! as_they_are {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        impl Numerics for OneOrder<'_> {
            fn linear(&self, x: &Tensor, w: &Matrix) -> Tensor {
                self.0.linear_of_pass(x, w, 1)
            }

            fn linear_of_pass(&self, x: &Tensor, w: &Matrix, _: usize) -> Tensor {
                self.0.linear_of_pass(x, w, 1)
            }

            fn adds_rows_alike(&self, _: &Matrix, _: usize) -> bool {
                true
            }

            fn affine(&self, x: &Tensor, w: &Matrix, bias: &[f32]) -> Tensor {
                let rows = (0..x.rows()).flat_map(|row| {
                    let row = Tensor::new(&[1, x.row_len()], x.row(row).to_vec());
                    self.0.affine(&row, w, bias).into_data()
                });
                Tensor::new(&[x.rows(), w.rows], rows.collect())
            }

            $(fn $name(&self, $($argument: $type),*) -> $result {
                self.0.$name($($argument),*)
            })*
        }
    };
}

as_they_are! {
    name() -> &'static str;
    weight_types() -> &'static [DType];
    native_types() -> &'static [DType];
    cache_type() -> DType;
    embed(table: &Matrix, tokens: &[u32]) -> Tensor;
    scale(x: &Tensor, factor: f32) -> Tensor;
    rms_norm(x: &Tensor, norm: &RmsNorm) -> Tensor;
    layer_norm(x: &Tensor, norm: &LayerNorm) -> Tensor;
    rope_table(rope: &Rope, positions: Range<usize>) -> RopeTable;
    rotate(x: &Tensor, table: &RopeTable) -> Tensor;
    to_cache(x: Tensor) -> Tensor;
    scores(q: &Tensor, k: &Tensor, scale: Scale) -> Tensor;
    softmax(scores: &Tensor, mask: Mask) -> Tensor;
    context(weights: &Tensor, v: &Tensor) -> Tensor;
    activation(x: &Tensor, activation: Activation) -> Tensor;
    gated(gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor;
    add(a: &Tensor, b: &Tensor) -> Tensor;
    probabilities(logits: &Tensor, temperature: f32) -> Tensor;
}
