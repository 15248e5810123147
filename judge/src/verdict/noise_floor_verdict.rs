//! Verdicts that depend on the noise floor: measures the noise floor and decides them.

use crate::noise::{
    ExtraRoundings, NoiseFloor, NoiseMeasurement, RowNoise, RunNoiseFloors, UnstatedRoundings,
    extra_roundings, floors,
};
use std::collections::{BTreeMap, HashMap, HashSet};

use crate::check::{
    ContinuationValues, Gate, Mode, Preference, Preferences, RankMargins, RoundingEvaluation, RunContext,
    continues,
};
use crate::checkpoint::{Checkpoint, Point, Site, ValueKind};
use crate::error::Result;
use crate::measure::Measurement;
use crate::plan::Unit;
use crate::tensor::Tensor;
use crate::verdict::expert_choices::{Routing, routers_of};
use crate::verdict::site_result::{SiteResult, Verdict};
use crate::verdict::ties::{TokenChoiceEvidence, last_logits};
use crate::verdict::unit_rows::{TieEvidence, UnitRows};
use crate::weight::DType;

/// Margins by which our engine prefers its own choices to the dump's.
#[derive(Clone, Copy)]
struct ChoiceMargins<'m> {
    ranks: &'m RankMargins,
    experts: &'m Preferences,
}

