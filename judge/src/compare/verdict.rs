//! Makes verdicts from measured errors.

use std::fmt;
use std::ops::Range;

use crate::checkpoint::{Checkpoint, Point, Site, ValueKind};
use crate::compare::array_comparison::ArrayComparison;
use crate::compare::compared_dump::RecordedRows;
use crate::compare::excess::{self, Excess};
use crate::compare::role::Role;
use crate::compare::rounding_evaluation::RoundingEvaluation;
use crate::compare::tolerance::Tolerance;
use crate::compare::uniform_distribution::UniformErrors;
use crate::measure::{Errors, Measurement, PositionAgreement, larger};
use crate::weight::DType;

/// A verdict, ordered from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

    /// Returns the worst of several verdicts, inconclusive if there are none. Ties and waived failures count
    /// as passes.
    pub fn over(verdicts: impl IntoIterator<Item = Verdict>) -> Verdict {
        let worst = verdicts.into_iter().max().unwrap_or(Verdict::Inconclusive);
        if worst.is_good() { Verdict::Pass } else { worst }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The criterion of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Error bounds and noise floor. Needs a model.
    Rounding,
    /// The tolerance table. Needs no model.
    Tolerance,
}

impl Gate {
    /// Returns the criterion's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Gate::Rounding => "rounding",
            Gate::Tolerance => "tolerance",
        }
    }
}

/// The noise floor of a site: the largest change of its values in perturbed runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NoiseFloor {
    /// Largest change relative to the values, as in [`crate::measure::Errors::max_scaled`].
    pub max_scaled: f64,
    /// Relative L2 change, as in [`crate::measure::Errors::rel_l2`].
    pub rel_l2: f64,
    /// Largest absolute change, as in [`crate::measure::Errors::max_abs`].
    pub max_abs: f64,
}

impl NoiseFloor {
    /// Returns the larger of two noise floors, statistic by statistic.
    pub fn or(self, moved: &Errors) -> Self {
        Self {
            max_scaled: self.max_scaled.max(moved.max_scaled),
            rel_l2: self.rel_l2.max(moved.rel_l2),
            max_abs: self.max_abs.max(moved.max_abs),
        }
    }

    /// Returns true if rounding may have caused the error: neither its largest element nor the whole error is
    /// far above the noise floor.
    pub fn explains(&self, error: &Errors) -> bool {
        self.holds(error, Self::FAR)
    }

    /// Returns true if the error is as small as the noise floor predicts.
    pub fn is_near(&self, error: &Errors) -> bool {
        self.holds(error, Self::NEAR)
    }

    /// Returns true if even all zeros would be near, so that a small error shows nothing. A log-probability near zero
    /// belongs to a nearly certain token. Log-probabilities show nothing only if `NEAR` times their noise floor is a
    /// nat or more.
    pub fn is_blind_at(&self, point: Point) -> bool {
        let is_of_logarithms = matches!(point, Point::TokenLogprobs | Point::TopLogprobs);
        Self::NEAR * self.rel_l2 >= 1.0 && !(is_of_logarithms && Self::NEAR * self.max_abs < 1.0)
    }

    /// Judges a different choice by its margin. Returns the verdict, and the largest change of a logit
    /// difference that rounding or a deciding tolerance allows.
    pub fn parts(&self, margin: f64, tolerance: f64) -> (Verdict, f64) {
        let near = 2.0 * self.max_abs.max(tolerance);
        let far = 2.0 * (Self::FAR * self.max_abs).max(tolerance);
        let verdict = match margin {
            margin if (0.0..=near).contains(&margin) => Verdict::Tie,
            margin if (0.0..=far).contains(&margin) => Verdict::Inconclusive,
            _ => Verdict::Fail,
        };
        (verdict, near)
    }

    fn holds(&self, error: &Errors, times: f64) -> bool {
        error.max_scaled <= times * self.max_scaled && error.rel_l2 <= times * self.rel_l2
    }

    /// Largest expected ratio of one more run's change to the maximum of a few perturbed runs.
    pub const NEAR: f64 = excess::NEAR;

    /// Returns the ratio of the error to [`Self::NEAR`] times the noise floor. Up to 1, rounding explains the error.
    fn bound_ratio(&self, error: &Errors) -> f64 {
        let ratio = |error: f64, floor: f64| if error == 0.0 { 0.0 } else { error / (Self::NEAR * floor) };
        larger(ratio(error.max_scaled, self.max_scaled), ratio(error.rel_l2, self.rel_l2))
    }

