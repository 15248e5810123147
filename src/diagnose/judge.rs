//! From what was found to rows, and from rows to one verdict with its reasons.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use crate::checkpoint::{Checkpoint, Kind, Point, Site};
use crate::compare::{Found, Gate, Measure, Measurement, Observed, Row, Tolerance, Verdict, measure_tokens};
use crate::diagnose::causes::{self, Finding};
use crate::diagnose::check::Rules;
use crate::diagnose::outcome::{Coverage, Mode, Outcome};
use crate::diagnose::runs::Setting;
use crate::diagnose::segment::Span;
use crate::diagnose::ties::Sides;
use crate::dump::Dump;
use crate::engine::Choice;
use crate::error::Result;
use crate::view::View;
use crate::weight::DType;

/// A place of the sequence, however the passes are cut.
type Place = (Point, Option<usize>, Range<usize>);

/// Rows as they are judged.
pub(super) struct Judge<'r> {
    /// The dump that the report is about: with our engine on the other side, the only one.
    dump: &'r Dump,
    pub(super) rules: Rules<'r>,
    architecture: String,
    computed: DType,
    pub(super) rows: Vec<Row>,
    expected: Vec<(Place, String)>,
    skipped: HashMap<Place, String>,
    lacking: Vec<String>,
    sides: Vec<(String, BTreeSet<Point>)>,
    notes: Vec<String>,
    /// What explains rows that no run has made.
    findings: Vec<Finding>,
    /// Whether a dump tells its choices by the tokens that it read alone.
    choices_are_read: bool,
}

/// What is judged, and by whose logits choices are told to be ties.
pub(super) struct Parties<'r> {
    pub(super) sides: Sides<'r>,
    /// With our engine on one side, what measures rounding.
    pub(super) setting: Option<&'r Setting<'r>>,
    /// What the engine's run from the tokens on chose.
    pub(super) choices: Vec<Choice>,
}

impl<'r> Judge<'r> {
    /// Judges runs whose stages round to `computed`.
    pub(super) fn new(dump: &'r Dump, rules: Rules<'r>, architecture: &str, computed: DType) -> Self {
        Self {
            dump,
            rules,
            architecture: architecture.to_owned(),
            computed,
            rows: Vec::new(),
            expected: Vec::new(),
            skipped: HashMap::new(),
            lacking: Vec::new(),
            sides: Vec::new(),
            notes: Vec::new(),
            findings: Vec::new(),
            choices_are_read: false,
        }
    }

    /// Says that a place should be compared.
    pub(super) fn expect(&mut self, site: Site, positions: Range<usize>) {
        self.expected.push(((site.point, site.layer, positions), site.to_string()));
    }

    /// Judges one place; one at which nothing was found is not judged.
    pub(super) fn add(&mut self, site: Site, positions: Range<usize>, found: Observed, span: Span) {
        if found.total.is_none() && found.introduced.is_none() {
            return;
        }
        let span = if found.introduced.is_some() { span } else { Span::Run };
        let measure = Measure {
            tolerance: self.tolerance(site.point),
            gate: self.rules.gate,
            computed: self.computed,
            is_one_stage: span == Span::Stage,
            demanded_of: self.rules.profile.map(|_| self.rules.role),
        };
        self.rows.push(Row::judge(site, positions, found, measure));
    }

    /// The latest place was compared by a sketch, and nobody measures rounding: that errors are small as far as that tells
    /// does not show that every one is.
    pub(super) fn doubt_sketch(&mut self) {
        let is_doubtful = |row: &&mut Row| {
            row.verdict == Verdict::Pass && !row.judged().is_some_and(Measurement::is_identical)
        };
        if let Some(row) = self.rows.last_mut().filter(is_doubtful) {
            let what = "bits differ, by no more than is allowed as far as a sketch tells; dump the values of this layer";
            (row.verdict, row.reason) = (Verdict::Inconclusive, Some(what.to_owned()));
        }
    }

    /// What the table allows.
    pub(super) fn tolerance(&self, point: Point) -> Tolerance {
        let checkpoint = point.checkpoint();
        self.rules.tolerances.get(&self.architecture, self.rules.precision, checkpoint).clone()
    }

    /// Judges what the model's own tokenizer makes of a prompt.
    pub(super) fn add_tokens(&mut self, site: Site, own: &[u32], known: &[u32]) {
        let equal = Tolerance {
            max_abs: 0.0,
            mean_abs: None,
            source: "tokens are equal or not".to_owned(),
            is_asked: false,
        };
        let found = Found::Measured(measure_tokens(View::of_tokens(own), View::of_tokens(known)));
        let found = Observed { total: Some(found), ..Observed::default() };
        let measure = Measure {
            tolerance: equal,
            gate: self.rules.gate,
            computed: self.computed,
            is_one_stage: true,
            demanded_of: None,
        };
        let mut row = Row::judge(site, 0..0, found, measure);
        if row.verdict != Verdict::Pass {
            row.reason = Some(format!("the prompt becomes {own:?}, expected {known:?}"));
            self.findings.extend(causes::of_prompt(site, own, known));
        }
        self.rows.push(row);
    }

