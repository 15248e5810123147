//! The rule by which a dump passes or fails, in the order of `docs/explanation/verdicts.md`.
//!
//! 1. Each site is judged separately ([`SiteResult::judge`]).
//! 2. The exact value, 3. the error bound and 4. the bound ratio come from the check of the site.
//! 5. A value above its error bound, or 6. a bias fails a single operation (`by_rounding`).
//! 7. Over several operations, the noise floor decides ([`SiteResult::weigh`]).
//! 8. A different choice is a tie if rounding explains the gap between the logits ([`NoiseFloor::parts`]).
//! 9. Values that are missing or do not decide make the verdict inconclusive (`incomparable`, `unless_blind`).
//! 10. The verdict of a dump is its worst one ([`Verdict::over`], `of_dump`).
//!
//! Steps that need other sites or runs have files of their own in this folder: `noise_floor_verdict` (7), `ties` and
//! `expert_choices` (8), `half_precision` (two 16-bit dumps without a model), `conclusion` (10, for several units).
//!
//! With `--gate tolerance`, the table of tolerances decides instead of 2 to 7 (`by_tolerance`).

use crate::check::{ArrayComparison, Gate, Tolerance, UniformErrors};
use crate::checkpoint::{Point, Site, ValueKind};
use crate::measure::{Errors, Measurement};
use crate::noise::{Excess, NoiseFloor};
use crate::verdict::site_result::{Doubt, SiteResult, Verdict};
use crate::weight::DType;

// 1. Each site is judged separately.

