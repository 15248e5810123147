//! Equal weights in two formats must give the same model.

use crate::error::Result;
use crate::selfcheck::operations::OperationFloors;
use crate::selfcheck::{CheckResult, CheckSubject, Exactness};

/// Every tap of the same tokens, of one model in two formats and the same numerics. The rows of q and k may be in another
/// order in the other, and so may be the sums over them.
///
/// # Errors
/// If one of them cannot be run.
pub fn formats_agree(one: CheckSubject, other: CheckSubject) -> Result<CheckResult> {
    const NAME: &str = "safetensors equals GGUF";
    OperationFloors::of(other, Exactness::Rounding)?.judge(NAME, one, &[other.tokens().len()])
}
