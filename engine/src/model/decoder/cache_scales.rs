//! Scales of an FP8 cache that a file stores with the projections of keys and values.

use std::sync::Arc;

use crate::error::{ModelError, Result};
use crate::format::TensorFile;
use crate::model::cache::CacheScales;
use crate::model::decoder::{DecoderBlock, DecoderConfig, LayerWeights, Projection};

/// Returns the scales of a layer's cache, if the file states any.
pub(super) fn of_layer<B: DecoderBlock>(block: &B) -> CacheScales {
    let matrices = block.matrices();
    let of = |name| {
        let (_, matrix) = matrices.iter().find(|(own, _)| *own == name)?;
        matrix.cache_scales().map(Arc::from)
    };
    CacheScales { keys: of("attn_k"), values: of("attn_v") }
}

/// Checks that a cache has one scale, or one for each head.
///
/// # Errors
/// If it has another number of scales.
pub(super) fn check<B: DecoderBlock>(c: &DecoderConfig, file: &TensorFile, layers: &[B]) -> Result<()> {
    for (layer, block) in layers.iter().enumerate() {
        for (name, matrix) in block.matrices() {
            let count = matrix.cache_scales().map_or(1, <[f32]>::len);
            let [_, heads] = c.head_sizes(layer);
            if count != 1 && count != heads {
                let (file, tensor) =
                    (file.path().into(), format!("the cache's scales of {name}, layer {layer}"));
                let (found, expected) = (vec![count], vec![heads]);
                return Err(ModelError::WrongShape { file, tensor, found, expected }.into());
            }
        }
    }
    Ok(())
}

impl LayerWeights<'_, '_> {
    /// Loads queries, keys and values that are fused in one tensor, with the scales of an FP8 cache that a Hugging Face
    /// checkpoint stores for keys and values.
    ///
    /// # Errors
    /// See [`LayerWeights::projection`] and [`LayerWeights::cache_scales`].
    pub(crate) fn fused_heads(
        &mut self,
        has_bias: bool,
        rows: [usize; 3],
        cols: usize,
    ) -> Result<[Projection; 3]> {
        const NAME: &str = "attn_qkv";
        let [q, mut k, mut v] = self.fused(NAME, has_bias, rows, cols)?;
        let fused = self.names.of_layer(NAME, self.layer);
        if let Some(attention) = fused.strip_suffix("qkv_proj.weight") {
            for (part, name) in [(&mut k, "k_proj"), (&mut v, "v_proj")] {
                let scales = self.weights.cache_scales(&format!("{attention}{name}.weight"))?;
                part.weight = part.weight.clone().with_cache_scales(scales);
            }
        }
        Ok([q, k, v])
    }
}