impl SiteResult {
    /// Judges a site by its local error, or by its accumulated error if no local error was measured.
    pub fn judge(mut self, accumulated: Option<ArrayComparison>, local: Option<ArrayComparison>) -> Self {
        if self.tolerance.is_asked {
            self.gate = Gate::Tolerance;
        }
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
        (self.accumulated, self.local) = (measured(accumulated), measured(local));
        let told = incomparable.unwrap_or_else(|| self.unless_blind(self.judgement()));
        Self { verdict: told.verdict, reason: told.reason, doubt: told.doubt, ..self }
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

// 2. to 6. A single operation: no value above its error bound, and no bias.

impl SiteResult {
    /// Judges a row by exact evaluation if available. Rows without an evaluation, and unexplained errors over
    /// several operations, stay undetermined until the noise floor is measured.
    fn by_rounding(&self, found: &Measurement) -> Judgement {
        let pass = Judgement { verdict: Verdict::Pass, reason: None, doubt: Doubt::None };
        match self.explained.as_ref().map(|explained| explained.why()) {
            _ if found.is_identical() => pass,
            Some(None) => pass,
            Some(Some(why)) if self.is_single_operation || self.breaks_a_demand() => {
                Judgement::sure(Verdict::Fail, why)
            }
            Some(Some(why)) if self.explained.as_ref().is_some_and(|explained| explained.is_impossible) => {
                Judgement::sure(Verdict::Fail, format!("{why}; no input of the operation gives these values"))
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
}

// 7. Several operations: the noise floor.

impl SiteResult {
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

    /// Returns the failed evaluation of a product after an unrecorded norm. The error bounds cover the known variants
    /// of norm and product. The noise floor of perturbed runs would hide errors as small as that of a wrong epsilon.
    fn beyond_behind_a_norm(&self) -> Option<String> {
        use Point::{
            AttnGate, AttnOut, AttnPostNorm, AttnResidual, BetaLogit, BlockOut, DecayLogit, Embed, FfnGate,
            FfnOut, FfnPostNorm, FfnUp, K, KvLatent, Logits, MixerGate, MixerIn, MixerOut, Q, QLatent,
            RouterLogits, SharedGate, SharedUp, V,
        };
        const STREAM: &[Point] =
            &[Embed, MixerOut, AttnOut, AttnPostNorm, AttnResidual, FfnOut, FfnPostNorm, BlockOut];
        let is_product = matches!(
            self.site.point,
            Q | K
                | V
                | QLatent
                | KvLatent
                | MixerIn
                | MixerGate
                | BetaLogit
                | DecayLogit
                | AttnGate
                | RouterLogits
                | SharedGate
                | SharedUp
                | FfnGate
                | FfnUp
                | Logits
        );
        let is_near = is_product && self.since.iter().all(|start| STREAM.contains(&start.point));
        let why = self.explained.as_ref().filter(|_| is_near)?.why()?;
        Some(format!("{why}; perturbed runs differ by as much; record the norm before this tap to decide"))
    }

    /// Judges the accumulated error of a passing row. Rounding errors grow, but so does a fault that is too
    /// small to fail a single operation.
    pub(crate) fn weigh_total(&mut self, floor: NoiseFloor, excess: Option<Excess>, may_hide_rounding: bool) {
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

    /// Returns true if the accumulated error is large relative to the values.
    pub(crate) fn is_large_in_total(&self) -> bool {
        let large = |accumulated: &Measurement| !(accumulated.errors.max_scaled <= suspicious(self.computed));
        self.verdict.is_good() && self.accumulated.as_ref().is_some_and(large)
    }
}

/// Returns the relative error from which the noise floor is measured. It is far above the error of a single
/// operation, and decides no verdict.
fn suspicious(computed: DType) -> f64 {
    match computed {
        DType::BF16 => 2f64.powi(-6),
        DType::F16 => 2f64.powi(-9),
        _ => 2f64.powi(-13),
    }
}

// 8. Ties: rounding explains the gap between two logits.

impl NoiseFloor {
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
}

impl SiteResult {
    /// Judges top tokens that only one side lists. `margin` is the margin by which our engine prefers its
    /// own.
    pub(crate) fn rank(&mut self, margin: f64, floor: &NoiseFloor, tolerance: f64) {
        let Some(worst) = self.judged().and_then(|found| found.worst.clone()) else { return };
        let (verdict, near) = floor.parts(margin, tolerance);
        let what = format!(
            "top tokens differ: the candidate lists {}, the reference {}; tokens listed on one side only \
             lead by at most {margin:.1e}, and rounding can change that by up to {near:.1e}",
            worst.candidate, worst.reference
        );
        (self.verdict, self.reason) = (verdict, Some(what));
    }
}

// 9. Values that do not decide.

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

fn nonfinite(found: &Measurement) -> String {
    let one = |side, count| (count > 0).then(|| format!("the {side} has NaN or infinite values: {count}"));
    let sides = [one("candidate", found.nonfinite.candidate), one("reference", found.nonfinite.reference)];
    sides.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

impl SiteResult {
    /// Makes passing probabilities inconclusive if a uniform distribution would pass, too. Without an
    /// evaluation, the noise floor decides. Probabilities computed from recorded logits by one operation are
    /// exempt.
    fn unless_blind(&self, told: Judgement) -> Judgement {
        let is_good = told.verdict == Verdict::Pass && !self.is_single_operation();
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
        let uniform = self.uniform.as_ref().filter(|_| !self.is_single_operation());
        uniform.is_some_and(|uniform| floor.is_near(&uniform.errors))
    }
}

// 10. The verdict of a dump.

impl Verdict {
    /// Returns the worst of several verdicts, inconclusive if there are none. Ties and waived failures count
    /// as passes.
    pub fn over(verdicts: impl IntoIterator<Item = Verdict>) -> Verdict {
        let worst = verdicts.into_iter().max().unwrap_or(Verdict::Inconclusive);
        if worst.is_good() { Verdict::Pass } else { worst }
    }
}

/// Makes the verdict of a dump. Any failing row fails. A pass needs every expected value: `skipped` lists what
/// is missing. It also needs more than inputs that both sides were given.
pub(super) fn of_dump(rows: &[SiteResult], skipped: &[String], is_input_alone: bool) -> Verdict {
    match Verdict::over(rows.iter().map(|row| row.verdict)) {
        Verdict::Pass if !skipped.is_empty() || is_input_alone => Verdict::Inconclusive,
        verdict => verdict,
    }
}

/// Panics if a pass lacks an expected value: a row that does not pass, a missing site or unit, or a reason in
/// `skipped`.
pub(super) fn assert_complete(
    verdict: Verdict,
    rows: &[SiteResult],
    skipped: &[String],
    has_all_sites: bool,
    has_all_units: bool,
) {
    if verdict == Verdict::Pass {
        assert!(skipped.is_empty(), "a pass with something left out: {skipped:?}");
        assert!(has_all_sites, "a pass with a gap");
        assert!(has_all_units, "a pass without a unit");
        assert!(rows.iter().all(|row| row.verdict.is_good()), "a pass with a row that does not pass");
    }
}

// The table of tolerances.

/// Judges by the tolerance table. Comparisons are written so that NaN fails them.
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

impl SiteResult {
    /// Returns true if the row passes although its accumulated error is above the tolerance.
    pub fn has_grown(&self) -> bool {
        let over = |m: &Measurement| excess(m, &self.tolerance).is_some();
        self.verdict.is_good() && self.accumulated.as_ref().is_some_and(over)
    }
}
