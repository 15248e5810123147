//! Embeddings of tokens for each layer, which a layer adds to its output through a gate (Gemma 4).

use crate::error::Result;
use crate::model::decoder::names::DecoderNames;
use crate::model::decoder::{DecoderConfig, LayerVariants};
use crate::model::weights::Weights;
use crate::numerics::Numerics;
use crate::ops::norm::RmsNorm;
use crate::ops::scaling::Multiplier;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Weights of the embeddings for each layer. L = layers, P = width of the embedding for one layer.
#[derive(Clone, Debug)]
pub struct LayerEmbeddings {
    /// `[V, L·P]`
    pub(crate) table: Matrix,
    /// `[L·P, d]`
    pub(crate) projection: Matrix,
    /// `[P]`, the same for every layer
    norm: RmsNorm,
    /// Factors of the projected embeddings, and of their sum with those of tokens.
    scales: [Multiplier; 2],
}

impl LayerEmbeddings {
    /// Loads the weights, if the model has such embeddings.
    pub(super) fn load(c: &DecoderConfig, w: &mut Weights, names: DecoderNames) -> Result<Option<Self>> {
        let Some(LayerVariants { embedding_width: width @ 1.., embedding_rows, scales, .. }) = c.variants
        else {
            return Ok(None);
        };
        let [table, projection, norm] = names.per_layer_embeddings();
        let all = c.n_layers.saturating_mul(width);
        Ok(Some(Self {
            table: w.matrix(&table, embedding_rows, all)?,
            projection: w.matrix(&projection, all, c.hidden_size)?,
            norm: c.rms_norm(w.vector(&norm, width)?),
            scales,
        }))
    }

    /// Returns the row of each token: the first one for tokens beyond the table, as in transformers.
    pub(super) fn rows_of(&self, tokens: &[u32]) -> Vec<u32> {
        tokens.iter().map(|&token| if (token as usize) < self.table.rows { token } else { 0 }).collect()
    }

    /// Computes the embeddings of a pass for all layers from the rows of its tokens and their scaled embeddings, `[T, d]`: `[T, L·P]`.
    pub(super) fn of(&self, tokens: &[u32], x: &Tensor, n: &dyn Numerics) -> Tensor {
        let width = self.norm.weight.len();
        let rows = n.scale(&n.embed(&self.table, tokens), Multiplier::Element((width as f32).sqrt()));
        let [of_projected, of_sum] = self.scales;
        let projected = n.scale(&n.linear(x, &self.projection), of_projected);
        let heads = projected.reshaped(&[x.rows(), self.table.cols / width, width]);
        let normed = n.rms_norm(&heads, &self.norm).reshaped(rows.shape());
        n.scale(&n.add_halves(&normed, &rows), of_sum)
    }
}