    /// Ratio to the noise floor from which rounding cannot explain an error.
    pub const FAR: f64 = excess::FAR;
}

/// The compared values of one site, with their verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteResult {
    /// Tap, layer, and pass of the site.
    pub site: Site,
    /// The positions of the site. Empty for a value of the whole run.
    pub positions: Range<usize>,
    /// Accumulated error: the error of the run from the tokens on.
    pub accumulated: Option<Measurement>,
    /// Local error: the error since the nearest recorded values.
    pub local: Option<Measurement>,
    /// The sites from which the local error starts. Empty if it starts from the tokens.
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
    /// The criterion for the verdict.
    gate: Gate,
    /// Type to which the operations of the run round.
    computed: DType,
    is_one_stage: bool,
    /// The side that must follow its rounding profile, if requested.
    demanded_of: Option<Role>,
    /// Open question that the noise floor decides.
    doubt: Doubt,
}

/// The baseline's entry for a waived failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiver {
    /// The reason for the waiver.
    pub reason: String,
    /// Link to more information.
    pub link: String,
    /// The last day of the waiver, as 2026-12-31.
    pub expires: String,
}

/// The question about a row that the noise floor decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// No question: the verdict is final.
    None,
    /// The error is within the limit but large relative to the values.
    Large,
    /// The error exceeds the limit.
    Exceeds,
}

impl Doubt {
    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Doubt::None => "none",
            Doubt::Large => "large",
            Doubt::Exceeds => "exceeds",
        }
    }
}

/// The results of the runs at one site.
#[derive(Clone, Debug, Default)]
pub struct SiteObservation {
    /// The comparison in the run from the tokens on.
    pub accumulated: Option<ArrayComparison>,
    /// The comparison in the run that continues with recorded values.
    pub local: Option<ArrayComparison>,
    /// The sites from which the local comparison starts.
    pub since: Vec<Site>,
    /// Rounding evaluation of both sides, if evaluated.
    pub explained: Option<RoundingEvaluation>,
    /// The compared rows, if the dump does not record all rows.
    pub recorded: Option<RecordedRows>,
    /// The errors that a uniform distribution would have at this site.
    pub uniform: Option<UniformErrors>,
}

/// The criteria for judging a row.
#[derive(Clone, Debug)]
pub struct VerdictCriteria {
    /// The tolerance from the table.
    pub tolerance: Tolerance,
    /// The criterion of the verdict. A tolerance given by the user always decides.
    pub gate: Gate,
    /// Type to which the operations of the run round.
    pub computed: DType,
    /// True if a single operation separates the row from its inputs, so that error bounds are exact.
    pub is_one_stage: bool,
    /// The side that must follow its rounding profile, if requested. Applies over several operations, too.
    pub demanded_of: Option<Role>,
}

impl SiteResult {
    /// Judges a site by its local error, or by its accumulated error if no local error was measured.
    pub fn judge(
        site: Site,
        positions: Range<usize>,
        found: SiteObservation,
        measure: VerdictCriteria,
    ) -> Self {
        let SiteObservation { accumulated, local, since, explained, uniform, recorded } = found;
        let VerdictCriteria { tolerance, gate, computed, is_one_stage, demanded_of } = measure;
        let mut row = Self {
            site,
            positions,
            accumulated: None,
            local: None,
            since,
            explained,
            uniform,
            gate: if tolerance.is_asked { Gate::Tolerance } else { gate },
            tolerance,
            computed,
            is_one_stage,
            demanded_of,
            recorded,
            floor: None,
            accumulated_floor: None,
            excess: None,
            verdict: Verdict::Inconclusive,
            reason: None,
            known: None,
            doubt: Doubt::None,
        };
        let both = || [&local, &accumulated].into_iter().flatten();
        let any_measured = both().any(|found| matches!(found, ArrayComparison::Measured(_)));
        let incomparable = both().find_map(|found| match found {
            ArrayComparison::OtherLength(what) => Some(Judgement::sure(Verdict::Fail, what.clone())),
            // An unknown alignment in one run does not matter if another run compared the site.
            ArrayComparison::Unaligned(what) if !any_measured => {
                Some(Judgement::sure(Verdict::Inconclusive, what.clone()))
            }
            ArrayComparison::Unaligned(_) | ArrayComparison::Measured(_) => None,
        });
        let measured = |found| match found {
            Some(ArrayComparison::Measured(measurement)) => Some(measurement),
            _ => None,
        };
        (row.accumulated, row.local) = (measured(accumulated), measured(local));
        let told = incomparable.unwrap_or_else(|| row.unless_blind(row.judgement()));
        Self { verdict: told.verdict, reason: told.reason, doubt: told.doubt, ..row }
    }

