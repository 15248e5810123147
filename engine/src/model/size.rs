//! Sizes as files state them.

use std::path::Path;

use crate::error::{Error, Result};

/// Maximum of any size, far above real models; products of a few sizes do not overflow.
pub(super) const MAX_SIZE: usize = 1 << 24;

/// Maximum number of layers, far above real models: each layer takes a thousand bytes, however small it is.
pub(super) const MAX_LAYERS: usize = 1 << 12;

/// Maximum number of experts, far above real models: so many matrices of a layer are one tensor.
pub(super) const MAX_EXPERTS: usize = 1 << 12;

/// Name of the number of layers in messages.
pub(super) const LAYERS: &str = "number of layers";

/// Makes sure that sizes are of a real model.
///
/// # Errors
/// Names the first that is not.
pub(super) fn check(file: &Path, sizes: &[(&str, usize)]) -> Result<()> {
    let most = |name: &str| if name == LAYERS { MAX_LAYERS } else { MAX_SIZE };
    match sizes.iter().find(|(name, size)| !(1..=most(name)).contains(size)) {
        Some((name, size)) => Err(Error::bad_key(file, name, size, format!("1 to {}", most(name)))),
        None => Ok(()),
    }
}
