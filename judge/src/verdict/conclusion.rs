//! Combines the results of all units into one verdict with reasons. The verdict does not depend on how many
//! runs produced the results.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::check::{Gate, Mode};
use crate::checkpoint::{Point, Site, ValueKind};
use crate::exact::Profile;
use crate::verdict::cause::grouped;
use crate::verdict::coverage::{ComparisonResults, is_complete, once_each};
use crate::verdict::evidence::{Basis, Evidence};
use crate::verdict::outcome::{ComparisonSubject, Outcome};
use crate::verdict::rule;
use crate::verdict::site_result::{SiteResult, Verdict};
use crate::verdict::ties::refuse_ties_of_a_wrong_run;

/// Makes one verdict from the results of the requested units. Stores the results in `basis`, whose own list of
/// results must be empty.
pub(crate) fn conclude(
    subject: ComparisonSubject,
    basis: Basis,
    mut found: Vec<(usize, Evidence)>,
) -> Outcome {
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
    let results = ComparisonResults { subject: &subject, basis: &basis, rows: &rows };
    let skipped = results.skipped();
    let verdict = results.verdict(&skipped);
    let has_all_sites = results.found().all(|found| found.missing.is_empty());
    let has_all_units = basis.evidence.len() == basis.wanted.len();
    rule::assert_complete(verdict, &rows, &skipped, has_all_sites, has_all_units);
    let (reason, notes) = (results.reason(verdict, &skipped), results.notes(verdict));
    let coverage = results.coverage(skipped);
    let units = basis.evidence.iter().map(|(_, found)| found.causes.as_slice());
    let findings = grouped(&units.collect::<Vec<_>>(), &basis.slides);
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
        let results = ComparisonResults { subject: &self.subject, basis: &self.basis, rows: &self.rows };
        let verdict = results.verdict(&self.coverage.skipped);
        let reason = results.reason(verdict, &self.coverage.skipped);
        (self.verdict, self.reason) = (verdict, reason);
    }
}

/// Checks rounding choices that an engine makes in every layer or in none. A row fails if more layers contradict
/// its choice than show it. If several choices explain a product, the choice that most layers show counts.
fn refuse_choices_of_a_few(rows: &mut [SiteResult]) {
    let is_settled_here = |row: &SiteResult| row.is_single_operation() && row.verdict == Verdict::Pass;
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

impl ComparisonResults<'_> {
    fn verdict(&self, skipped: &[String]) -> Verdict {
        rule::of_dump(self.rows, skipped, self.is_input_alone())
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

    /// Returns facts that change no verdict: ties, and accumulated rounding errors above a tolerance. After a failure,
    /// errors above a tolerance are not reported.
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
            format!("{point}: {told}; this explains {places} of {all} sites; the stated rounding does not")
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
            "the accumulated error exceeds the tolerance from {from} on (largest error: {largest:.1e}); {in_itself}"
        ))
    }
}