impl UnitRows<'_> {
    /// Measures the noise floor if a verdict depends on it, and judges token choices.
    pub(crate) fn judge_choices(
        &mut self,
        unit: &Unit,
        TieEvidence { sides, context, choices, rank_margins, preferences }: TieEvidence,
    ) -> Result<()> {
        let allowed = self.tolerance(Point::LastLogits);
        let by_table = self.rules.gate == Gate::Tolerance || allowed.is_asked;
        let mut choosing = TokenChoiceEvidence {
            sides,
            tolerance: if by_table { allowed.max_abs } else { 0.0 },
            floors: HashMap::new(),
            choices,
            logits: HashMap::new(),
        };
        let without_row = match context {
            Some(context) => {
                let before = self.rows.clone();
                let margins = ChoiceMargins { ranks: &rank_margins, experts: &preferences };
                let (stated, unstated) = extra_roundings(context);
                let mut without_row = self.weigh_choices(context, &mut choosing, margins, stated)?;
                for UnstatedRoundings { extra, why } in unstated {
                    if self.rows.iter().all(|row| row.verdict.is_good()) {
                        break;
                    }
                    let strict = std::mem::replace(&mut self.rows, before.clone());
                    without_row = self.weigh_choices(context, &mut choosing, margins, extra)?;
                    self.doubt(strict, &why);
                }
                self.doubt_other_rounding(context)?;
                without_row
            }
            None => {
                self.rank(&rank_margins, &HashMap::new(), &HashMap::new());
                let without_row = choosing.judge(&mut self.rows)?;
                self.judge_experts(&preferences, RunNoiseFloors::default());
                if self.may_be_half {
                    self.doubt_choices();
                }
                choosing.refuse_all_contradictions(&mut self.rows);
                without_row
            }
        };
        let choices = [Checkpoint::Argmax, Checkpoint::Generation];
        if choices.iter().any(|choice| self.rules.selection.checkpoints.contains(choice))
            && self.sees_everything()
            && unit.has_choices(self.rules.selection)
        {
            let untold = choosing.untold_contradictions(&self.rows).into_iter();
            untold.chain(without_row).for_each(|what| self.lack(what));
        }
        Ok(())
    }

    fn weigh_choices(
        &mut self,
        context: &RunContext,
        choosing: &mut TokenChoiceEvidence,
        margins: ChoiceMargins,
        extra: ExtraRoundings,
    ) -> Result<Vec<String>> {
        let of_choices = self.logits_of_other_choices(choosing);
        let (floors, logits) = self.weigh(context, of_choices, margins, extra)?;
        (choosing.floors, choosing.logits) = (floors.accumulated.clone(), logits);
        let without_row = choosing.judge(&mut self.rows)?;
        self.judge_experts(margins.experts, floors);
        choosing.refuse_all_contradictions(&mut self.rows);
        Ok(without_row)
    }

    /// Judges expert choices, and the rows after choices that rounding decides.
    fn judge_experts(&mut self, preferences: &Preferences, floors: RunNoiseFloors) {
        let allowed = self.tolerance(Point::FfnOut);
        let by_table = self.rules.gate == Gate::Tolerance || allowed.is_asked;
        let tolerance = if by_table { allowed.max_abs } else { 0.0 };
        let routing = Routing { preferences, floors: &floors, tolerance, behind: &self.behind };
        routing.judge(&mut self.rows);
    }

    /// Returns the sites of router logits and scores to measure, if any row is open. Rounding may have decided a choice of
    /// experts there.
    fn routers(&self, known: &HashMap<Site, Preference>) -> HashSet<Site> {
        let is_open =
            |row: &SiteResult| !row.verdict.is_good() || row.is_in_doubt() || row.is_large_in_total();
        let is_asked = self.rows.iter().any(is_open);
        known.keys().filter(|_| is_asked).flat_map(|&site| routers_of(site)).collect()
    }

    /// Replaces each row by its row in `strict` unless that one fails. A row that passes only with the assumed rounding
    /// becomes inconclusive, since the dump does not state that rounding.
    fn doubt(&mut self, strict: Vec<SiteResult>, why: &str) {
        for (row, strict) in self.rows.iter_mut().zip(strict) {
            if strict.verdict <= Verdict::Inconclusive {
                *row = strict;
            } else if row.verdict.is_good() {
                (row.verdict, row.reason) = (Verdict::Inconclusive, Some(why.to_owned()));
            }
        }
    }

    /// Makes rows of a 16-bit engine inconclusive if only a different rounding explains them, and the values show no
    /// rounding choice that correct engines make.
    fn doubt_other_rounding(&mut self, context: &RunContext) -> Result<()> {
        if context.numerics.activation_type() == DType::F32 {
            return Ok(());
        }
        let (has_our_bits, sums_in_parts) = (self.has_our_bits(), self.shows_sums_in_parts());
        let mut taps: BTreeMap<(bool, bool, Point), HashSet<Site>> = BTreeMap::new();
        let is_by_floor = |row: &&SiteResult| {
            row.verdict == Verdict::Pass && row.floor.is_some() && !row.is_gated_by_tolerance()
        };
        // In a segment of a few operations, another order of sums moves too few results for a limit.
        let is_long = |row: &SiteResult| {
            let is_end = matches!(row.site.point, Point::BlockOut | Point::Logits | Point::LastLogits);
            is_end && row.explained.is_none() && !sums_in_parts
        };
        for row in self.rows.iter().filter(is_by_floor) {
            let kind = (row.local.is_some(), is_long(row), row.site.point);
            taps.entry(kind).or_default().insert(row.site);
        }
        for ((is_local, is_long, point), sites) in taps {
            let may_be_beyond_sums = is_local && has_our_bits;
            if !is_long && !may_be_beyond_sums {
                continue;
            }
            let go_on = self.goes_on(is_local);
            let extra = ExtraRoundings { sums_alone: true, ..ExtraRoundings::default() };
            let measured = floors(context, go_on, &sites, extra)?;
            let doubt = match is_long {
                true => doubt_of_choices(context, go_on, point, &sites, &measured.rows)?,
                false => None,
            };
            let doubted = match doubt {
                Some(why) => self.rows_of(&sites).map(|row| (row.site, why.clone())).collect(),
                None if may_be_beyond_sums => self.beyond_sums(&measured, &sites),
                None => HashMap::new(),
            };
            for row in &mut self.rows {
                if let Some(why) = doubted.get(&row.site) {
                    (row.verdict, row.reason) = (Verdict::Inconclusive, Some(why.clone()));
                }
            }
        }
        Ok(())
    }

    /// Returns true if at least half of the layers of a pass show rounded partial sums in the products of one tap.
    fn shows_sums_in_parts(&self) -> bool {
        self.is_shown(|explained| explained.is_in_parts)
    }

    /// Returns the rows at these sites.
    fn rows_of<'u>(&'u self, sites: &'u HashSet<Site>) -> impl Iterator<Item = &'u SiteResult> {
        self.rows.iter().filter(|row| sites.contains(&row.site))
    }

    /// Returns the values from which a run restarts, if it measures local or accumulated errors.
    fn goes_on(&self, is_local: bool) -> ContinuationValues {
        match self.rules.mode {
            Mode::Both | Mode::Accumulated if !is_local => ContinuationValues::Own,
            mode => continues(mode),
        }
    }

    /// Returns the rows that a different order of sums does not explain, with the reason. An engine that has our bits in
    /// whole blocks rounds at the same sites as ours and can only differ in the order of sums.
    fn beyond_sums(&self, measured: &NoiseMeasurement, sites: &HashSet<Site>) -> HashMap<Site, String> {
        let beyond = self.rows_of(sites).filter_map(|row| {
            let (floor, found) = (measured.floors.get(&row.site)?, row.judged()?);
            let why = format!(
                "blocks of other passes or layers are bit-identical to our engine's, so both engines \
                 round at the same sites; a different summation order explains a relative error of \
                 {:.1e} here, but the error is {:.1e}: an operation rounds differently or is wrong",
                floor.rel_l2, found.errors.rel_l2
            );
            (!floor.is_near(&found.errors)).then_some((row.site, why))
        });
        beyond.collect()
    }

    /// Returns true if enough block outputs are bit-identical to rule out coincidence. Only outputs computed
    /// by several operations count.
    fn has_our_bits(&self) -> bool {
        const ROWS: usize = 2;
        const VALUES: usize = 256;
        let is_ours = |row: &&SiteResult| {
            let found = row
                .local
                .as_ref()
                .filter(|_| row.site.point == Point::BlockOut && !row.is_single_operation());
            found.is_some_and(Measurement::is_identical)
        };
        let rows: Vec<&SiteResult> = self.rows.iter().filter(is_ours).collect();
        let values: usize = rows.iter().filter_map(|row| Some(row.judged()?.elements)).sum();
        rows.len() >= ROWS && values >= VALUES
    }

    /// Returns true if all passes and positions are selected.
    fn sees_everything(&self) -> bool {
        self.rules.selection.passes.is_none() && self.rules.selection.positions.is_none()
    }

    /// Returns true if all passes, positions, checkpoints and layers are selected.
    fn sees_every_stage(&self) -> bool {
        let selection = self.rules.selection;
        let is_asked = |checkpoint| selection.checkpoints.contains(checkpoint);
        self.sees_everything() && selection.layers.is_none() && Checkpoint::all().iter().all(is_asked)
    }

    /// Returns the sites of the last logits after which the two sides chose different tokens.
    fn logits_of_other_choices(&self, choosing: &TokenChoiceEvidence) -> HashSet<Site> {
        let in_rows = self.rows.iter().filter(|row| row.site.point == Point::Argmax);
        let passes = in_rows.filter_map(|row| choosing.other(row)).map(|other| other.pass);
        let continuations = self.rows.iter().filter(|row| row.site.point == Point::Generated);
        let steps = continuations.flat_map(|row| choosing.other_steps(row)).map(|(_, other)| other.pass);
        let read_on = choosing.read_on().into_iter().map(|(other, _)| other.pass);
        passes.chain(steps).chain(read_on).map(last_logits).collect()
    }

    /// Judges undetermined rows by the noise floor. Returns the noise floor, and our engine's logits at the
    /// requested sites.
    fn weigh(
        &mut self,
        context: &RunContext,
        logits: HashSet<Site>,
        margins: ChoiceMargins,
        extra: ExtraRoundings,
    ) -> Result<(RunNoiseFloors, HashMap<Site, Tensor>)> {
        let grown = self.ends_that_grew(context);
        let extra = ExtraRoundings { tf32: self.shows_tf32(), ..extra };
        let [held, travelling] = [true, false].map(|is_local| self.goes_on(is_local));
        let of_accumulated: HashSet<Site> = self
            .in_doubt(false)
            .chain(logits)
            .chain(self.other_ranks(false))
            .chain(grown.iter().copied())
            .chain(self.routers(&margins.experts.accumulated))
            .collect();
        let routers = self.routers(&margins.experts.local);
        let since = self.in_doubt(true).chain(self.other_ranks(true)).chain(routers).collect();
        let since_held = floors(context, held, &since, extra)?;
        let of_accumulated = floors(context, travelling, &of_accumulated, extra)?;
        for row in self.rows.iter_mut().filter(|row| row.is_in_doubt()) {
            let measured = if row.local.is_some() { &since_held } else { &of_accumulated };
            let floor = measured.floors.get(&row.site).copied().unwrap_or_default();
            row.weigh(floor, measured.excesses.get(&row.site).copied());
        }
        self.rank(margins.ranks, &since_held.floors, &of_accumulated.floors);
        self.weigh_totals(&grown, &of_accumulated, context);
        Ok((
            RunNoiseFloors { accumulated: of_accumulated.floors, local: since_held.floors },
            of_accumulated.logits,
        ))
    }

    /// Returns true if at least half of the layers of a pass show TF32 in the products of one tap. Kernels are chosen by
    /// shapes, which layers share.
    fn shows_tf32(&self) -> bool {
        self.is_shown(|explained| explained.is_tf32)
    }

    /// Returns true if at least half of the layers of a pass show a deviation at one tap.
    fn is_shown(&self, shows: impl Fn(&RoundingEvaluation) -> bool) -> bool {
        let mut layers: HashMap<(Point, Option<usize>), [usize; 2]> = HashMap::new();
        let is_of_layer = |row: &&SiteResult| {
            row.site.layer.is_some() && row.is_single_operation() && row.verdict == Verdict::Pass
        };
        for row in self.rows.iter().filter(is_of_layer) {
            let [all, with] = layers.entry((row.site.point, row.site.pass)).or_default();
            *all += 1;
            *with += usize::from(row.explained.as_ref().is_some_and(&shows));
        }
        layers.into_values().any(|[all, with]| all > 1 && 2 * with >= all)
    }

    /// Returns the sites of undetermined rows that are judged by local errors, or by accumulated errors.
    fn in_doubt(&self, local: bool) -> impl Iterator<Item = Site> {
        let rows = self.rows.iter().filter(|row| row.is_in_doubt());
        rows.filter(move |row| row.local.is_some() == local).map(|row| row.site)
    }

    /// Judges differing top tokens by their margins and the noise floor of their log-probabilities.
    fn rank(
        &mut self,
        margins: &RankMargins,
        since_held: &HashMap<Site, NoiseFloor>,
        of_accumulated: &HashMap<Site, NoiseFloor>,
    ) {
        let allowed = self.tolerance(Point::TopLogprobs);
        for row in self.rows.iter_mut().filter(|row| names_others(row)) {
            let (floors, margins) = match row.local {
                Some(_) => (since_held, &margins.local),
                None => (of_accumulated, &margins.accumulated),
            };
            let floor = floors.get(&log_probabilities(row)).copied().unwrap_or_default();
            let tolerance = if row.is_gated_by_tolerance() { allowed.max_abs } else { 0.0 };
            if let Some(&margin) = row.site.pass.and_then(|pass| margins.get(&pass)) {
                row.rank(margin, &floor, tolerance);
            }
        }
    }

    /// Returns the log-probability sites at which the two sides list different top tokens, by local or
    /// accumulated errors.
    fn other_ranks(&self, local: bool) -> impl Iterator<Item = Site> {
        let rows = self.rows.iter().filter(|row| names_others(row));
        rows.filter(move |row| row.local.is_some() == local).map(log_probabilities)
    }

    /// Judges the final values of passes by accumulated errors, unless an operation already fails.
    fn weigh_totals(&mut self, grown: &HashSet<Site>, measured: &NoiseMeasurement, context: &RunContext) {
        let is_wrong =
            |row: &SiteResult| row.verdict == Verdict::Fail && row.site.point.kind() == ValueKind::Real;
        if self.rows.iter().any(is_wrong) {
            return;
        }
        let hides = self.rows.iter().any(|row| context.may_hide_rounding(row.site));
        for row in self.rows.iter_mut().filter(|row| grown.contains(&row.site)) {
            let floor = measured.floors.get(&row.site).copied().unwrap_or_default();
            row.weigh_total(floor, measured.excesses.get(&row.site).copied(), hides);
        }
    }

    /// Returns the final values of each pass (logits of choices and outputs of the last layer) that have a small local
    /// error and a large accumulated error. Returns nothing if every operation was evaluated from the engine's own
    /// values: accumulated errors then show nothing more.
    fn ends_that_grew(&self, context: &RunContext) -> HashSet<Site> {
        let is_evaluated =
            || self.rows.iter().all(|row| row.is_settled() && !context.may_hide_rounding(row.site));
        // Evaluated operations are also not needed if our run lacks the 8-bit values with which the dump's
        // engine continues.
        if context.held.goes_on_with_eight_bits() || self.sees_every_stage() && is_evaluated() {
            return HashSet::new();
        }
        let last_layer = self.rows.iter().filter_map(|row| row.site.layer).max();
        let is_end = |row: &&SiteResult| match row.site.point {
            Point::LastLogits => true,
            Point::BlockOut => row.site.layer == last_layer,
            _ => false,
        };
        let grew = |row: &SiteResult| {
            if row.is_gated_by_tolerance() { row.has_grown() } else { row.is_large_in_total() }
        };
        let passes = |row: &&SiteResult| row.local.is_some() && !row.tolerance.is_asked && grew(row);
        let both = self.rules.mode == Mode::Both;
        let ends = self.rows.iter().filter(|_| both).filter(is_end);
        ends.filter(passes).map(|row| row.site).collect()
    }
}