    /// Without a model, probabilities are judged by the logits that they follow from: where these pass, no probability is
    /// further off than they are, and nothing else was compared.
    fn follow_logits(&mut self) {
        let passing = |row: &&Row| row.site.point == Point::LastLogits && row.verdict == Verdict::Pass;
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

    /// Says something that changes no verdict.
    pub(super) fn note(&mut self, what: String) {
        self.notes.push(what);
    }

    /// Notes why a place could not be compared.
    pub(super) fn skip(&mut self, site: Site, positions: Range<usize>, why: String) {
        self.skipped.insert((site.point, site.layer, positions), why);
    }

    /// Notes what is missing although it was asked for: nothing passes without it.
    pub(super) fn lack(&mut self, what: String) {
        self.lacking.push(what);
    }

    /// What each side has. Tap points that one side leaves out altogether are no reason to doubt a pass, but worth
    /// knowing.
    pub(super) fn sides(&mut self, sides: [(String, BTreeSet<Point>); 2]) {
        let [(_, one), (_, other)] = &sides;
        for ((side, points), others) in sides.iter().zip([other, one]) {
            let asked = |point: &&Point| self.rules.selection.checkpoints.contains(&point.checkpoint());
            let names: Vec<_> = points.difference(others).filter(asked).map(|point| point.name()).collect();
            if !names.is_empty() {
                self.notes.push(format!("only {side} has {}", names.join(", ")));
            }
        }
        self.sides = sides.into();
    }

    /// The verdict over everything that was added and expected; and what explains a failure.
    pub(super) fn finish(
        mut self,
        name: &str,
        parties: Parties,
        numerics: String,
        causes: impl FnOnce(&[Row]) -> Result<Vec<Finding>>,
    ) -> Result<Outcome> {
        self.choices_are_read = parties.sides.tell_by_reading();
        if parties.setting.is_none() {
            self.follow_logits();
        }
        self.judge_choices(parties)?;
        let mut findings = std::mem::take(&mut self.findings);
        findings.extend(causes(&self.rows)?);
        let skipped = self.missing();
        let verdict = self.verdict(&skipped);
        self.assert_complete(verdict, &skipped);
        let coverage = self.coverage(skipped.clone());
        Ok(Outcome {
            name: name.to_owned(),
            producer: self.dump.manifest.producer.clone(),
            numerics,
            role: self.rules.role,
            is_case: false,
            gate: self.rules.gate,
            mode: self.rules.mode,
            verdict,
            reason: self.reason(verdict, &skipped),
            notes: self.notes(verdict),
            findings,
            coverage,
            rows: self.rows,
        })
    }

    fn coverage(&self, skipped: Vec<String>) -> Coverage {
        let judged = || self.rows.iter().filter_map(Row::judged);
        Coverage {
            taps_compared: self.rows.len(),
            taps_expected: self.expected.len(),
            elements: judged().map(|found| found.elements).sum(),
            taps_identical: judged().filter(|found| found.is_identical()).count(),
            elements_identical: judged().map(|found| found.identical).sum(),
            skipped,
        }
    }

    /// What was expected and not compared, and checkpoints that were asked for and have nothing to compare.
    fn missing(&mut self) -> Vec<String> {
        let compared: HashSet<Place> = self.rows.iter().map(place).collect();
        let mut why = |(place, name): &(Place, String)| {
            self.skipped.remove(place).unwrap_or_else(|| format!("{name}: only one of the two sides has it"))
        };
        let absent = self.expected.iter().filter(|(place, _)| !compared.contains(place));
        let mut missing: Vec<String> = absent.map(&mut why).collect();
        missing.append(&mut self.lacking);
        missing.extend(self.absent_checkpoints());
        missing
    }

    /// Checkpoints that were asked for by name, and of which nothing was compared.
    fn absent_checkpoints(&self) -> Vec<String> {
        let selection = self.rules.selection;
        let compared = |asked: Checkpoint| self.rows.iter().any(|row| row.checkpoint() == asked);
        let asked = selection.checkpoints.iter().copied().filter(|_| selection.explicit);
        let absent = asked.filter(|&asked| {
            let alone = selection.checkpoints == [Checkpoint::Input];
            (alone || asked != Checkpoint::Input) && !compared(asked)
        });
        absent
            .map(|asked| {
                let has_none = |(_, points): &&(String, BTreeSet<Point>)| {
                    !points.iter().any(|point| point.checkpoint() == asked)
                };
                let lacking: Vec<_> =
                    self.sides.iter().filter(has_none).map(|(side, _)| side.as_str()).collect();
                match lacking.as_slice() {
                    [] => format!("checkpoint {asked}: nothing of it was compared"),
                    sides => format!("checkpoint {asked}: nothing of it is in {}", sides.join(" or in ")),
                }
            })
            .collect()
    }

    /// A failure is a failure however much else was compared; a pass needs everything that was expected, and more than
    /// what both sides were given.
    fn verdict(&self, skipped: &[String]) -> Verdict {
        match Verdict::over(self.rows.iter().map(|row| row.verdict)) {
            Verdict::Pass if !skipped.is_empty() || self.is_input_alone() => Verdict::Inconclusive,
            verdict => verdict,
        }
    }

    /// Whether nothing but what went in was compared, and that was not what was asked for: embeddings, and choices of
    /// which nothing is known but that they were read.
    fn is_input_alone(&self) -> bool {
        let is_input = |row: &Row| match row.site.point {
            Point::Embed => true,
            Point::Argmax => self.choices_are_read,
            _ => false,
        };
        self.rules.selection.checkpoints != [Checkpoint::Input] && self.rows.iter().all(is_input)
    }

    /// A pass without everything that was expected would be a lie.
    fn assert_complete(&self, verdict: Verdict, skipped: &[String]) {
        if verdict == Verdict::Pass {
            let compared: HashSet<Place> = self.rows.iter().map(place).collect();
            assert!(skipped.is_empty(), "a pass with something left out: {skipped:?}");
            assert!(self.expected.iter().all(|(place, _)| compared.contains(place)), "a pass with a gap");
            assert!(self.rows.iter().all(|row| row.verdict.is_good()), "a pass with a row that is none");
        }
    }

    fn reason(&self, verdict: Verdict, skipped: &[String]) -> Option<String> {
        let first = |wanted| self.rows.iter().find(|row| row.verdict == wanted);
        let told = |row: &Row| format!("{}: {}", row.site, row.reason.as_deref().unwrap_or("not judged"));
        match verdict {
            Verdict::Pass | Verdict::Tie => None,
            Verdict::Fail => first(Verdict::Fail).map(told),
            Verdict::Inconclusive => first(Verdict::Inconclusive).map(told).or_else(|| match skipped {
                [] if self.rows.is_empty() => Some("nothing was compared".to_owned()),
                [] => Some("nothing but the input was compared".to_owned()),
                [only] => Some(only.clone()),
                [first, more @ ..] => Some(format!("{first}, and {} more", more.len())),
            }),
        }
    }

    /// What changes no verdict: ties, and rounding that grew past a tolerance on its way. After a failure the
    /// growth is the failure's own.
    fn notes(&self, verdict: Verdict) -> Vec<String> {
        let ties = self.rows.iter().filter(|row| row.verdict == Verdict::Tie);
        let told = |row: &Row| Some(format!("{}: a tie: {}", row.site, row.reason.as_ref()?));
        let growth = if verdict == Verdict::Fail { None } else { self.growth() };
        let layers = if self.rules.mode == Mode::Layers { self.wrong_layers() } else { None };
        ties.filter_map(told)
            .chain(growth)
            .chain(layers)
            .chain(self.roundings())
            .chain(self.notes.iter().cloned())
            .collect()
    }

    /// The layers that are wrong by themselves: none of them inherited its error from another.
    fn wrong_layers(&self) -> Option<String> {
        const SHOWN: usize = 8;
        let wrong = self.rows.iter().filter(|row| row.verdict == Verdict::Fail);
        let layers: BTreeSet<usize> = wrong.filter_map(|row| row.site.layer).collect();
        let shown: Vec<String> = layers.iter().take(SHOWN).map(usize::to_string).collect();
        let more = layers
            .len()
            .checked_sub(SHOWN + 1)
            .map_or(String::new(), |rest| format!(" and {} more", rest + 1));
        (!layers.is_empty())
            .then(|| format!("wrong from the dump's own input: layer {}{more}", shown.join(", ")))
    }

    /// What the dump's engine rounds otherwise than its profile says, and where.
    fn roundings(&self) -> Vec<String> {
        let mut found: BTreeMap<(Point, &str), usize> = BTreeMap::new();
        let explained = self.rows.iter().filter_map(|row| Some((row.site.point, row.explained.as_ref()?)));
        for (point, explained) in explained {
            for told in &explained.found {
                *found.entry((point, told)).or_default() += 1;
            }
        }
        let told = |((point, told), places): ((Point, &str), usize)| {
            let all = self.rows.iter().filter(|row| row.site.point == point).count();
            format!(
                "{point}: {told}; this explains {places} of {all} places, where what is known of the engine does not"
            )
        };
        found.into_iter().map(told).collect()
    }

    fn growth(&self) -> Option<String> {
        let real = self.rows.iter().filter(|row| row.site.point.kind() == Kind::Real);
        let grown: Vec<&Row> = real.filter(|row| row.introduced.is_some() && row.has_grown()).collect();
        let largest = grown.iter().filter_map(|row| row.total.as_ref()).map(|found| found.errors.max_abs);
        let (from, largest) = (grown.first()?.site, largest.fold(0.0, f64::max));
        let in_itself = match self.rules.gate {
            Gate::Rounding => "no stage has more than rounding",
            Gate::Tolerance => "no stage introduced more than is allowed",
        };
        Some(format!(
            "the total error grew past the tolerance from {from} on, to {largest:.1e} at most; {in_itself}"
        ))
    }
}

fn place(row: &Row) -> Place {
    (row.site.point, row.site.layer, row.positions.clone())
}
