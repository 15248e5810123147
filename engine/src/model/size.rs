//! Limits for sizes stated in files.

use std::path::Path;

use crate::error::{Error, Result};

/// Maximum of any size. It is far above real models, and products of a few sizes do not overflow.
pub(super) const MAX_SIZE: usize = 1 << 24;

/// Maximum number of layers. It is far above real models; even a tiny layer takes a thousand bytes.
pub(super) const MAX_LAYERS: usize = 1 << 12;

/// Maximum number of experts. It is far above real models; one tensor stores the matrices of all experts of a
/// layer.
pub(super) const MAX_EXPERTS: usize = 1 << 12;

/// Maximum number of values of a layer's recurrent state, far above real models (2^20).
const MAX_STATE: usize = 1 << 26;

/// Name of the number of layers in messages.
pub(super) const LAYERS: &str = "number of layers";

/// Checks that a recurrent state of these sizes is plausible.
///
/// # Errors
/// If it has too many values.
pub(super) fn check_state(file: &Path, sizes: [usize; 3]) -> Result<()> {
    let values = sizes.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
    match values.is_some_and(|values| values <= MAX_STATE) {
        true => Ok(()),
        false => {
            let found = sizes.map(|size| size.to_string()).join(" x ");
            Err(Error::bad_key(file, "values of a recurrent state", found, format!("at most {MAX_STATE}")))
        }
    }
}

/// Checks that sizes are plausible.
///
/// # Errors
/// Names the first implausible size.
pub(super) fn check(file: &Path, sizes: &[(&str, usize)]) -> Result<()> {
    let most = |name: &str| if name == LAYERS { MAX_LAYERS } else { MAX_SIZE };
    match sizes.iter().find(|(name, size)| !(1..=most(name)).contains(size)) {
        Some((name, size)) => Err(Error::bad_key(file, name, size, format!("1 to {}", most(name)))),
        None => Ok(()),
    }
}
