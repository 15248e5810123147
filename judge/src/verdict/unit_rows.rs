//! Converts a unit's results to rows and judges each row separately.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::check::{
    ArrayComparison, EngineRounding, Preferences, RankMargins, Rules, RunContext, SegmentSpan, Tolerance,
};
use crate::checkpoint::{Checkpoint, Point, Site};
use crate::engine::GreedyToken;
use crate::error::Result;
use crate::measure::{Measurement, measure_tokens};
use crate::plan::Unit;
use crate::verdict::cause::Cause;
use crate::verdict::evidence::{Evidence, MissingSite};
use crate::verdict::site_result::{SiteResult, Verdict};
use crate::verdict::ties::{LogitSource, refuse_ties_of_a_wrong_run};
use crate::view::View;
use crate::weight::DType;

/// A tap, a layer and a position range, which identify a site without its pass.
type PositionSite = (Point, Option<usize>, Range<usize>);

/// The rows of one unit, with the data that their verdicts depend on.
pub(crate) struct UnitRows<'r> {
    pub(crate) rules: Rules<'r>,
    architecture: String,
    computed: DType,
    pub(crate) rows: Vec<SiteResult>,
    expected: Vec<(PositionSite, Site)>,
    skipped: HashMap<PositionSite, String>,
    /// The results without their rows. Its causes are those that need no run, such as wrong prompt tokens.
    pub(crate) found: Evidence,
    /// True if rounding to 16 bits may explain an error above the tolerance table.
    pub(crate) may_be_half: bool,
    /// Expert choices that our run made between a site and its inputs.
    pub(crate) behind: HashMap<Site, Vec<Site>>,
}

/// The data that decides whether differing choices are ties.
pub(crate) struct TieEvidence<'r> {
    pub(crate) sides: LogitSource<'r>,
    /// The run context that measures rounding. `None` for two dumps.
    pub(crate) context: Option<&'r RunContext<'r>>,
    /// Tokens that our engine chose in the run that starts from the token ids.
    pub(crate) choices: Vec<GreedyToken>,
    /// Margins by which our engine prefers unlisted tokens to listed ones.
    pub(crate) rank_margins: RankMargins,
    /// The preference of our router for its choice of experts, by site.
    pub(crate) preferences: Preferences,
}

impl<'r> UnitRows<'r> {
    /// Makes empty rows for runs whose operations round to `computed`.
    pub(crate) fn new(rules: Rules<'r>, architecture: &str, computed: DType) -> Self {
        Self {
            rules,
            architecture: architecture.to_owned(),
            computed,
            rows: Vec::new(),
            expected: Vec::new(),
            skipped: HashMap::new(),
            found: Evidence::default(),
            may_be_half: false,
            behind: HashMap::new(),
        }
    }

    /// Stores the expert choices that our run made between a site and its inputs.
    pub(crate) fn lies_behind(&mut self, site: Site, choices: Vec<Site>) {
        if !choices.is_empty() {
            self.behind.insert(site, choices);
        }
    }

    /// Adds a site that must be compared.
    pub(crate) fn expect(&mut self, site: Site, positions: Range<usize>) {
        self.expected.push(((site.point, site.layer, positions), site));
    }

    /// Makes the result of a site, not yet judged.
    pub(crate) fn unjudged(&self, site: Site, positions: Range<usize>) -> SiteResult {
        SiteResult {
            gate: self.rules.gate,
            computed: self.computed,
            ..SiteResult::new(site, positions, self.tolerance(site.point))
        }
    }

    /// Judges one site and adds its row. `span` is the distance between the site and its inputs in the local run.
    pub(crate) fn add(
        &mut self,
        row: SiteResult,
        accumulated: Option<ArrayComparison>,
        local: Option<ArrayComparison>,
        span: SegmentSpan,
    ) {
        let is_demanded = matches!(self.rules.rounding, EngineRounding::Demanded(_));
        let row = SiteResult {
            is_single_operation: local.is_some() && span == SegmentSpan::Stage,
            demanded_of: is_demanded.then_some(self.rules.role),
            ..row
        };
        if accumulated.is_some() || local.is_some() {
            self.rows.push(row.judge(accumulated, local));
        }
    }

