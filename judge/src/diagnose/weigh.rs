//! What rounding comes to, where a verdict depends on it.

use std::collections::{HashMap, HashSet};

use crate::checkpoint::{Checkpoint, Kind, Point, Site};
use crate::compare::{Continue, Floor, Gate, Preference, Row, Verdict};
use crate::diagnose::experts::{Floors, Preferences, Routing, router_of};
use crate::diagnose::floor::floors;
use crate::diagnose::judge::{Judge, Parties};
use crate::diagnose::rules::Mode;
use crate::diagnose::runs::{RankMargins, Setting, Stated, continues};
use crate::diagnose::ties::{Choosing, last_logits};
use crate::error::Result;
use crate::plan::Unit;

/// How much our engine prefers its choices to those of the dump.
#[derive(Clone, Copy)]
struct Margins<'m> {
    ranks: &'m RankMargins,
    experts: &'m Preferences,
}

impl Judge<'_> {
    /// Asks what rounding comes to where a verdict depends on it, and judges the choices of tokens.
    pub(super) fn judge_choices(
        &mut self,
        unit: &Unit,
        Parties { sides, setting, choices, rank_margins, preferences }: Parties,
    ) -> Result<()> {
        let allowed = self.tolerance(Point::LastLogits);
        let by_table = self.rules.gate == Gate::Tolerance || allowed.is_asked;
        let mut choosing = Choosing {
            sides,
            tolerance: if by_table { allowed.max_abs } else { 0.0 },
            floors: HashMap::new(),
            choices,
            follow_reference: self.rules.selection.follow_reference,
        };
        let without_row = match setting {
            Some(setting) => {
                let short = setting.short_attention();
                let before = self.rows.clone();
                let margins = Margins { ranks: &rank_margins, experts: &preferences };
                let mut without_row =
                    self.weigh_choices(setting, &mut choosing, margins, short == Some(Stated::Yes))?;
                if short == Some(Stated::No) && self.rows.iter().any(|row| !row.verdict.is_good()) {
                    let strict = std::mem::replace(&mut self.rows, before);
                    without_row = self.weigh_choices(setting, &mut choosing, margins, true)?;
                    self.doubt_short_attention(strict, setting);
                }
                without_row
            }
            None => {
                self.rank(&rank_margins, &HashMap::new(), &HashMap::new());
                let without_row = choosing.judge(&mut self.rows)?;
                self.judge_experts(&preferences, Floors::default());
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
        setting: &Setting,
        choosing: &mut Choosing,
        margins: Margins,
        short: bool,
    ) -> Result<Vec<String>> {
        let of_choices = self.logits_of_other_choices(choosing);
        let floors = self.weigh(setting, of_choices, margins, short)?;
        choosing.floors = floors.total.clone();
        let without_row = choosing.judge(&mut self.rows)?;
        self.judge_experts(margins.experts, floors);
        choosing.refuse_all_contradictions(&mut self.rows);
        Ok(without_row)
    }

    /// Judges choices of experts, and what follows those that rounding decides.
    fn judge_experts(&mut self, preferences: &Preferences, floors: Floors) {
        let allowed = self.tolerance(Point::FfnOut);
        let by_table = self.rules.gate == Gate::Tolerance || allowed.is_asked;
        let tolerance = if by_table { allowed.max_abs } else { 0.0 };
        let routing = Routing { preferences, floors: &floors, tolerance, behind: &self.behind };
        routing.judge(&mut self.rows);
    }

    /// The logits of routers, where something is wrong or may be: rounding may have decided a choice of experts.
    fn routers(&self, known: &HashMap<Site, Preference>) -> HashSet<Site> {
        let is_open = |row: &Row| !row.verdict.is_good() || row.is_in_doubt() || row.is_large_in_total();
        let is_asked = self.rows.iter().any(is_open);
        known.keys().filter(|_| is_asked).map(|&site| router_of(site)).collect()
    }

    /// What passes by `strict` does. What only attention in the type of the cache explains is neither a pass nor a failure, since
    /// the dump says nothing of it.
    fn doubt_short_attention(&mut self, strict: Vec<Row>, setting: &Setting) {
        let cache = setting.numerics.cache_type();
        for (row, strict) in self.rows.iter_mut().zip(strict) {
            if strict.verdict.is_good() || !row.verdict.is_good() {
                *row = if strict.verdict.is_good() { strict } else { row.clone() };
                continue;
            }
            row.verdict = Verdict::Inconclusive;
            row.reason = Some(format!(
                "rounding explains it only if attention is computed in {cache} like the cache, which the dump does not say: its \
                 manifest can, by producer.rounding, \"queries\": \"{cache}\""
            ));
        }
    }

    /// Whether nothing was left out by passes or positions.
    fn sees_everything(&self) -> bool {
        self.rules.selection.passes.is_none() && self.rules.selection.positions.is_none()
    }

    /// Whether nothing was left out by checkpoints or layers either.
    fn sees_every_stage(&self) -> bool {
        let selection = self.rules.selection;
        let is_asked = |checkpoint| selection.checkpoints.contains(checkpoint);
        self.sees_everything() && selection.layers.is_none() && Checkpoint::all().iter().all(is_asked)
    }

    /// The logits after which the two sides chose differently.
    fn logits_of_other_choices(&self, choosing: &Choosing) -> HashSet<Site> {
        let in_rows = self.rows.iter().filter(|row| row.site.point == Point::Argmax);
        let passes = in_rows.filter_map(|row| choosing.other(row)).map(|other| other.pass);
        let steps = choosing.other_steps().into_iter();
        let continuations = self.rows.iter().filter(|row| row.site.point == Point::Generated);
        let first = continuations.filter_map(|row| choosing.first_other_step(row));
        let read_on = choosing.read_on().into_iter().map(|(other, _)| other.pass);
        passes
            .chain(steps.chain(first).map(|(_, other)| other.pass))
            .chain(read_on)
            .map(last_logits)
            .collect()
    }

    /// Judges the rows that are in doubt by what rounding comes to there. Gives back what it comes to.
    fn weigh(
        &mut self,
        setting: &Setting,
        logits: HashSet<Site>,
        margins: Margins,
        short: bool,
    ) -> Result<Floors> {
        let grown = self.ends_that_grew(setting);
        let held = continues(self.rules.mode);
        let both_or_total = matches!(self.rules.mode, Mode::Both | Mode::Total);
        let travelling = if both_or_total { Continue::Own } else { held };
        let of_total: HashSet<Site> = self
            .in_doubt(false)
            .chain(logits)
            .chain(self.other_ranks(false))
            .chain(grown.iter().copied())
            .chain(self.routers(&margins.experts.total))
            .collect();
        let routers = self.routers(&margins.experts.introduced);
        let since = self.in_doubt(true).chain(self.other_ranks(true)).chain(routers).collect();
        let since_held = floors(setting, held, &since, short)?;
        let of_total = floors(setting, travelling, &of_total, short)?;
        for row in self.rows.iter_mut().filter(|row| row.is_in_doubt()) {
            let floors = if row.introduced.is_some() { &since_held } else { &of_total };
            row.weigh(floors.get(&row.site).copied().unwrap_or_default());
        }
        self.rank(margins.ranks, &since_held, &of_total);
        self.weigh_totals(&grown, &of_total, setting);
        Ok(Floors { total: of_total, introduced: since_held })
    }

    /// The rows that are in doubt: by what was introduced, or in total.
    fn in_doubt(&self, introduced: bool) -> impl Iterator<Item = Site> {
        let rows = self.rows.iter().filter(|row| row.is_in_doubt());
        rows.filter(move |row| row.introduced.is_some() == introduced).map(|row| row.site)
    }

    /// Judges other likely tokens by how much they are preferred, and by what rounding comes to in their log-probabilities.
    fn rank(
        &mut self,
        margins: &RankMargins,
        since_held: &HashMap<Site, Floor>,
        of_total: &HashMap<Site, Floor>,
    ) {
        let allowed = self.tolerance(Point::TopLogprobs);
        for row in self.rows.iter_mut().filter(|row| names_others(row)) {
            let (floors, margins) = match row.introduced {
                Some(_) => (since_held, &margins.introduced),
                None => (of_total, &margins.total),
            };
            let floor = floors.get(&log_probabilities(row)).copied().unwrap_or_default();
            let tolerance = if row.is_gated_by_tolerance() { allowed.max_abs } else { 0.0 };
            if let Some(&margin) = row.site.pass.and_then(|pass| margins.get(&pass)) {
                row.rank(margin, &floor, tolerance);
            }
        }
    }

    /// Where the two sides name others as the likeliest tokens, their log-probabilities: by what was introduced, or in total.
    fn other_ranks(&self, introduced: bool) -> impl Iterator<Item = Site> {
        let rows = self.rows.iter().filter(|row| names_others(row));
        rows.filter(move |row| row.introduced.is_some() == introduced).map(log_probabilities)
    }

    /// Judges what passes end in by what it has inherited, unless a stage is wrong already.
    fn weigh_totals(&mut self, grown: &HashSet<Site>, floors: &HashMap<Site, Floor>, setting: &Setting) {
        let is_wrong = |row: &Row| row.verdict == Verdict::Fail && row.site.point.kind() == Kind::Real;
        if self.rows.iter().any(is_wrong) {
            return;
        }
        let hides = self.rows.iter().any(|row| setting.may_hide_rounding(row.site));
        for row in self.rows.iter_mut().filter(|row| grown.contains(&row.site)) {
            row.weigh_total(floors.get(&row.site).copied().unwrap_or_default(), hides);
        }
    }

    /// What passes ends in: logits of choices and outputs of the last layer, that pass by themselves and are further off in
    /// total than is allowed. Where every operation from the tokens on was evaluated from what its engine went on with, they
    /// can show nothing more.
    fn ends_that_grew(&self, setting: &Setting) -> HashSet<Site> {
        let is_evaluated =
            || self.rows.iter().all(|row| row.is_settled() && !setting.may_hide_rounding(row.site));
        // Nor can they where our run has not the values of 8 bits that the dump's engine goes on with.
        if setting.held.goes_on_with_eight_bits() || self.sees_every_stage() && is_evaluated() {
            return HashSet::new();
        }
        let last_layer = self.rows.iter().filter_map(|row| row.site.layer).max();
        let is_end = |row: &&Row| match row.site.point {
            Point::LastLogits => true,
            Point::BlockOut => row.site.layer == last_layer,
            _ => false,
        };
        let grew =
            |row: &Row| if row.is_gated_by_tolerance() { row.has_grown() } else { row.is_large_in_total() };
        let passes = |row: &&Row| row.introduced.is_some() && !row.tolerance.is_asked && grew(row);
        let both = self.rules.mode == Mode::Both;
        let ends = self.rows.iter().filter(|_| both).filter(is_end);
        ends.filter(passes).map(|row| row.site).collect()
    }
}

/// Whether the two sides name others as the likeliest tokens.
fn names_others(row: &Row) -> bool {
    row.site.point == Point::TopIds && row.judged().is_some_and(|found| found.errors.max_abs > 0.0)
}

/// The place of the log-probabilities of named ids.
fn log_probabilities(row: &Row) -> Site {
    Site { point: Point::TopLogprobs, ..row.site }
}
