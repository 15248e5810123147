//! Combines the results of all units into one verdict with reasons. The verdict does not depend on how many
//! runs produced the results.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::checkpoint::{Checkpoint, Point, Site, TapScope, ValueKind};
use crate::compare::{Gate, SiteResult, Verdict};
use crate::diagnose::causes;
use crate::diagnose::evidence::{Basis, Evidence, OUR_ENGINE};
use crate::diagnose::outcome::{ComparisonSubject, Coverage, Outcome};
use crate::diagnose::rules::Mode;
use crate::diagnose::ties::refuse_ties_of_a_wrong_run;
use crate::exact::Profile;

/// Start of the note on taps that our engine computes and the dump does not record.
pub const NOT_RECORDED: &str = "not recorded in the dump: ";

/// Makes the verdict over the results of the requested units. `basis` must not contain results yet.
pub fn conclude(subject: ComparisonSubject, basis: Basis, mut found: Vec<(usize, Evidence)>) -> Outcome {
    found.sort_by_key(|(number, _)| *number);
    let mut rows: Vec<SiteResult> =
        found.iter_mut().flat_map(|(_, found)| std::mem::take(&mut found.rows)).collect();
    let basis = Basis { evidence: found, ..basis };
    if basis.evidence.len() > 1 {
        rows.sort_by_key(|row| row.site.flow_order());
    }
    // With some units missing, it is unknown whether other layers are wrong.
    if is_complete(&basis) {
        refuse_choices_of_a_few(&mut rows);
        refuse_ties_of_a_wrong_run(&mut rows);
    }
    let conclusion = Conclusion { subject: &subject, basis: &basis, rows: &rows };
    let skipped = conclusion.skipped();
    let verdict = conclusion.verdict(&skipped);
    conclusion.assert_complete(verdict, &skipped);
    let (reason, notes) = (conclusion.reason(verdict, &skipped), conclusion.notes(verdict));
    let coverage = conclusion.coverage(skipped);
    let units = basis.evidence.iter().map(|(_, found)| found.causes.as_slice());
    let findings = causes::grouped(&units.collect::<Vec<_>>(), &basis.slides);
    Outcome { subject, verdict, reason, notes, findings, coverage, rows, basis }
}

impl Outcome {
    /// Adds reasons why the comparison cannot pass, and updates the verdict.
    pub fn lack(&mut self, what: &[String]) {
        if !what.is_empty() {
            self.coverage.skipped.extend_from_slice(what);
            self.reconsider();
        }
    }

    /// Updates the verdict after rows or coverage have changed.
    pub fn reconsider(&mut self) {
        let conclusion = Conclusion { subject: &self.subject, basis: &self.basis, rows: &self.rows };
        let verdict = conclusion.verdict(&self.coverage.skipped);
        let reason = conclusion.reason(verdict, &self.coverage.skipped);
        (self.verdict, self.reason) = (verdict, reason);
    }
}

/// Checks rounding choices that an engine makes in every layer or in none. A row fails if its choice holds in
/// fewer layers than do without it. If several choices explain a product, the one that holds in the most
/// layers counts.
fn refuse_choices_of_a_few(rows: &mut [SiteResult]) {
    let is_settled_here = |row: &SiteResult| row.is_one_stage() && row.verdict == Verdict::Pass;
    let mut layers: HashMap<(Point, Option<usize>), usize> = HashMap::new();
    let mut layers_with: HashMap<(Point, Option<usize>, &str), usize> = HashMap::new();
    for row in rows.iter().filter(|row| is_settled_here(row)) {
        let Site { point, pass, .. } = row.site;
        *layers.entry((point, pass)).or_default() += 1;
        // A row counts once, also if it fits two choices of one description.
        for shared in shared_choices(row).into_iter().flatten().collect::<BTreeSet<_>>() {
            *layers_with.entry((point, pass, shared)).or_default() += 1;
        }
    }
    for row in rows.iter_mut().filter(|row| row.verdict == Verdict::Pass) {
        let Site { point, pass, .. } = row.site;
        let with = |choice: &&str| layers_with.get(&(point, pass, *choice)).copied().unwrap_or_default();
        let rarest = |set: &Vec<&'static str>| set.iter().copied().min_by_key(with);
        let Some(choice) = shared_choices(row).iter().filter_map(rarest).max_by_key(with) else { continue };
        let all = layers.get(&(point, pass)).copied().unwrap_or_default();
        let without = all.saturating_sub(with(&choice));
        if with(&choice) < without {
            row.verdict = Verdict::Fail;
            row.reason = Some(format!(
                "rounding explains this only if {choice}, which does not hold in {without} other layers"
            ));
        }
        if let Some(explained) = &mut row.explained {
            explained.prefer(choice);
        }
    }
}

