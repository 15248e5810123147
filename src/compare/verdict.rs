//! What a measurement means: pass, fail, or not to be judged.

use std::fmt;

use crate::checkpoint::{Checkpoint, Kind, Site};
use crate::compare::metrics::Measurement;
use crate::compare::tolerance::Tolerance;

/// A judgement, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Compared, and within its tolerance.
    Pass,
    /// Another token, but the two best logits are closer than the error measured there.
    Tie,
    /// Could not be judged.
    Inconclusive,
    /// Compared, and outside its tolerance.
    Fail,
}

impl Verdict {
    /// The word used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Tie => "tie",
            Verdict::Inconclusive => "inconclusive",
            Verdict::Fail => "fail",
        }
    }

    /// Whether nothing is wrong.
    pub fn is_good(self) -> bool {
        self <= Verdict::Tie
    }

    /// The verdict over several: the worst; where there is none, nothing was judged. A tie is no divergence,
    /// so that of passes and ties is a pass.
    pub fn over(verdicts: impl IntoIterator<Item = Verdict>) -> Verdict {
        let worst = verdicts.into_iter().max().unwrap_or(Verdict::Inconclusive);
        if worst == Verdict::Tie { Verdict::Pass } else { worst }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One tapped value, compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Which value, layer and pass.
    pub site: Site,
    /// Error inherited and introduced together: of the ordinary run, or of one whose layers each started from the
    /// reference's own input, so that nothing is inherited from another layer.
    pub ordinary: Option<Measurement>,
    /// Error introduced by this stage alone, of the run that started it from the reference's own inputs.
    pub introduced: Option<Measurement>,
    /// What was allowed.
    pub tolerance: Tolerance,
    /// The judgement.
    pub verdict: Verdict,
    /// Why, where it is not a pass.
    pub reason: Option<String>,
}

impl Row {
    /// Judges a comparison: by the introduced error where it was measured, else by the ordinary one.
    pub fn judge(
        site: Site,
        ordinary: Option<Measurement>,
        introduced: Option<Measurement>,
        tolerance: Tolerance,
    ) -> Self {
        let judged = introduced.as_ref().or(ordinary.as_ref());
        let (verdict, reason) = match (judged, &ordinary) {
            (None, _) => (Verdict::Inconclusive, Some("not compared".to_owned())),
            // Inherited or not: nothing that an ordinary run makes NaN of passes.
            (Some(_), Some(ordinary)) if ordinary.nonfinite_ours > 0 && ordinary.nonfinite_theirs == 0 => {
                (Verdict::Fail, Some(format!("{} NaN or infinite in ours", ordinary.nonfinite_ours)))
            }
            (Some(measurement), _) => verdict(site, measurement, &tolerance),
        };
        Self { site, ordinary, introduced, tolerance, verdict, reason }
    }

    /// The measurement the verdict rests on.
    pub fn judged(&self) -> Option<&Measurement> {
        self.introduced.as_ref().or(self.ordinary.as_ref())
    }

    /// The checkpoint of this row.
    pub fn checkpoint(&self) -> Checkpoint {
        self.site.point.checkpoint()
    }

    /// Whether rounding that came from earlier stages is past the tolerance here, while the stage itself is
    /// within it.
    pub fn has_grown(&self) -> bool {
        let over = |m: &Measurement| excess(m, &self.tolerance).is_some();
        self.verdict.is_good() && self.ordinary.as_ref().is_some_and(over)
    }
}

/// Counts first, then finiteness, then values; every check is written so that NaN fails it.
fn verdict(site: Site, found: &Measurement, tolerance: &Tolerance) -> (Verdict, Option<String>) {
    let because = |verdict, reason: String| (verdict, Some(reason));
    if found.elements == 0 {
        return because(Verdict::Inconclusive, "no element was compared".into());
    }
    if found.nonfinite_theirs > 0 {
        let reason = format!("{} NaN or infinite in the reference", found.nonfinite_theirs);
        return because(Verdict::Inconclusive, reason);
    }
    if found.nonfinite_ours > 0 {
        return because(Verdict::Fail, format!("{} NaN or infinite in ours", found.nonfinite_ours));
    }
    if found.theirs_all_zero && site.point.kind() == Kind::Real {
        return because(Verdict::Inconclusive, "every value of the reference is zero".into());
    }
    match excess(found, tolerance) {
        Some(reason) => because(Verdict::Fail, reason),
        None => (Verdict::Pass, None),
    }
}

/// What exceeds the tolerance, if anything does.
fn excess(found: &Measurement, tolerance: &Tolerance) -> Option<String> {
    let (max_abs, mean_abs) = (found.errors.max_abs, found.errors.mean_abs);
    if !(max_abs <= tolerance.max_abs) {
        return Some(format!("max |error| {max_abs:.2e} exceeds {:e}", tolerance.max_abs));
    }
    let bound = tolerance.mean_abs?;
    (!(mean_abs <= bound)).then(|| format!("mean |error| {mean_abs:.2e} exceeds {bound:e}"))
}