    /// Returns the criteria by which the row was judged.
    pub fn measure(&self) -> VerdictCriteria {
        let &Self { gate, computed, is_one_stage, demanded_of, ref tolerance, .. } = self;
        VerdictCriteria { tolerance: tolerance.clone(), gate, computed, is_one_stage, demanded_of }
    }

    /// Returns the question that the noise floor decides or has decided.
    pub fn doubt(&self) -> Doubt {
        self.doubt
    }

    /// Sets the open question.
    pub fn in_doubt(self, doubt: Doubt) -> Self {
        Self { doubt, ..self }
    }

    /// Returns the measurement on which the verdict is based.
    pub fn judged(&self) -> Option<&Measurement> {
        if self.is_judged_by_accumulated() { self.accumulated.as_ref() } else { self.local.as_ref() }
    }

    /// Returns true if the accumulated error decides the verdict: if no local error was measured, or the
    /// accumulated error fails the row. It also decides token choices that agree given the dump's own logits.
    pub fn is_judged_by_accumulated(&self) -> bool {
        let is_choice = matches!(self.site.point, Point::Argmax | Point::Generated);
        let has_inherited = self.accumulated_floor.is_some() && self.verdict == Verdict::Fail;
        let is_right = |found: &Measurement| has_inherited || is_choice && found.is_identical();
        self.accumulated.is_some() && self.local.as_ref().is_none_or(is_right)
    }

    /// Returns the last compared position. `None` for a value of the whole run.
    pub fn last_position(&self) -> Option<usize> {
        let whole = self.positions.end.checked_sub(1).filter(|_| !self.positions.is_empty());
        self.recorded.map(|recorded| recorded.last_position).or(whole)
    }

    /// Returns the checkpoint of the row's tap.
    pub fn checkpoint(&self) -> Checkpoint {
        self.site.point.checkpoint()
    }

    /// Returns true if the row passes although its accumulated error is above the tolerance.
    pub fn has_grown(&self) -> bool {
        let over = |m: &Measurement| excess(m, &self.tolerance).is_some();
        self.verdict.is_good() && self.accumulated.as_ref().is_some_and(over)
    }

    /// Returns true if the verdict depends on the noise floor.
    pub fn is_in_doubt(&self) -> bool {
        self.doubt != Doubt::None
    }

    /// Judges an undetermined row by the noise floor at its site.
    pub fn weigh(&mut self, floor: NoiseFloor, excess: Option<Excess>) {
        let Some(errors) = self.judged().map(|found| found.errors) else { return };
        self.excess = excess;
        let is_within = |ratio: f64| excess.is_none_or(|excess| excess.ratio <= ratio);
        (self.verdict, self.reason) = match (self.gate, self.doubt) {
            (_, Doubt::None) => (self.verdict, self.reason.take()),
            (Gate::Rounding, _) if floor.is_near(&errors) && self.is_as_near_if_uniform(&floor) => {
                (Verdict::Inconclusive, Some(UniformErrors::BLIND.to_owned()))
            }
            (Gate::Rounding, _) if floor.is_near(&errors) && is_within(1.0) => {
                match floor.is_blind_at(self.site.point) {
                    false => match self.beyond_behind_a_norm() {
                        None => (Verdict::Pass, None),
                        Some(why) => (Verdict::Inconclusive, Some(why)),
                    },
                    true => (
                        Verdict::Inconclusive,
                        Some(format!(
                            "the noise floor is too high to judge: perturbed runs differ by {:.1e} of the \
                         values' norm here, so all zeros would pass too",
                            floor.rel_l2
                        )),
                    ),
                }
            }
            (Gate::Tolerance, Doubt::Large) if floor.explains(&errors) && is_within(Excess::FAR) => {
                (Verdict::Pass, None)
            }
            (..) => self.weighed(&floor, &errors),
        };
        self.floor = Some(floor);
    }

