//! Check that equal weights in two file formats give the same model.

use crate::error::Result;
use crate::selfcheck::operations::OperationFloors;
use crate::selfcheck::{CheckResult, CheckSubject, Exactness};

/// Compares every tap of one model in two formats, with the same tokens and numerics. The formats may order
/// the rows of q and k differently, which changes the order of sums.
///
/// # Errors
/// If one of the models cannot be run.
pub fn formats_agree(one: CheckSubject, other: CheckSubject) -> Result<CheckResult> {
    const NAME: &str = "safetensors equals GGUF";
    OperationFloors::of(other, Exactness::Rounding)?.judge(NAME, one, &[other.tokens().len()])
}
