//! The same weights in two formats are one model.

use crate::engine::Script;
use crate::error::Result;
use crate::selfcheck::record::compare_runs;
use crate::selfcheck::{Exactness, Finding, Subject};

/// The files of one format may have the rows of q and k in another order, which changes the order of sums.
const BOUND: f64 = 1e-4;

/// Every tap of the same tokens, of one model in two formats and the same numerics.
///
/// # Errors
/// If one of them cannot be run, or the two are of other shapes.
pub fn formats_agree(ours: Subject, theirs: Subject) -> Result<Finding> {
    const NAME: &str = "safetensors equals GGUF";
    let script = Script::greedy(&ours.tokens(), 0);
    compare_runs(NAME, [(ours, &script), (theirs, &script)], Exactness::Bound(BOUND))
}
