//! The result at one site: the measured errors with their verdict.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::align::RecordedRows;
use crate::check::{Gate, Role, RoundingEvaluation, Tolerance, UniformErrors};
use crate::checkpoint::{Checkpoint, Point, Site, ValueKind};
use crate::measure::{Measurement, PositionAgreement, larger};
use crate::noise::{Excess, NoiseFloor};
use crate::weight::DType;

/// A verdict, ordered from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Compared, and correct.
    Pass,
    /// Different tokens, but rounding can explain the difference between their logits.
    Tie,
    /// A failure that the baseline waives with a reason.
    Known,
    /// Undetermined: the data does not decide.
    Inconclusive,
    /// Compared, and wrong.
    Fail,
}

impl Verdict {
    /// The word used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Tie => "tie",
            Verdict::Known => "known",
            Verdict::Inconclusive => "inconclusive",
            Verdict::Fail => "fail",
        }
    }

    /// Returns true for a pass, a tie, and a waived failure.
    pub fn is_good(self) -> bool {
        self <= Verdict::Known
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The compared values of one site, with their verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteResult {
    /// Tap, layer, and pass of the site.
    pub site: Site,
    /// The positions of the site. Empty for a value of the whole run.
    pub positions: Range<usize>,
    /// Accumulated error: the error of a run that starts from the token ids.
    pub accumulated: Option<Measurement>,
    /// Local error: the error since the nearest recorded values.
    pub local: Option<Measurement>,
    /// The sites whose recorded values are the inputs of the local computation. Empty if its inputs are the tokens.
    pub since: Vec<Site>,
    /// Rounding evaluation of both sides, if evaluated.
    pub explained: Option<RoundingEvaluation>,
    /// The errors that a uniform distribution would have at this site.
    pub uniform: Option<UniformErrors>,
    /// The tolerance from the table.
    pub tolerance: Tolerance,
    /// The compared rows, if the dump does not record all rows.
    pub recorded: Option<RecordedRows>,
    /// Noise floor at this site, if measured.
    pub floor: Option<NoiseFloor>,
    /// Noise floor of the accumulated error, if that was judged too.
    pub accumulated_floor: Option<NoiseFloor>,
    /// The statistic that exceeds perturbed runs the most, if measured.
    pub excess: Option<Excess>,
    /// The judgement.
    pub verdict: Verdict,
    /// The reason, if the verdict is not a pass.
    pub reason: Option<String>,
    /// The entry of the baseline, if it waives the failure.
    pub known: Option<Waiver>,
    /// The criterion of the verdict. A tolerance given by the user always decides.
    pub gate: Gate,
    /// Type to which the operations of the run round.
    pub computed: DType,
    /// True if a single operation separates the row from its inputs, so that error bounds are exact.
    pub is_single_operation: bool,
    /// The side that must follow its rounding profile, if requested. Applies over several operations, too.
    pub demanded_of: Option<Role>,
    /// Open question that the noise floor decides.
    pub doubt: Doubt,
}

/// The baseline's entry for a waived failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiver {
    /// The reason for the waiver.
    pub reason: String,
    /// Link to more information.
    pub link: String,
    /// The last day of the waiver, as 2026-12-31.
    pub expires: String,
}

/// The question about a row that the noise floor decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    /// No question: the verdict is final.
    None,
    /// The error is within the limit but large relative to the values.
    Large,
    /// The error exceeds the limit.
    Exceeds,
}

impl SiteResult {
    /// Makes the result of a site that was not compared. The criteria are those of several operations in `f32`, judged by
    /// rounding.
    pub fn new(site: Site, positions: Range<usize>, tolerance: Tolerance) -> Self {
        Self {
            site,
            positions,
            accumulated: None,
            local: None,
            since: Vec::new(),
            explained: None,
            uniform: None,
            tolerance,
            recorded: None,
            floor: None,
            accumulated_floor: None,
            excess: None,
            verdict: Verdict::Inconclusive,
            reason: Some("not compared".to_owned()),
            known: None,
            gate: Gate::Rounding,
            computed: DType::F32,
            is_single_operation: false,
            demanded_of: None,
            doubt: Doubt::None,
        }
    }

