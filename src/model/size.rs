//! Sizes as files state them.

use std::path::Path;

use crate::error::{Error, Result};

/// No size of a real model comes near it; products of a few sizes up to it do not overflow.
pub(super) const MAX_SIZE: usize = 1 << 24;

/// Makes sure that sizes are of a real model.
///
/// # Errors
/// Names the first that is not.
pub(super) fn check(file: &Path, sizes: &[(&str, usize)]) -> Result<()> {
    match sizes.iter().find(|(_, size)| !(1..=MAX_SIZE).contains(size)) {
        Some((name, size)) => Err(Error::bad_key(file, name, size, format!("1 to {MAX_SIZE}"))),
        None => Ok(()),
    }
}