    /// Returns the failed evaluation of a product after an unrecorded norm. Formulas cover the known variants
    /// of norm and product. Perturbed runs would hide errors as small as an epsilon.
    fn beyond_behind_a_norm(&self) -> Option<String> {
        use Point::{
            AttnOut, AttnPostNorm, AttnResidual, BlockOut, Embed, FfnGate, FfnOut, FfnPostNorm, FfnUp, K,
            Logits, Q, RouterLogits, V,
        };
        const STREAM: &[Point] = &[Embed, AttnOut, AttnPostNorm, AttnResidual, FfnOut, FfnPostNorm, BlockOut];
        let is_product = matches!(self.site.point, Q | K | V | RouterLogits | FfnGate | FfnUp | Logits);
        let is_near = is_product && self.since.iter().all(|start| STREAM.contains(&start.point));
        let why = self.explained.as_ref().filter(|_| is_near)?.why()?;
        Some(format!("{why}; perturbed runs differ by as much; record the norm before this tap to decide"))
    }

    /// Judges top tokens that only one side lists. `margin` is the margin by which our engine prefers its
    /// own.
    pub fn rank(&mut self, margin: f64, floor: &NoiseFloor, tolerance: f64) {
        let Some(worst) = self.judged().and_then(|found| found.worst.clone()) else { return };
        let (verdict, near) = floor.parts(margin, tolerance);
        let what = format!(
            "top tokens differ: the candidate lists {}, the reference {}; tokens listed on one side only \
             lead by at most {margin:.1e}, and rounding can change that by up to {near:.1e}",
            worst.candidate, worst.reference
        );
        (self.verdict, self.reason) = (verdict, Some(what));
    }

    /// Returns the position from which errors of log-probabilities stay above the limit. `None` for a row
    /// that passes.
    pub fn drift(&self) -> Option<usize> {
        let agreement = self.judged()?.agreement.as_ref().filter(|_| !self.verdict.is_good())?;
        let allowed = match self.floor {
            Some(floor) => NoiseFloor::NEAR * floor.max_abs,
            None => self.tolerance.max_abs,
        };
        let is_over = |place: &PositionAgreement| place.is_over.unwrap_or(!(place.delta <= allowed));
        agreement.drift(is_over).map(|row| self.positions.start + row)
    }

    fn weighed(&mut self, floor: &NoiseFloor, errors: &Errors) -> (Verdict, Option<String>) {
        let told = format!(
            "the largest relative error is {:.1e} (relative L2 error {:.1e}), the noise floor {:.1e} ({:.1e})",
            errors.max_scaled, errors.rel_l2, floor.max_scaled, floor.rel_l2
        );
        let excess = self.excess.filter(|excess| !(excess.ratio <= 1.0));
        let told = excess.map_or(told.clone(), |excess| format!("{told}; {}", excess.told()));
        let before = self.reason.take();
        let is_far = excess.is_some_and(|excess| !(excess.ratio <= Excess::FAR));
        let verdict = if floor.explains(errors) && !is_far { Verdict::Inconclusive } else { Verdict::Fail };
        let may = if verdict == Verdict::Fail { "" } else { ", which rounding may explain" };
        (verdict, Some(before.map_or(told.clone(), |before| format!("{before}{may}: {told}"))))
    }

    /// Judges the accumulated error of a passing row. Rounding errors grow, but so does a fault that is too
    /// small to fail a single operation.
    pub fn weigh_total(&mut self, floor: NoiseFloor, excess: Option<Excess>, may_hide_rounding: bool) {
        let Some(errors) = self.accumulated.as_ref().map(|found| found.errors) else { return };
        let excess = excess.filter(|excess| !(excess.ratio <= Excess::FAR));
        if !floor.explains(&errors) || excess.is_some() {
            let beyond = excess.map_or(String::new(), |excess| format!("; {}", excess.told()));
            let told = format!(
                "every local error up to here is within its limit, but the accumulated error is {:.1e} of \
                 the value's size (relative L2 error {:.1e}), above the noise floor of {:.1e} \
                 ({:.1e}){beyond}: a small systematic fault is likely",
                errors.max_scaled, errors.rel_l2, floor.max_scaled, floor.rel_l2
            );
            let hidden = if may_hide_rounding {
                "; the dump stores taps in fewer bits than the engine is stated to compute in, which hides \
                 how operations round: store all bits, or set \"computed\" for these taps"
            } else {
                ""
            };
            (self.verdict, self.reason) = (Verdict::Fail, Some(told + hidden));
        }
        self.accumulated_floor = Some(floor);
    }

