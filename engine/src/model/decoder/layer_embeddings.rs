//! Per-layer embeddings of tokens, which a layer adds to its output through a gate (Gemma 4).

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
    /// `[P]`, the same weight for every layer
    norm: RmsNorm,
    /// Factor of the projected embeddings, and factor of their sum with the tokens' per-layer embeddings.
    scales: [Multiplier; 2],
}

impl LayerEmbeddings {
    /// Loads the weights, if the model has per-layer embeddings.
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

    /// Returns the table row of each token. Tokens beyond the table get the first row, as in transformers.
    pub(super) fn rows_of(&self, tokens: &[u32]) -> Vec<u32> {
        tokens.iter().map(|&token| if (token as usize) < self.table.rows { token } else { 0 }).collect()
    }

    /// Computes the per-layer embeddings of a pass, `[T, L·P]`, from the table rows of its tokens and from their scaled
    /// embeddings, `[T, d]`.
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
