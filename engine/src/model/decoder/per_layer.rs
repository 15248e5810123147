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
pub(crate) struct PerLayerEmbeddings {
    /// `[V, L·P]`
    pub(crate) table: Matrix,
    /// `[L·P, d]`
    pub(crate) projection: Matrix,
    /// `[P]`, the same for every layer
    norm: RmsNorm,
    /// Factor of the projected embeddings.
    scale: f32,
}

impl PerLayerEmbeddings {
    /// Loads the weights, if the model has such embeddings.
    pub(super) fn load(c: &DecoderConfig, w: &mut Weights, names: DecoderNames) -> Result<Option<Self>> {
        let Some(LayerVariants { embedding_width: width @ 1.., projection_scale: scale, .. }) = c.variants
        else {
            return Ok(None);
        };
        let [table, projection, norm] = names.per_layer_embeddings();
        let all = c.n_layers.saturating_mul(width);
        Ok(Some(Self {
            table: w.matrix(&table, c.vocab_size, all)?,
            projection: w.matrix(&projection, all, c.hidden_size)?,
            norm: c.rms_norm(w.vector(&norm, width)?),
            scale,
        }))
    }

    /// Computes the embeddings of a pass for all layers from its tokens and their scaled embeddings, `[T, d]`: `[T, L·P]`.
    pub(super) fn of(&self, tokens: &[u32], x: &Tensor, n: &dyn Numerics) -> Tensor {
        let width = self.norm.weight.len();
        let rows = n.scale(&n.embed(&self.table, tokens), Multiplier::Element((width as f32).sqrt()));
        let projected = n.scale(&n.linear(x, &self.projection), Multiplier::Number(self.scale));
        let heads = projected.reshaped(&[x.rows(), self.table.cols / width, width]);
        let normed = n.rms_norm(&heads, &self.norm).reshaped(rows.shape());
        n.scale(&n.add_halves(&normed, &rows), Multiplier::Number(std::f32::consts::FRAC_1_SQRT_2))
    }
}
