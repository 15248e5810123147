//! From measurements to rows, and from rows to one verdict with its reasons.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::checkpoint::{Checkpoint, Point, Site};
use crate::compare::{Measurement, Row, Tolerance, Tolerances, Verdict, measure_tokens};
use crate::diagnose::check::Rules;
use crate::diagnose::hypotheses::{Evidence, Ours};
use crate::diagnose::outcome::{Coverage, Mode, Outcome};
use crate::diagnose::ties::judge_tokens;
use crate::dump::{Dump, Values};
use crate::engine::Choice;
use crate::error::Result;

/// Rows as they are judged.
pub(super) struct Judge<'r> {
    reference: &'r Dump,
    rules: Rules<'r>,
    architecture: String,
    rows: Vec<Row>,
    choices: Vec<Choice>,
    skipped: HashMap<Site, String>,
    notes: Vec<String>,
}

impl<'r> Judge<'r> {
    pub(super) fn new(reference: &'r Dump, rules: Rules<'r>, architecture: &str) -> Self {
        Self {
            reference,
            rules,
            architecture: architecture.to_owned(),
            rows: Vec::new(),
            choices: Vec::new(),
            skipped: HashMap::new(),
            notes: Vec::new(),
        }
    }

    /// Judges one place; one that was not measured is not judged.
    pub(super) fn add(&mut self, site: Site, ordinary: Option<Measurement>, introduced: Option<Measurement>) {
        if ordinary.is_none() && introduced.is_none() {
            return;
        }
        let tolerance = self.tolerance(site.point, introduced.is_some());
        self.rows.push(Row::judge(site, ordinary, introduced, tolerance));
    }

    /// What is allowed; more where all errors travelled on, as far as the reference is known to be from itself.
    fn tolerance(&self, point: Point, is_isolated: bool) -> Tolerance {
        let (tolerances, architecture, precision) =
            (self.rules.tolerances, &self.architecture, self.precision());
        if is_isolated || self.rules.mode == Mode::Layerwise {
            return tolerances.get(architecture, precision, point.checkpoint()).clone();
        }
        let producer = &self.reference.manifest.producer.name;
        tolerances.get_total(architecture, precision, point, producer).into_owned()
    }

    /// Judges what the model's own tokenizer makes of a prompt.
    pub(super) fn add_tokens(&mut self, site: Site, ours: &[u32], theirs: &[u32]) {
        let ids =
            |ids: &[u32]| Values { shape: vec![ids.len()], data: ids.iter().map(|&id| id.into()).collect() };
        let equal = Tolerance { max_abs: 0.0, mean_abs: None, source: "tokens are equal or not".to_owned() };
        let mut row = Row::judge(site, Some(measure_tokens(&ids(ours), &ids(theirs))), None, equal);
        if row.verdict != Verdict::Pass {
            row.reason = Some(format!("the prompt becomes {ours:?}, expected {theirs:?}"));
        }
        self.rows.push(row);
    }

    /// Says how narrow the choices of the ordinary run were.
    pub(super) fn set_choices(&mut self, choices: Vec<Choice>) {
        self.choices = choices;
    }

    /// Says something that changes no verdict.
    pub(super) fn note(&mut self, what: String) {
        self.notes.push(what);
    }

    /// The precision under which tolerances are looked up. Over a whole layer rounding travels on, and has tolerances
    /// of its own; those of bf16 are specified for a layer already.
    fn precision(&self) -> &str {
        let precision = self.rules.precision;
        let cache = self.reference.manifest.producer.setting("kv_cache");
        match precision {
            _ if self.rules.mode != Mode::Layerwise => precision,
            "torch-bf16" => precision,
            "f32" if cache.is_none_or(|cache| cache == "f32") => Tolerances::LAYER_F32,
            "f32" | "f16" | "bf16" | "torch-f16" => Tolerances::LAYER,
            _ => Tolerances::LAYER_INT8,
        }
    }

    /// Notes why a place could not be compared.
    pub(super) fn skip(&mut self, site: Site, why: String) {
        self.skipped.insert(site, why);
    }

    /// Notes tap points that one side leaves out altogether: no reason to doubt a pass, but worth knowing.
    pub(super) fn note_points_of_one_side(
        &mut self,
        ours: &str,
        our_points: &BTreeSet<Point>,
        theirs: &str,
        their_points: &BTreeSet<Point>,
    ) {
        for (side, points, others) in [(ours, our_points, their_points), (theirs, their_points, our_points)] {
            let asked = |point: &&Point| self.rules.selection.checkpoints.contains(&point.checkpoint());
            let names: Vec<_> = points.difference(others).filter(asked).map(|point| point.name()).collect();
            if !names.is_empty() {
                self.notes.push(format!("only {side} has {}", names.join(", ")));
            }
        }
    }

