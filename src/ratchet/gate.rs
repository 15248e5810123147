//! A run against a baseline: what fails as it is known to fail is let pass, and nothing else.

use std::collections::HashSet;

use crate::checkpoint::{Point, Site};
use crate::compare::{Known, Row, Verdict};
use crate::error::{Error, Result};
use crate::ratchet::baseline::{Baseline, DumpEntry, Entry, Group};
use crate::ratchet::blocks::Block;
use crate::report::{Comparison, Report, Seen, SeenDump, SeenRow};

/// Holds a report against a baseline, on a day such as 2026-12-31. Known failures become [`Verdict::Known`]; what is missing of
/// what was compared, or no longer the bits that were demanded, is no pass; and what the baseline says that is not so is noted.
///
/// # Errors
/// If the baseline is of another model, or of a dump that was not compared.
pub fn gate(report: &mut Report, baseline: &Baseline, today: &str) -> Result<()> {
    let seen = Seen::of(report);
    check(&seen, baseline)?;
    for (comparison, seen) in report.results.iter_mut().zip(&seen.dumps) {
        let Some(entry) = baseline.dumps.iter().find(|dump| dump.name == seen.name) else {
            comparison
                .outcome
                .notes
                .push("the baseline does not know this dump; --update-baseline adds it".to_owned());
            continue;
        };
        let excused = excuse(comparison, seen, &baseline.known, today);
        demand(comparison, seen, &entry.identical);
        let missing = missing(comparison, seen, entry);
        comparison.outcome.coverage.skipped.extend(missing);
        comparison.outcome.reconsider();
        comparison.outcome.notes.extend(excused);
    }
    Ok(())
}

fn check(seen: &Seen, baseline: &Baseline) -> Result<()> {
    for entry in &baseline.dumps {
        let Some(dump) = seen.dumps.iter().find(|dump| dump.name == entry.name) else {
            let compared: Vec<_> = seen.dumps.iter().map(|dump| dump.name.as_str()).collect();
            return Err(Error::Usage(format!(
                "the baseline is of the dump '{}', which is not compared here ({}); compare it, or take it out of the \
                 baseline",
                entry.name,
                if compared.is_empty() { "none is".to_owned() } else { compared.join(", ") },
            )));
        };
        let is_same = match (&entry.sha256, &dump.sha256) {
            (Some(then), Some(now)) => then == now,
            _ => entry.model == dump.model,
        };
        if !is_same {
            let hash = |sha256: &Option<String>| {
                sha256.as_deref().map_or("unknown", |hash| hash.get(..8).unwrap_or(hash)).to_owned()
            };
            return Err(Error::Usage(format!(
                "the baseline is of another model: {} (SHA-256 {}), and this is {} ({}); --update-baseline writes it anew",
                entry.model,
                hash(&entry.sha256),
                dump.model,
                hash(&dump.sha256),
            )));
        }
    }
    Ok(())
}

/// Lets pass what is known, and says so; and what is not as the baseline says.
fn excuse(comparison: &mut Comparison, seen: &SeenDump, known: &[Group], today: &str) -> Vec<String> {
    let entries: Vec<(&Group, &Entry)> = known
        .iter()
        .flat_map(|group| group.rows.iter().map(move |entry| (group, entry)))
        .filter(|(_, entry)| entry.dump == seen.name)
        .collect();
    let mut met = vec![Met::default(); entries.len()];
    for (row, seen) in comparison.outcome.rows.iter_mut().zip(&seen.rows) {
        let here = entries.iter().enumerate().filter(|(_, (_, entry))| entry.block.contains(seen));
        for (at, (group, entry)) in here {
            met[at].count(row, seen);
            if row.verdict != Verdict::Fail {
                continue;
            }
            match group.is_not_in_force(today).or_else(|| entry.is_exceeded_by(seen)) {
                None => (row.verdict, row.known) = (Verdict::Known, Some(group.said.clone())),
                Some(why) => met[at].refused.push((row.site, why)),
            }
        }
    }
    entries.iter().zip(met).flat_map(|((group, entry), met)| met.told(entry, &group.said)).collect()
}