    /// Makes the last added row inconclusive if it passes and is not bit-identical. A small error of a sketch
    /// does not bound each value's error.
    pub(crate) fn doubt_sketch(&mut self) {
        let is_doubtful = |row: &&mut SiteResult| {
            row.verdict == Verdict::Pass && !row.judged().is_some_and(Measurement::is_identical)
        };
        if let Some(row) = self.rows.last_mut().filter(is_doubtful) {
            let what = "bits differ, and the sketch shows an error within the tolerance but not every value; \
                record the values of this layer";
            (row.verdict, row.reason) = (Verdict::Inconclusive, Some(what.to_owned()));
        }
    }

    /// Returns the tolerance of a tap from the table.
    pub(crate) fn tolerance(&self, point: Point) -> Tolerance {
        let of = |checkpoint| {
            self.rules.tolerances.get(&self.architecture, self.rules.precision, checkpoint).clone()
        };
        match point {
            Point::TopIds => of(Checkpoint::Argmax),
            Point::TokenLogprobs | Point::TopLogprobs => of(Checkpoint::Logits).twice(),
            _ => of(point.checkpoint()),
        }
    }

    /// Judges the tokens that the model's own tokenizer makes of a prompt.
    /// `cause` explains a difference.
    pub(crate) fn add_tokens(&mut self, site: Site, own: &[u32], known: &[u32], cause: Option<Cause>) {
        let equal = Tolerance {
            max_abs: 0.0,
            mean_abs: None,
            min_cosine: None,
            source: "tokens must be equal".to_owned(),
            is_asked: false,
        };
        let found = ArrayComparison::Measured(measure_tokens(View::of_tokens(own), View::of_tokens(known)));
        let row = SiteResult { is_single_operation: true, tolerance: equal, ..self.unjudged(site, 0..0) };
        let mut row = row.judge(Some(found), None);
        if row.verdict != Verdict::Pass {
            row.reason = Some(format!("the prompt is tokenized as {own:?}, expected {known:?}"));
            self.found.causes.extend(cause);
        }
        self.rows.push(row);
    }

    /// Lets probabilities pass if the logits of the same positions pass, in a comparison without a model.
    /// Their error must not exceed the logits' error.
    fn follow_logits(&mut self) {
        let passing = |row: &&SiteResult| row.site.point == Point::LastLogits && row.verdict == Verdict::Pass;
        let logits: HashMap<Range<usize>, f64> = self
            .rows
            .iter()
            .filter(passing)
            .filter_map(|row| Some((row.positions.clone(), row.judged()?.errors.max_abs)))
            .collect();
        for row in self.rows.iter_mut().filter(|row| row.site.point == Point::Probs && row.is_in_doubt()) {
            let follows = |error: f64| logits.get(&row.positions).is_some_and(|logits| error <= *logits);
            if row.judged().is_some_and(|found| follows(found.errors.max_abs)) {
                (row.verdict, row.reason) = (Verdict::Pass, None);
            }
        }
    }

    /// Adds a note, which changes no verdict.
    pub(crate) fn note(&mut self, what: String) {
        self.found.notes.push(what);
    }

    /// Stores the reason why a site was not compared.
    pub(crate) fn skip(&mut self, site: Site, positions: Range<usize>, why: String) {
        self.skipped.insert((site.point, site.layer, positions), why);
    }

    /// Adds a reason why the unit cannot pass.
    pub(crate) fn lack(&mut self, what: String) {
        self.found.lacking.push(what);
    }

