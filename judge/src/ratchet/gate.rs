//! Comparison of a run with a baseline. A failure is waived only if the baseline lists it and it has not
//! grown.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Display;

use crate::checkpoint::Site;
use crate::error::{Error, Result};
use crate::ratchet::baseline::{Baseline, ComparedSites, DumpEntry, ValueCount, WaivedFailure, WaiverGroup};
use crate::ratchet::blocks::SiteBlock;
use crate::report::{Comparison, FailureSize, RecordedDump, RecordedReport, RecordedRow, Report};
use crate::verdict::{Verdict, Waiver};

/// Compares a report with a baseline on a day such as 2026-12-31. Waived failures become [`Verdict::Known`].
/// Missing sites and lost bit-identity prevent a pass. Stale entries are noted.
///
/// # Errors
/// If the baseline belongs to another model, or lists a dump that was not compared.
pub fn gate(report: &mut Report, baseline: &Baseline, today: &str) -> Result<()> {
    let seen = RecordedReport::of(report);
    seen.check_names()?;
    check(&seen, baseline)?;
    for (comparison, seen) in report.results.iter_mut().zip(&seen.dumps) {
        let Some(entry) = baseline.dumps.iter().find(|dump| dump.name == seen.name) else {
            comparison
                .outcome
                .notes
                .push("the baseline has no entry for this dump; add it with --update-baseline".to_owned());
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

fn check(seen: &RecordedReport, baseline: &Baseline) -> Result<()> {
    for entry in &baseline.dumps {
        let Some(dump) = seen.dumps.iter().find(|dump| dump.name == entry.name) else {
            let compared: Vec<_> = seen.dumps.iter().map(|dump| dump.name.as_str()).collect();
            return Err(Error::Usage(format!(
                "the baseline lists the dump '{}', which is not compared in this run (compared: {}); compare \
                 it, or remove it from the baseline",
                entry.name,
                if compared.is_empty() { "none".to_owned() } else { compared.join(", ") },
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
                "the baseline is for another model: {} (SHA-256 {}), but this is {} ({}); rewrite it with \
                    --update-baseline",
                entry.model,
                hash(&entry.sha256),
                dump.model,
                hash(&dump.sha256),
            )));
        }
        if let Some(then) = entry.judged.as_ref().filter(|then| **then != dump.judged) {
            return Err(Error::Usage(format!(
                "the baseline of '{}' was written with {then}, but this run uses {}; use the same options, \
                 or rewrite the baseline with --update-baseline",
                entry.name, dump.judged,
            )));
        }
    }
    Ok(())
}

/// Waives known failures and returns notes on waived, refused and stale entries.
fn excuse(
    comparison: &mut Comparison,
    seen: &RecordedDump,
    known: &[WaiverGroup],
    today: &str,
) -> Vec<String> {
    let mut met: Vec<WaivedRows> = known.iter().map(|_| WaivedRows::default()).collect();
    for (row, seen_row) in comparison.outcome.rows.iter_mut().zip(&seen.rows) {
        let failures = known.iter().enumerate().filter(|_| row.verdict == Verdict::Fail);
        let told = failures.flat_map(|(at, group)| {
            let told = group.rows.iter().filter_map(|entry| entry.judge(&seen.name, seen_row));
            told.map(move |worse| (at, group.is_not_in_force(today).or(worse)))
        });
        // An entry that waives the row takes precedence over entries that do not.
        match told.min_by_key(|(_, refused)| refused.is_some()) {
            None => {}
            Some((at, None)) => {
                (row.verdict, row.known) = (Verdict::Known, Some(known[at].said.clone()));
                met[at].known.push(seen_row);
            }
            Some((at, Some(why))) => met[at].refused.push((why, seen_row)),
        }
    }
    known.iter().zip(met).flat_map(|(group, met)| met.told(group, seen)).collect()
}

/// The rows that a group of waived failures applies to.
#[derive(Default)]
struct WaivedRows<'s> {
    known: Vec<&'s RecordedRow>,
    refused: Vec<(String, &'s RecordedRow)>,
}

impl WaivedRows<'_> {
    fn told(self, group: &WaiverGroup, seen: &RecordedDump) -> Vec<String> {
        const SHOWN: usize = 4;
        let Waiver { reason, link, expires } = &group.said;
        let mut told = Vec::new();
        if !self.known.is_empty() {
            let causes: BTreeSet<&String> = self.known.iter().filter_map(|row| row.cause.as_ref()).collect();
            let causes: String = causes.iter().map(|cause| format!("{cause}, ")).collect();
            let (places, count) = (listed(&self.known), self.known.len());
            let places = format!("{places} ({causes}{count} {})", if count == 1 { "site" } else { "sites" });
            told.push(format!("waived failure: {places}: {reason} ({link}, until {expires})"));
        }
        let mut whys: Vec<(String, Vec<&RecordedRow>)> = Vec::new();
        for (why, row) in self.refused {
            match whys.iter_mut().find(|(known, _)| *known == why) {
                Some((_, rows)) => rows.push(row),
                None => whys.push((why, vec![row])),
            }
        }
        let refused = |(why, rows): &(String, Vec<&RecordedRow>)| {
            format!("not waived by the baseline: {}: {why}", listed(rows))
        };
        told.extend(whys.iter().take(SHOWN).map(refused));
        let more = whys.iter().skip(SHOWN).map(|(_, rows)| rows.len()).sum::<usize>();
        if more > 0 {
            told.push(format!("not waived by the baseline: {more} more sites"));
        }
        let stale: Vec<&RecordedRow> = group.rows.iter().flat_map(|entry| entry.stale(seen)).collect();
        if !stale.is_empty() {
            let stale = listed(&stale);
            told.push(format!(
                "stale baseline entry: {stale} no longer fails; remove it with --update-baseline"
            ));
        }
        told
    }
}

fn listed(rows: &[&RecordedRow]) -> String {
    let blocks = SiteBlock::of(rows.iter().map(|row| row.site));
    blocks.iter().map(SiteBlock::to_string).collect::<Vec<_>>().join("; ")
}

impl WaivedFailure {
    /// Judges a failing row by this entry. Returns `None` if the entry concerns other rows, `Some(None)` if the row is
    /// waived, and otherwise the reason why it is not waived. One more failing pass just above its bound counts as the
    /// same failure, since builds vary.
    pub fn judge(&self, dump: &str, row: &RecordedRow) -> Option<Option<String>> {
        let is_more_of_it =
            || self.block.is_beside(row) && self.cause == row.cause && FailureSize::is_just_beyond(row);
        match () {
            () if self.dump != dump => None,
            () if self.block.contains(row) => Some(self.is_exceeded_by(row)),
            () => is_more_of_it().then_some(None),
        }
    }

    fn is_exceeded_by(&self, row: &RecordedRow) -> Option<String> {
        if self.cause != row.cause {
            let told = |cause: &Option<String>| cause.clone().unwrap_or("none found".to_owned());
            return Some(format!(
                "the cause is {}, but {} in the baseline",
                told(&row.cause),
                told(&self.cause)
            ));
        }
        self.size.outgrown_by(row)
    }

    /// Returns passing sites of the entry whose tap has no failure in that layer.
    fn stale<'s>(&self, seen: &'s RecordedDump) -> Vec<&'s RecordedRow> {
        let here = || seen.rows.iter().filter(|row| self.dump == seen.name && self.block.contains(row));
        let fails = |row: &RecordedRow| row.verdict > Verdict::Known;
        let is_alive = |row: &RecordedRow| {
            let is_near = |site: Site| (site.point, site.layer) == (row.site.point, row.site.layer);
            here().any(|other| is_near(other.site) && fails(other))
        };
        here().filter(|row| !fails(row) && !is_alive(row)).collect()
    }
}

