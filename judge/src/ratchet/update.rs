//! Creation of a baseline from the results of a run.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::ratchet::baseline::{Baseline, ComparedSites, DumpEntry, TODO, WaivedFailure, WaiverGroup};
use crate::ratchet::blocks::SiteBlock;
use crate::report::{FailureSize, RecordedDump, RecordedReport, RecordedRow, Report};
use crate::verdict::{Verdict, Waiver};

/// Makes a baseline from a report that was not yet compared with one. Failures listed in `old` keep their
/// reason while they are unchanged; new failures need a reason from a person. Sites that must be
/// bit-identical stay so. With `bits`, all bit-identical sites are added.
///
/// # Errors
/// If nothing was compared.
pub fn updated(report: &Report, old: &Baseline, today: &str, bits: bool) -> Result<Baseline> {
    let seen = RecordedReport::of(report);
    let has_nothing = |dump: &&RecordedDump| dump.rows.is_empty();
    if seen.dumps.is_empty() || seen.dumps.iter().any(|dump| has_nothing(&dump)) {
        return Err(Error::Usage("nothing was compared, so the baseline was not changed".to_owned()));
    }
    seen.check_names()?;
    let mut dumps: Vec<DumpEntry> = seen.dumps.iter().map(|dump| entry(dump, old, bits)).collect();
    dumps.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Baseline { dumps, known: known(&seen, old, today) })
}

fn entry(dump: &RecordedDump, old: &Baseline, bits: bool) -> DumpEntry {
    let before = old.dumps.iter().find(|before| before.name == dump.name);
    let was_demanded = |row: &RecordedRow| {
        before.is_some_and(|before| before.identical.iter().any(|block| block.contains(row)))
    };
    let identical = dump.rows.iter().filter(|row| row.is_identical && (bits || was_demanded(row)));
    DumpEntry {
        name: dump.name.clone(),
        model: dump.model.clone(),
        sha256: dump.sha256.clone(),
        judged: Some(dump.judged.clone()),
        compared: ComparedSites::of(dump),
        identical: SiteBlock::of(identical.map(|row| row.site)),
    }
}

/// Returns the groups of the old baseline, reduced to what still fails, followed by one group without a
/// reason for each new cause.
fn known(seen: &RecordedReport, old: &Baseline, today: &str) -> Vec<WaiverGroup> {
    let mut kept: Vec<Vec<(&WaivedFailure, Vec<&RecordedRow>)>> =
        old.known.iter().map(|group| group.rows.iter().map(|entry| (entry, Vec::new())).collect()).collect();
    let mut new: BTreeMap<Option<&str>, Vec<(&RecordedDump, &RecordedRow)>> = BTreeMap::new();
    for dump in &seen.dumps {
        for row in dump.rows.iter().filter(|row| row.verdict == Verdict::Fail) {
            let is_same = |entry: &WaivedFailure| entry.judge(&dump.name, row) == Some(None);
            match kept.iter_mut().flatten().find(|(entry, _)| is_same(entry)) {
                Some((_, rows)) => rows.push(row),
                None => new.entry(row.cause.as_deref()).or_default().push((dump, row)),
            }
        }
    }
    let kept = old.known.iter().zip(kept).map(|(group, rows)| {
        let rows = rows.into_iter().flat_map(|(entry, rows)| still(entry, &rows)).collect();
        WaiverGroup { said: group.said.clone(), rows }
    });
    let todo = || Waiver { reason: TODO.to_owned(), link: String::new(), expires: today.to_owned() };
    let new = new.into_values().map(|rows| WaiverGroup { said: todo(), rows: entries(&rows) });
    let groups = kept.chain(new).filter(|group| !group.rows.is_empty());
    let mut groups: Vec<WaiverGroup> = groups.collect();
    for group in &mut groups {
        group.rows.sort_by_key(|entry| (entry.dump.clone(), entry.block.to_string()));
    }
    groups
}

/// Returns the part of an entry that still fails. Its figures change only if they have become much better.
fn still(entry: &WaivedFailure, rows: &[&RecordedRow]) -> Vec<WaivedFailure> {
    let noise = rows.iter().fold([0.0; 2], |[all, one], row| [row.noise[0].max(all), row.noise[1].max(one)]);
    let size = of(rows.iter().copied()).kept_as(entry.size, noise);
    let blocks = SiteBlock::of(rows.iter().map(|row| row.site)).into_iter();
    blocks.map(|block| WaivedFailure { block, size, ..entry.clone() }).collect()
}

/// Returns one entry per tap and layer, or one per tap if all its layers have the same cause.
fn entries(rows: &[(&RecordedDump, &RecordedRow)]) -> Vec<WaivedFailure> {
    let mut lines: BTreeMap<(&str, &str, Option<usize>), Vec<&RecordedRow>> = BTreeMap::new();
    for (dump, row) in rows {
        let layer = row.site.layer.filter(|_| row.cause.is_none());
        lines.entry((&dump.name, row.site.point.name(), layer)).or_default().push(row);
    }
    let line = |((dump, _, _), rows): ((&str, &str, Option<usize>), Vec<&RecordedRow>)| {
        let size = of(rows.iter().copied());
        let cause = rows[0].cause.clone();
        let blocks = SiteBlock::of(rows.iter().map(|row| row.site)).into_iter();
        let entries =
            blocks.map(|block| WaivedFailure { dump: dump.to_owned(), block, cause: cause.clone(), size });
        entries.collect::<Vec<_>>()
    };
    lines.into_iter().flat_map(line).collect()
}

/// Returns the largest figures of the rows, rounded up to two digits so that the same run stays within them.
fn of<'r>(rows: impl Iterator<Item = &'r RecordedRow>) -> FailureSize {
    let size = rows.map(|row| row.size).reduce(FailureSize::or).unwrap_or_default();
    let [bound_ratio, rel_l2, max_scaled, sigmas] =
        [size.bound_ratio, size.rel_l2, size.max_scaled, size.sigmas].map(|figure| figure.map(two_digits));
    FailureSize { bound_ratio, rel_l2, max_scaled, sigmas, ..size }
}

fn two_digits(figure: f64) -> f64 {
    if figure == 0.0 || !figure.is_finite() {
        return figure;
    }
    let unit = 10f64.powf(figure.abs().log10().floor() - 1.0);
    // Formatted and parsed, so that the number has exactly two significant digits.
    format!("{:.1e}", (figure / unit).ceil() * unit).parse().unwrap_or(figure)
}