    /// Judges all rows of the unit and searches for causes of failing rows.
    ///
    /// # Errors
    /// The errors of a run.
    pub(crate) fn examine(
        mut self,
        unit: &Unit,
        parties: TieEvidence,
        causes: impl FnOnce(&[SiteResult]) -> Result<Vec<Cause>>,
    ) -> Result<Evidence> {
        let made = parties.context.map_or(0, RunContext::made);
        let has_other_cache = parties.context.is_some_and(RunContext::has_other_cache);
        if parties.context.is_none() {
            self.follow_logits();
        }
        if self.may_be_half {
            self.doubt_values();
        }
        self.judge_choices(unit, parties)?;
        self.doubt_readings();
        if has_other_cache {
            self.doubt_cache();
        }
        if *unit == Unit::Whole {
            refuse_ties_of_a_wrong_run(&mut self.rows);
        }
        self.found.causes.extend(causes(&self.rows)?);
        let missing = self.missing();
        let (unit, expected) = (unit.clone(), self.expected.len());
        Ok(Evidence { unit, expected, missing, made, rows: self.rows, ..self.found })
    }

    /// Makes a norm's rows inconclusive if they disagree between passes about whether the norm reads the sum before
    /// rounding. With fused kernels this is allowed, since it may depend on the number of tokens.
    fn doubt_readings(&mut self) {
        let reads = |row: &SiteResult| row.explained.as_ref().and_then(|explained| explained.reads_unrounded);
        let is_fused = |row: &SiteResult| row.explained.as_ref().is_some_and(|explained| explained.is_fused);
        let by_tokens = self.rows.iter().any(is_fused);
        let kernel =
            |row: &SiteResult| (row.site.point, row.site.layer, by_tokens.then_some(row.positions.len()));
        let ruled_out = |row: &&SiteResult| reads(row) == Some(false);
        let ruled_out: HashSet<_> = self.rows.iter().filter(ruled_out).map(kernel).collect();
        for row in self.rows.iter_mut().filter(|row| row.verdict == Verdict::Pass && reads(row) == Some(true))
        {
            if ruled_out.contains(&kernel(row)) {
                let what = "rounding explains this only if the norm reads the sum before it is rounded, \
                    which other passes rule out";
                (row.verdict, row.reason) = (Verdict::Inconclusive, Some(what.to_owned()));
            }
        }
    }

    /// Makes failing rows inconclusive if an 8-bit cache without recorded scales may explain them. The cache
    /// must be between the site and its starting values. An error as large as the values is not rounding.
    fn doubt_cache(&mut self) {
        let is_before = |start: &Site| {
            use Point::{K, KNorm, KRope, KRopeNorm, V};
            matches!(start.point, K | KNorm | KRope | KRopeNorm | V)
        };
        let is_behind = |row: &SiteResult| {
            let is_read =
                !matches!(row.site.point, Point::KNorm | Point::KRope) && row.since.iter().any(is_before);
            // The cache is part of every accumulated error.
            is_read || row.is_judged_by_accumulated()
        };
        let is_small = |row: &SiteResult| row.judged().is_some_and(|found| found.errors.rel_l2 < 1.0);
        let is_doubtful =
            |row: &&mut SiteResult| row.verdict == Verdict::Fail && is_behind(row) && is_small(row);
        for row in self.rows.iter_mut().filter(is_doubtful) {
            let before = row.reason.take().map_or(String::new(), |before| format!("{before}; "));
            let what = "the engine's KV cache has 8 bits, and its scales are not recorded; record k_cache \
                        and v_cache as attention reads them, or run the engine with an f32 cache";
            (row.verdict, row.reason) = (Verdict::Inconclusive, Some(before + what));
        }
    }

    /// Returns the expected sites that were not compared.
    fn missing(&mut self) -> Vec<MissingSite> {
        let compared: HashSet<PositionSite> = self.rows.iter().map(place).collect();
        let absent = self.expected.iter().filter(|(place, _)| !compared.contains(place));
        let missing = absent.map(|(place, site)| MissingSite {
            site: *site,
            why: self.skipped.remove(place).unwrap_or_else(|| one_sided(*site)),
        });
        missing.collect()
    }
}

/// Returns the default reason for a missing site.
pub(crate) fn one_sided(site: Site) -> String {
    format!("{site}: recorded on one side only")
}

fn place(row: &SiteResult) -> PositionSite {
    (row.site.point, row.site.layer, row.positions.clone())
}