/// Fails rows that must be bit-identical but are not.
fn demand(comparison: &mut Comparison, seen: &RecordedDump, identical: &[SiteBlock]) {
    for (row, seen) in comparison.outcome.rows.iter_mut().zip(&seen.rows) {
        let is_demanded = || identical.iter().any(|block| block.contains(seen));
        if row.verdict.is_good() && !seen.is_identical && is_demanded() {
            let told = row.judged().map_or(String::new(), |found| {
                format!("{} of {} values differ", found.elements - found.identical, found.elements)
            });
            row.reason = Some(format!("the baseline requires bit-identical values, but {told}"));
            row.verdict = Verdict::Fail;
        }
    }
}

/// Returns the selected sites that the baseline lists as compared but that are not compared now.
fn missing(comparison: &Comparison, seen: &RecordedDump, entry: &DumpEntry) -> Vec<String> {
    let there: HashSet<Site> = seen.rows.iter().map(|row| row.site).collect();
    let selection = &comparison.outcome.basis.selection;
    let sites = entry.compared.iter().flat_map(|compared| compared.block.sites());
    let missing = sites.filter(|site| !there.contains(site) && selection.takes(*site, &(0..0)));
    let told = |block: &SiteBlock| format!("{block}: listed in the baseline, but not compared in this run");
    let fewer = entry.compared.iter().flat_map(|ComparedSites { block, values }| {
        let rows = || seen.rows.iter().filter(|row| block.contains(row));
        let told = |block: &dyn Display, then, now, each| {
            format!("{block}: {each}{then} values compared in the baseline, only {now} now")
        };
        match *values {
            None => Vec::new(),
            Some(ValueCount::Each(then)) => {
                let fewer = || rows().filter(|row| row.elements < then);
                let least = fewer().map(|row| row.elements).min().unwrap_or(then);
                let places = SiteBlock::of(fewer().map(|row| row.site));
                places.iter().map(|block| told(block, then, least, "at each site ")).collect()
            }
            Some(ValueCount::Sum(then)) => {
                let is_whole = block.sites().all(|site| there.contains(&site));
                let now = rows().map(|row| row.elements).sum::<u64>();
                let is_fewer = is_whole && now < then;
                is_fewer.then(|| told(block, then, now, "")).into_iter().collect()
            }
        }
    });
    SiteBlock::of(missing).iter().map(told).chain(fewer).collect()
}
