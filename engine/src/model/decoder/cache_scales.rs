//! Scales of an FP8 cache that a file stores with the projections of keys and values.

use std::sync::Arc;

use crate::error::{ModelError, Result};
use crate::format::TensorFile;
use crate::model::cache::CacheScales;
use crate::model::decoder::{DecoderBlock, DecoderConfig};

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
