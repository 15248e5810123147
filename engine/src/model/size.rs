//! Sizes as files state them.

use std::path::Path;

use crate::error::{Error, Result};

/// No size of a real model comes near it; products of a few sizes up to it do not overflow.
pub(super) const MAX_SIZE: usize = 1 << 24;

/// More layers than any model has by far: of each a thousand bytes are kept, however small it is.
pub(super) const MAX_LAYERS: usize = 1 << 12;

/// More experts than any model has by far: so many matrices of a layer are one tensor.
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