    fn judgement(&self) -> Judgement {
        let Some(found) = self.local.as_ref().or(self.accumulated.as_ref()) else {
            return Judgement::sure(Verdict::Inconclusive, "not compared".to_owned());
        };
        // A row with NaN on only one side fails, even if the error is inherited.
        let travelled =
            self.accumulated.as_ref().filter(|accumulated| accumulated.nonfinite.of_one_side() > 0);
        if let Some(accumulated) = travelled.filter(|_| found.nonfinite == Default::default()) {
            return Judgement::sure(Verdict::Fail, nonfinite(accumulated));
        }
        incomparable(self.site, found).unwrap_or_else(|| match (self.gate, self.site.point.kind()) {
            (Gate::Rounding, ValueKind::Real) => self.by_rounding(found),
            _ => by_tolerance(self.site, found, &self.tolerance, self.computed),
        })
    }

    /// Makes passing probabilities inconclusive if a uniform distribution would pass, too. Without an
    /// evaluation, the noise floor decides. Probabilities computed from recorded logits by one operation are
    /// exempt.
    fn unless_blind(&self, told: Judgement) -> Judgement {
        let is_good = told.verdict == Verdict::Pass && !self.is_one_stage();
        let Some(uniform) = self.uniform.as_ref().filter(|_| is_good) else { return told };
        let Errors { max_abs, max_scaled, .. } = uniform.errors;
        let is_blind = match self.gate {
            // A tolerance given by the user decides alone.
            Gate::Tolerance => !self.tolerance.is_asked && max_abs <= self.tolerance.max_abs,
            Gate::Rounding => self.explained.is_some() && uniform.is_explained,
        };
        match is_blind {
            true => Judgement::sure(Verdict::Inconclusive, UniformErrors::BLIND.to_owned()),
            false if self.explained.is_none() && max_scaled <= suspicious(self.computed) => {
                Judgement { doubt: Doubt::Large, ..told }
            }
            false => told,
        }
    }

    /// Returns true if a uniform distribution would be within the noise floor.
    fn is_as_near_if_uniform(&self, floor: &NoiseFloor) -> bool {
        let uniform = self.uniform.as_ref().filter(|_| !self.is_one_stage());
        uniform.is_some_and(|uniform| floor.is_near(&uniform.errors))
    }

    /// Judges a row by exact evaluation if available. Rows without an evaluation, and unexplained errors over
    /// several operations, stay undetermined until the noise floor is measured.
    fn by_rounding(&self, found: &Measurement) -> Judgement {
        let pass = Judgement { verdict: Verdict::Pass, reason: None, doubt: Doubt::None };
        match self.explained.as_ref().map(|explained| explained.why()) {
            _ if found.is_identical() => pass,
            Some(None) => pass,
            Some(Some(why)) if self.is_one_stage || self.breaks_a_demand() => {
                Judgement::sure(Verdict::Fail, why)
            }
            Some(Some(why)) => Judgement { verdict: Verdict::Fail, reason: Some(why), doubt: Doubt::Exceeds },
            None => Judgement { verdict: Verdict::Fail, reason: None, doubt: Doubt::Exceeds },
        }
    }

    /// Returns true if the side held to `--rounding` violates it.
    fn breaks_a_demand(&self) -> bool {
        let side = self.demanded_of.zip(self.explained.as_ref());
        side.is_some_and(|(role, explained)| !explained.side(role).is_explained())
    }

