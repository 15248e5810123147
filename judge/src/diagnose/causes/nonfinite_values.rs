//! NaN and infinity: the first site that has them, their number, and whether the values exceed f16's range.

use crate::change::CauseKind;
use crate::check::{Role, RunContext, UnexplainedOperation};
use crate::measure::unravel;
use crate::verdict::{Finding, SiteResult, Verdict};

/// The largest finite `f16` number.
const LARGEST: f64 = 65504.0;

/// Describes the first row that fails with NaN or infinity. Skips rows in which our engine's result has NaN or
/// infinity too, because they inherit it from their inputs.
pub(super) fn of_rows(
    context: &RunContext,
    rows: &[SiteResult],
    unexplained: &[UnexplainedOperation],
) -> Option<Finding> {
    let of_dump = |row: &SiteResult| {
        let nonfinite = row.judged()?.nonfinite;
        let count = match context.role {
            Role::Candidate => nonfinite.candidate,
            Role::Reference => nonfinite.reference,
        };
        (count > nonfinite.shared).then_some(count)
    };
    let mut failing = rows.iter().filter(|row| row.verdict == Verdict::Fail);
    let (row, count) = failing.find_map(|row| Some((row, of_dump(row)?)))?;
    let dump = context.role.name();
    let stage = unexplained.iter().find(|one| one.site == row.site).filter(|_| row.is_single_operation());
    let told = stage.map(|stage| of_stage(stage, dump));
    let what = match told {
        Some(told) => format!("{}: {count} values of the {dump} are NaN or infinite; {told}", row.site),
        None => format!("{}: {count} values of the {dump} are NaN or infinite, here first", row.site),
    };
    Some(Finding::new(CauseKind::NonFinite, row.site, what))
}

/// Describes NaN and infinity in an operation that was computed from the dump's own inputs.
fn of_stage(stage: &UnexplainedOperation, dump: &str) -> String {
    let theirs = stage.meaningful_or(0.0);
    let ours = stage.traced.data();
    let wrong: Vec<usize> =
        (0..theirs.len()).filter(|&flat| !theirs[flat].is_finite() && ours[flat].is_finite()).collect();
    let Some(&first) = wrong.first() else {
        return "our engine's are too, computed from the same inputs".to_owned();
    };
    let index = unravel(first, stage.traced.shape());
    let told = format!(
        "the first is {} at {index:?}, expected {:e} from the {dump}'s own finite inputs",
        theirs[first], ours[first]
    );
    let overflows = |&flat: &usize| f64::from(ours[flat]).abs() > LARGEST;
    if wrong.iter().all(overflows) {
        return format!("{told}; every expected value exceeds {LARGEST}, the largest f16 number");
    }
    // In-range values can be NaN if an intermediate value exceeded the range of f16.
    match ours.iter().any(|ours| f64::from(*ours).abs() > LARGEST) {
        true => format!("{told}; other expected values exceed {LARGEST}, the largest f16 number"),
        false => told,
    }
}
