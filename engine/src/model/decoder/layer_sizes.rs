//! Sizes that a GGUF file states once or for each layer.

use crate::error::{Error, Result};
use crate::format::Gguf;

/// Reads a size that a file may state once or for each layer. If layers may differ, returns that of the first layer.
pub(super) fn optional_same(
    file: &Gguf,
    key: &str,
    n_layers: usize,
    may_differ: bool,
) -> Result<Option<usize>> {
    if !file.is_array(key) {
        return file.optional(key);
    }
    let sizes: Vec<usize> = file.require(key)?;
    if may_differ {
        return Ok(sizes.first().copied());
    }
    if sizes.len() != n_layers {
        return Err(per_layer_count(file, key, sizes.len(), n_layers));
    }
    match sizes.iter().find(|size| **size != sizes[0]) {
        None => Ok(sizes.first().copied()),
        Some(other) => {
            let expected =
                format!("{} in every layer (layers of different sizes are not supported)", sizes[0]);
            Err(Error::bad_key(file.tensors.path(), key, other, expected))
        }
    }
}

/// Reads a size that a file must state, see [`optional_same`].
pub(super) fn require_same(file: &Gguf, key: &str, n_layers: usize, may_differ: bool) -> Result<usize> {
    optional_same(file, key, n_layers, may_differ)?.map_or_else(|| file.require(key), Ok)
}

pub(super) fn per_layer_count(file: &Gguf, key: &str, found: usize, n_layers: usize) -> Error {
    let (found, expected) = (format!("{found} entries"), format!("one for each of {n_layers} layers"));
    Error::bad_key(file.tensors.path(), key, found, expected)
}

/// Reads a size of each layer.
pub(super) fn per_layer(file: &Gguf, key: &str, n_layers: usize) -> Result<Vec<usize>> {
    if !file.is_array(key) {
        return Ok(vec![file.require(key)?; n_layers]);
    }
    let sizes: Vec<usize> = file.require(key)?;
    match sizes.len() == n_layers {
        true => Ok(sizes),
        false => Err(per_layer_count(file, key, sizes.len(), n_layers)),
    }
}