    /// The verdict over everything that was added, `expected` is what should have been; and what explains a failure.
    pub(super) fn finish(mut self, name: &str, ours: Ours, expected: &[Site]) -> Result<Outcome> {
        judge_tokens(&mut self.rows, self.reference, &self.choices, self.rules.selection.follow_reference)?;
        let numerics = ours.to_string();
        let findings = Evidence { rows: &self.rows, theirs: self.reference, ours }.findings()?;
        let skipped = self.missing(expected);
        let verdict = self.verdict(&skipped);
        let coverage = self.coverage(expected, skipped.clone());
        Ok(Outcome {
            name: name.to_owned(),
            producer: self.reference.manifest.producer.clone(),
            numerics,
            is_case: false,
            mode: self.rules.mode,
            verdict,
            reason: self.reason(verdict, &skipped),
            notes: self.notes(verdict),
            findings,
            coverage,
            rows: self.rows,
        })
    }

    fn coverage(&self, expected: &[Site], skipped: Vec<String>) -> Coverage {
        let judged = || self.rows.iter().filter_map(Row::judged);
        Coverage {
            taps_compared: self.rows.len(),
            taps_expected: expected.len(),
            elements: judged().map(|found| found.elements).sum(),
            taps_identical: judged().filter(|found| found.is_identical()).count(),
            elements_identical: judged().map(|found| found.identical).sum(),
            skipped,
        }
    }

    /// What was expected and not compared, and checkpoints that were asked for and have nothing to compare.
    fn missing(&mut self, expected: &[Site]) -> Vec<String> {
        let compared: HashSet<Site> = self.rows.iter().map(|row| row.site).collect();
        let why = |site: &Site| {
            self.skipped.remove(site).unwrap_or_else(|| format!("{site}: only one of the two sides has it"))
        };
        let mut missing: Vec<String> =
            expected.iter().filter(|site| !compared.contains(site)).map(why).collect();
        if self.rules.selection.explicit {
            let has = |asked: Checkpoint| compared.iter().any(|site| site.point.checkpoint() == asked);
            let asked = self.rules.selection.checkpoints.iter().copied();
            let absent = asked.filter(|&asked| asked != Checkpoint::Input && !has(asked));
            let reference = self.reference.path.display();
            missing
                .extend(absent.map(|asked| format!("checkpoint {asked}: nothing of it is in {reference}")));
        }
        missing
    }

    /// A failure is a failure however much else was compared; a pass needs everything that was expected.
    fn verdict(&self, skipped: &[String]) -> Verdict {
        match Verdict::over(self.rows.iter().map(|row| row.verdict)) {
            Verdict::Pass if !skipped.is_empty() => Verdict::Inconclusive,
            verdict => verdict,
        }
    }

    fn reason(&self, verdict: Verdict, skipped: &[String]) -> Option<String> {
        let first = |wanted| self.rows.iter().find(|row| row.verdict == wanted);
        let told = |row: &Row| format!("{}: {}", row.site, row.reason.as_deref().unwrap_or("not judged"));
        match verdict {
            Verdict::Pass | Verdict::Tie => None,
            Verdict::Fail => first(Verdict::Fail).map(told),
            Verdict::Inconclusive => first(Verdict::Inconclusive).map(told).or_else(|| match skipped {
                [] => Some("nothing was compared".to_owned()),
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
        let layers = if self.rules.mode == Mode::Layerwise { self.wrong_layers() } else { None };
        ties.filter_map(told).chain(growth).chain(layers).chain(self.notes.iter().cloned()).collect()
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
            .then(|| format!("wrong from the reference's own input: layer {}{more}", shown.join(", ")))
    }

    fn growth(&self) -> Option<String> {
        let grown: Vec<&Row> = self.rows.iter().filter(|row| row.has_grown()).collect();
        let largest = grown.iter().filter_map(|row| row.ordinary.as_ref()).map(|found| found.errors.max_abs);
        Some(format!(
            "rounding grew past the tolerance from {} on, to {:.1e} at most; no stage introduced more than is allowed",
            grown.first()?.site,
            largest.fold(0.0, f64::max)
        ))
    }
}
