//! Equal weights in two formats must give the same model.

use crate::error::Result;
use crate::selfcheck::stages::Stages;
use crate::selfcheck::{Checked, Exactness, Subject};

/// Every tap of the same tokens, of one model in two formats and the same numerics. The rows of q and k may be in another
/// order in the other, and so may be the sums over them.
///
/// # Errors
/// If one of them cannot be run.
pub fn formats_agree(one: Subject, other: Subject) -> Result<Checked> {
    const NAME: &str = "safetensors equals GGUF";
    Stages::of(other, Exactness::Rounding)?.judge(NAME, one, &[other.tokens().len()])
}