    /// Returns true if the accumulated error is large relative to the values.
    pub fn is_large_in_total(&self) -> bool {
        let large = |accumulated: &Measurement| !(accumulated.errors.max_scaled <= suspicious(self.computed));
        self.verdict.is_good() && self.accumulated.as_ref().is_some_and(large)
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

    /// Returns true if rounding explains the row, evaluated from the inputs of its single operation. The
    /// accumulated error then shows nothing more.
    pub fn is_settled(&self) -> bool {
        let is_explained = || self.explained.as_ref().is_some_and(RoundingEvaluation::is_explained);
        self.site.point.kind() == ValueKind::Token
            || (self.is_one_stage && self.local.is_some() && is_explained())
    }

    /// Returns true if a single operation separates the row from its inputs.
    pub fn is_one_stage(&self) -> bool {
        self.is_one_stage && self.local.is_some()
    }

    /// Returns true if the tolerance table decides the verdict.
    pub fn is_gated_by_tolerance(&self) -> bool {
        self.gate == Gate::Tolerance
    }
}

struct Judgement {
    verdict: Verdict,
    reason: Option<String>,
    doubt: Doubt,
}

impl Judgement {
    fn sure(verdict: Verdict, reason: String) -> Self {
        Self { verdict, reason: Some(reason), doubt: Doubt::None }
    }
}

/// Returns the verdict if the values cannot be compared: no elements, NaN or infinity, or only zeros.
fn incomparable(site: Site, found: &Measurement) -> Option<Judgement> {
    if found.elements == 0 {
        return Some(Judgement::sure(Verdict::Inconclusive, "no element was compared".into()));
    }
    if found.nonfinite.of_one_side() > 0 {
        return Some(Judgement::sure(Verdict::Fail, nonfinite(found)));
    }
    if found.nonfinite.shared > 0 {
        let what = format!("both sides have the same NaN or infinite values: {}", found.nonfinite.shared);
        return Some(Judgement::sure(Verdict::Inconclusive, what));
    }
    let sure = |verdict, what: &str| Some(Judgement::sure(verdict, what.to_owned()));
    // The log-probability of a certain token is zero, so all zeros are valid.
    let is_logarithm = matches!(site.point, Point::TokenLogprobs | Point::TopLogprobs);
    match (site.point.kind(), found.candidate_all_zero, found.reference_all_zero) {
        _ if is_logarithm => None,
        (ValueKind::Real, true, true) => sure(Verdict::Inconclusive, "every value is zero on both sides"),
        (ValueKind::Real, true, false) => sure(Verdict::Fail, "every value of the candidate is zero"),
        (ValueKind::Real, false, true) => sure(Verdict::Fail, "every value of the reference is zero"),
        _ => None,
    }
}

/// Judges by the tolerance table. Every check is written so that NaN fails it.
fn by_tolerance(site: Site, found: &Measurement, tolerance: &Tolerance, computed: DType) -> Judgement {
    let large = !(found.errors.max_scaled <= suspicious(computed)) && site.point.kind() == ValueKind::Real;
    match excess(found, tolerance) {
        Some(reason) if tolerance.is_asked || site.point.kind() == ValueKind::Token => {
            Judgement::sure(Verdict::Fail, reason)
        }
        Some(reason) => Judgement { verdict: Verdict::Fail, reason: Some(reason), doubt: Doubt::Exceeds },
        None if large && !tolerance.is_asked => {
            Judgement { verdict: Verdict::Pass, reason: None, doubt: Doubt::Large }
        }
        None => Judgement { verdict: Verdict::Pass, reason: None, doubt: Doubt::None },
    }
}

fn nonfinite(found: &Measurement) -> String {
    let one = |side, count| (count > 0).then(|| format!("the {side} has NaN or infinite values: {count}"));
    let sides = [one("candidate", found.nonfinite.candidate), one("reference", found.nonfinite.reference)];
    sides.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Returns the relative error from which the noise floor is measured. It decides no verdict. The error of a
/// single operation stays far below it.
fn suspicious(computed: DType) -> f64 {
    match computed {
        DType::BF16 => 2f64.powi(-6),
        DType::F16 => 2f64.powi(-9),
        _ => 2f64.powi(-13),
    }
}

/// Returns a message about the statistic that exceeds the tolerance, if any. Unless the user gave the
/// tolerance, a value may round to its neighbour.
fn excess(found: &Measurement, tolerance: &Tolerance) -> Option<String> {
    let Errors { max_abs, past_neighbour, mean_abs, cosine, .. } = found.errors;
    let largest = if tolerance.is_asked { max_abs } else { past_neighbour };
    if !(largest <= tolerance.max_abs) {
        return Some(format!("max |error| {largest:.2e} exceeds {:e}", tolerance.max_abs));
    }
    let is_large = |bound: &f64| !(mean_abs <= *bound);
    if let Some(bound) = tolerance.mean_abs.filter(is_large) {
        return Some(format!("mean |error| {mean_abs:.2e} exceeds {bound:e}"));
    }
    let bound = tolerance.min_cosine?;
    (!(cosine >= bound)).then(|| format!("cosine {cosine:.6} is below {bound}"))
}