    /// Makes the verdict inconclusive.
    pub(crate) fn undetermined(self, why: &str) -> Self {
        Self { verdict: Verdict::Inconclusive, reason: Some(why.to_owned()), ..self }
    }

    /// Returns true if the verdict depends on the noise floor.
    pub fn is_in_doubt(&self) -> bool {
        self.doubt != Doubt::None
    }

    /// Returns the measurement on which the verdict is based.
    pub fn judged(&self) -> Option<&Measurement> {
        if self.is_judged_by_accumulated() { self.accumulated.as_ref() } else { self.local.as_ref() }
    }

    /// Returns true if the accumulated error decides the verdict: because no local error was measured, or because the
    /// accumulated error fails the row. It also decides token choices that agree when computed from the dump's own
    /// logits.
    pub(crate) fn is_judged_by_accumulated(&self) -> bool {
        let is_choice = matches!(self.site.point, Point::Argmax | Point::Generated);
        let has_inherited = self.accumulated_floor.is_some() && self.verdict == Verdict::Fail;
        let is_right = |found: &Measurement| has_inherited || is_choice && found.is_identical();
        self.accumulated.is_some() && self.local.as_ref().is_none_or(is_right)
    }

    /// Returns the last compared position. `None` for a value of the whole run.
    pub(crate) fn last_position(&self) -> Option<usize> {
        let whole = self.positions.end.checked_sub(1).filter(|_| !self.positions.is_empty());
        self.recorded.map(|recorded| recorded.last_position).or(whole)
    }

    /// Returns the checkpoint of the row's tap.
    pub fn checkpoint(&self) -> Checkpoint {
        self.site.point.checkpoint()
    }

    /// Returns true if a single operation separates the row from its inputs.
    pub(crate) fn is_single_operation(&self) -> bool {
        self.is_single_operation && self.local.is_some()
    }

    /// Returns true if the tolerance table decides the verdict.
    pub(crate) fn is_gated_by_tolerance(&self) -> bool {
        self.gate == Gate::Tolerance
    }

    /// Returns true if the row's only operation was evaluated from its inputs and rounding explains the result. The
    /// accumulated error then shows nothing more.
    pub(crate) fn is_settled(&self) -> bool {
        let is_explained = || self.explained.as_ref().is_some_and(RoundingEvaluation::is_explained);
        self.site.point.kind() == ValueKind::Token
            || (self.is_single_operation && self.local.is_some() && is_explained())
    }

    /// Returns the largest ratio of an error to its error bound, or to the noise floor without an evaluation.
    /// Below 1, rounding explains the row. `None` if neither was measured.
    pub fn bound_ratio(&self) -> Option<f64> {
        let found = self.judged().filter(|_| self.site.point.kind() == ValueKind::Real)?;
        match (&self.explained, &self.floor) {
            _ if self.gate == Gate::Tolerance => None,
            _ if found.is_identical() => Some(0.0),
            _ if self.is_judged_by_accumulated() && self.local.is_some() => {
                self.accumulated_floor.map(|floor| floor.bound_ratio(&found.errors))
            }
            (Some(explained), _) if self.local.is_some() && !self.is_in_doubt() => {
                Some(explained.bound_ratio())
            }
            (_, Some(floor)) => {
                let ratio = self.excess.map_or(0.0, |excess| excess.ratio);
                Some(larger(floor.bound_ratio(&found.errors), ratio))
            }
            (Some(explained), None) if self.local.is_some() => Some(explained.bound_ratio()),
            _ => None,
        }
    }

    /// Returns the position from which errors of log-probabilities stay above the limit. `None` for a row
    /// that passes.
    pub(crate) fn drift(&self) -> Option<usize> {
        let agreement = self.judged()?.agreement.as_ref().filter(|_| !self.verdict.is_good())?;
        let allowed = match self.floor {
            Some(floor) => NoiseFloor::NEAR * floor.max_abs,
            None => self.tolerance.max_abs,
        };
        let is_over = |place: &PositionAgreement| place.is_over.unwrap_or(!(place.delta <= allowed));
        agreement.drift(is_over).map(|row| self.positions.start + row)
    }
}