/// Returns the alternative sets of rounding choices that explain a row. Contains only choices that an engine
/// makes in every layer or in none.
fn shared_choices(row: &SiteResult) -> Vec<Vec<&'static str>> {
    let Some(explained) = &row.explained else { return Vec::new() };
    let shared = |told: &String| Profile::OF_ALL_LAYERS.into_iter().find(|shared| told.starts_with(shared));
    let found: Vec<&str> = explained.found.iter().filter_map(shared).collect();
    let alternatives = explained.alternatives.iter().filter_map(shared).map(|choice| vec![choice]);
    [found].into_iter().filter(|found| !found.is_empty()).chain(alternatives).collect()
}

/// Returns true if the results of all units of the plan are present.
fn is_complete(basis: &Basis) -> bool {
    basis.is_whole && basis.evidence.len() == basis.wanted.len()
}

struct Conclusion<'c> {
    subject: &'c ComparisonSubject,
    basis: &'c Basis,
    rows: &'c [SiteResult],
}

impl Conclusion<'_> {
    fn found(&self) -> impl Iterator<Item = &Evidence> {
        self.basis.evidence.iter().map(|(_, found)| found)
    }

    fn coverage(&self, skipped: Vec<String>) -> Coverage {
        let judged = || self.rows.iter().filter_map(SiteResult::judged);
        let compared = |row: &SiteResult| row.recorded.map_or(row.positions.len(), |recorded| recorded.rows);
        Coverage {
            taps_in_part: self.rows.iter().filter(|row| row.recorded.is_some()).count(),
            rows: self.rows.iter().map(compared).sum(),
            rows_expected: self.rows.iter().map(|row| row.positions.len()).sum(),
            taps_compared: self.rows.len(),
            taps_expected: self.found().map(|found| found.expected).sum(),
            elements: judged().map(|found| found.elements).sum(),
            taps_identical: judged().filter(|found| found.is_identical()).count(),
            elements_identical: judged().map(|found| found.identical).sum(),
            skipped,
        }
    }

    /// Returns the expected sites that were not compared, the missing units, and the requested checkpoints
    /// without any comparison.
    fn skipped(&self) -> Vec<String> {
        let mut missing: Vec<_> = self.found().flat_map(|found| &found.missing).collect();
        if self.basis.evidence.len() > 1 {
            missing.sort_by_key(|missing| missing.site.flow_order());
        }
        let mut skipped: Vec<String> = missing.into_iter().map(|missing| missing.why.clone()).collect();
        skipped.extend(once_each(self.found().flat_map(|found| &found.lacking)));
        let is_there = |number: usize| self.basis.evidence.iter().any(|(there, _)| *there == number);
        let absent = self.basis.wanted.iter().filter(|(number, _)| !is_there(*number));
        skipped.extend(absent.map(|(number, unit)| format!("unit {} ({unit}): not examined", number + 1)));
        if is_complete(self.basis) {
            skipped.extend(self.absent_checkpoints());
            skipped.extend(self.blindness());
        }
        skipped
    }

    /// Returns the taps of each side over all units.
    fn sides(&self) -> Vec<(&str, BTreeSet<Point>)> {
        let mut sides: Vec<(&str, BTreeSet<Point>)> = Vec::new();
        for (name, points) in self.found().flat_map(|found| &found.sides) {
            match sides.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => known.extend(points),
                None => sides.push((name, points.clone())),
            }
        }
        sides
    }

    /// Returns notes on taps that only one side has. They do not change the verdict.
    fn one_sided(&self) -> Vec<String> {
        let sides = self.sides();
        let [(first, one), (second, other)] = sides.as_slice() else { return Vec::new() };
        let is_engine = [*first, *second].contains(&OUR_ENGINE);
        let asked = |point: &&Point| self.basis.selection.checkpoints.contains(&point.checkpoint());
        let told = [(one, other, *second), (other, one, *first)].map(|(points, others, lacking)| {
            let names: Vec<_> = points.difference(others).filter(asked).map(|point| point.name()).collect();
            (lacking, names)
        });
        let sentence = |(lacking, names): (&str, Vec<&str>)| {
            let names = names.join(", ");
            match lacking {
                OUR_ENGINE => format!("not computed by our engine: {names}"),
                _ if is_engine => format!("{NOT_RECORDED}{names}"),
                path => format!("not recorded in {path}: {names}"),
            }
        };
        told.into_iter().filter(|(_, names)| !names.is_empty()).map(sentence).collect()
    }

    /// Returns requested checkpoints without any comparison.
    fn absent_checkpoints(&self) -> Vec<String> {
        let selection = &self.basis.selection;
        let compared = |asked: Checkpoint| self.rows.iter().any(|row| row.checkpoint() == asked);
        let asked = selection.checkpoints.iter().copied().filter(|_| selection.explicit);
        let absent = asked.filter(|&asked| {
            let alone = selection.checkpoints == [Checkpoint::Input];
            (alone || asked != Checkpoint::Input) && !compared(asked) && self.is_of_model(asked)
        });
        let sides = self.sides();
        absent
            .map(|asked| {
                let has_none = |(_, points): &&(&str, BTreeSet<Point>)| {
                    !points.iter().any(|point| point.checkpoint() == asked)
                };
                let lacking: Vec<_> = sides.iter().filter(has_none).map(|(side, _)| *side).collect();
                match lacking.as_slice() {
                    [] => format!("checkpoint {asked}: no tap was compared"),
                    sides => format!("checkpoint {asked}: no tap in {}", sides.join(" or in ")),
                }
            })
            .collect()
    }

    /// Returns a note if the compared values cannot reveal certain faults. At the first position, attention
    /// sees only one key and RoPE does not rotate, so scale, base and mask have no effect.
    fn blindness(&self) -> Option<String> {
        use Point::{AttnNorm, Embed, K, KNorm, Q, QNorm, V};
        let is_before = |row: &&SiteResult| {
            matches!(row.site.point, Embed | AttnNorm | Q | K | V | QNorm | KNorm)
                && row.site.layer.unwrap_or(0) == 0
        };
        let mut last =
            self.rows.iter().filter(|row| !is_before(row)).filter_map(SiteResult::last_position).peekable();
        let is_blind = last.peek().is_some() && last.all(|position| position == 0);
        is_blind.then(|| {
            "after the first attention, only position 0 was compared, where RoPE, the attention scale, the \
             mask and softmax have no effect; record a later position"
                .to_owned()
        })
    }

    /// Returns true if the architecture has taps of this checkpoint. A layer tap that our own complete run
    /// never visits does not exist in the model.
    fn is_of_model(&self, checkpoint: Checkpoint) -> bool {
        let sides = self.sides();
        let own = sides.iter().find(|(side, _)| *side == OUR_ENGINE).filter(|_| self.basis.is_whole);
        let is_in_layers = checkpoint.points().all(|point| point.scope() == TapScope::Layer);
        let holds = |points: &BTreeSet<Point>| points.iter().any(|point| point.checkpoint() == checkpoint);
        !is_in_layers || own.is_none_or(|_| sides.iter().any(|(_, points)| holds(points)))
    }

    /// Makes the verdict. Any failing row fails. A pass needs every expected value, and more than inputs that
    /// both sides were given.
    fn verdict(&self, skipped: &[String]) -> Verdict {
        match Verdict::over(self.rows.iter().map(|row| row.verdict)) {
            Verdict::Pass if !skipped.is_empty() || self.is_input_alone() => Verdict::Inconclusive,
            verdict => verdict,
        }
    }

    /// Returns true if only inputs were compared although more was requested. Inputs are embeddings, and
    /// choices known only because they were read as tokens.
    fn is_input_alone(&self) -> bool {
        let is_input = |row: &SiteResult| match row.site.point {
            Point::Embed => true,
            Point::Argmax => self.basis.choices_are_read,
            _ => false,
        };
        let is_asked = self.basis.selection.checkpoints == [Checkpoint::Input];
        is_complete(self.basis) && !is_asked && self.rows.iter().all(is_input)
    }

    /// Panics if a pass lacks an expected value.
    fn assert_complete(&self, verdict: Verdict, skipped: &[String]) {
        if verdict == Verdict::Pass {
            assert!(skipped.is_empty(), "a pass with something left out: {skipped:?}");
            assert!(self.found().all(|found| found.missing.is_empty()), "a pass with a gap");
            assert!(self.basis.evidence.len() == self.basis.wanted.len(), "a pass without a unit");
            assert!(
                self.rows.iter().all(|row| row.verdict.is_good()),
                "a pass with a row that does not pass"
            );
        }
    }

    fn reason(&self, verdict: Verdict, skipped: &[String]) -> Option<String> {
        let first = |wanted| self.rows.iter().find(|row| row.verdict == wanted);
        let told =
            |row: &SiteResult| format!("{}: {}", row.site, row.reason.as_deref().unwrap_or("not judged"));
        match verdict {
            Verdict::Pass | Verdict::Tie | Verdict::Known => None,
            Verdict::Fail => first(Verdict::Fail).map(told),
            Verdict::Inconclusive => first(Verdict::Inconclusive).map(told).or_else(|| match skipped {
                [] if self.basis.wanted.is_empty() => Some("this shard has no unit".to_owned()),
                [] if self.rows.is_empty() => Some("nothing was compared".to_owned()),
                [] => Some("only the input was compared".to_owned()),
                [only] => Some(only.clone()),
                [first, more @ ..] => Some(format!("{first}, and {} more", more.len())),
            }),
        }
    }

    /// Returns facts that change no verdict: ties, and accumulated rounding above a tolerance. After a
    /// failure, growth of the error is not reported.
    fn notes(&self, verdict: Verdict) -> Vec<String> {
        let ties = self.rows.iter().filter(|row| row.verdict == Verdict::Tie);
        let told = |row: &SiteResult| Some(format!("{}: a tie: {}", row.site, row.reason.as_ref()?));
        let growth = if verdict == Verdict::Fail { None } else { self.growth() };
        let layers = if self.subject.mode == Mode::Layers { self.wrong_layers() } else { None };
        let one_sided = if is_complete(self.basis) { self.one_sided() } else { Vec::new() };
        ties.filter_map(told)
            .chain(growth)
            .chain(layers)
            .chain(self.roundings())
            .chain(once_each(self.found().flat_map(|found| &found.notes)))
            .chain(one_sided)
            .collect()
    }

    /// Lists the layers with failing rows. Each of them made its error itself, given the dump's own inputs.
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
            .then(|| format!("wrong given the dump's own input: layer {}{more}", shown.join(", ")))
    }

    /// Returns the rounding of the dump's engine that deviates from its rounding profile, with the sites.
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
                "{point}: {told}; this explains {places} of {all} sites, which the stated rounding does not"
            )
        };
        found.into_iter().map(told).collect()
    }

    fn growth(&self) -> Option<String> {
        let real = self.rows.iter().filter(|row| row.site.point.kind() == ValueKind::Real);
        let grown: Vec<&SiteResult> = real.filter(|row| row.local.is_some() && row.has_grown()).collect();
        let largest =
            grown.iter().filter_map(|row| row.accumulated.as_ref()).map(|found| found.errors.max_abs);
        let (from, largest) = (grown.first()?.site, largest.fold(0.0, f64::max));
        let in_itself = match self.subject.gate {
            Gate::Rounding => "every local error is explained by rounding",
            Gate::Tolerance => "every local error is within the tolerance",
        };
        Some(format!(
            "the accumulated error exceeds the tolerance from {from} on, at most {largest:.1e}; {in_itself}"
        ))
    }
}

/// Returns each sentence once, in order of first occurrence.
pub fn once_each<'s>(said: impl Iterator<Item = &'s String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for what in said {
        if !all.contains(what) {
            all.push(what.clone());
        }
    }
    all
}