/// Minimum number of rows for a meaningful mean error.
const FEW_ROWS: usize = 8;

/// Returns the reason to doubt the values of a 16-bit tap. With every rounding choice, a typical row differs from
/// our row by more than in any run with another order of sums.
fn doubt_of_choices(
    context: &RunContext,
    go_on: ContinuationValues,
    point: Point,
    sites: &HashSet<Site>,
    rows: &RowNoise,
) -> Result<Option<String>> {
    if rows.count < FEW_ROWS || rows.ratio.least <= 1.0 {
        return Ok(None);
    }
    let left = rows.left_by_choices(context, go_on, sites)?;
    Ok((!(left.least <= 1.0)).then(|| {
        format!(
            "{point}: a typical row's error is {:.1} times as large as another order of sums makes it, and no known \
             rounding choice explains the rest: an operation rounds differently, such as partial sums in 16 bits, or is \
             wrong; record more taps to decide",
            left.mean
        )
    }))
}

/// Returns true if the two sides list different top tokens.
fn names_others(row: &SiteResult) -> bool {
    row.site.point == Point::TopIds && row.judged().is_some_and(|found| found.errors.max_abs > 0.0)
}

/// Returns the site of the log-probabilities of listed ids.
fn log_probabilities(row: &SiteResult) -> Site {
    Site { point: Point::TopLogprobs, ..row.site }
}