/// What was met of an entry.
#[derive(Clone, Debug, Default)]
struct Met {
    failing: usize,
    passing: Vec<(String, (Option<usize>, Option<usize>))>,
    refused: Vec<(Site, String)>,
}

impl Met {
    fn count(&mut self, row: &Row, seen: &SeenRow) {
        match row.verdict {
            Verdict::Fail | Verdict::Known => self.failing += 1,
            Verdict::Pass | Verdict::Tie => self.passing.push((seen.tap.clone(), (seen.layer, seen.pass))),
            Verdict::Inconclusive => {}
        }
    }

    fn told(self, entry: &Entry, said: &Known) -> Vec<String> {
        let Known { reason, link, expires } = said;
        let mut told = Vec::new();
        let cause = entry.cause.iter().map(|cause| format!("{cause}, ")).collect::<String>();
        let known = self.failing - self.refused.len().min(self.failing);
        if known > 0 {
            told.push(format!(
                "known failure: {} ({cause}{known} places): {reason} ({link}, until {expires})",
                entry.block
            ));
        }
        if let Some((site, why)) = self.refused.first() {
            let more = self.refused.len() - 1;
            let more = if more > 0 { format!(", and {more} more places") } else { String::new() };
            told.push(format!("not let pass by the baseline: {site}{more}: {why}"));
        }
        let passing = self.passing.iter().map(|(tap, at)| (tap.as_str(), *at));
        let passing: Vec<String> = Block::of(passing).iter().map(Block::to_string).collect();
        if !passing.is_empty() {
            let passing = passing.join("; ");
            told.push(format!(
                "stale entry of the baseline: {passing} fails no more; --update-baseline removes it"
            ));
        }
        told
    }
}

impl Entry {
    /// Why a failure here is another one, or a worse one.
    pub fn is_exceeded_by(&self, row: &SeenRow) -> Option<String> {
        if self.cause != row.cause {
            let told = |cause: &Option<String>| cause.clone().unwrap_or("none that was found".to_owned());
            return Some(format!(
                "another cause: {}, where the baseline knows {}",
                told(&row.cause),
                told(&self.cause)
            ));
        }
        self.size.outgrown_by(row)
    }
}

/// What must be bit-identical fails where it is not.
fn demand(comparison: &mut Comparison, seen: &SeenDump, identical: &[Block]) {
    for (row, seen) in comparison.outcome.rows.iter_mut().zip(&seen.rows) {
        let is_demanded = || identical.iter().any(|block| block.contains(seen));
        if row.verdict.is_good() && !seen.is_identical && is_demanded() {
            let told = row.judged().map_or(String::new(), |found| {
                format!("{} of {} values differ", found.elements - found.identical, found.elements)
            });
            row.reason = Some(format!("the baseline demands that it is bit-identical, and {told}"));
            row.verdict = Verdict::Fail;
        }
    }
}

/// What was compared when the baseline was written and is asked for, and is not there now.
fn missing(comparison: &Comparison, seen: &SeenDump, entry: &DumpEntry) -> Vec<String> {
    let there: HashSet<_> = seen.rows.iter().map(|row| (row.tap.as_str(), (row.layer, row.pass))).collect();
    let selection = &comparison.outcome.basis.selection;
    let is_asked = |tap: &str, (layer, pass): (Option<usize>, Option<usize>)| {
        let point = Point::ALL.iter().find(|point| point.name() == tap);
        point.is_some_and(|&point| selection.takes(Site { point, layer, pass }, &(0..0)))
    };
    let places = entry.compared.iter().flat_map(Block::places);
    let missing = places.filter(|place| !there.contains(place) && is_asked(place.0, place.1));
    let told = |block: &Block| format!("{block}: compared when the baseline was written, and not now");
    Block::of(missing).iter().map(told).collect()
}
