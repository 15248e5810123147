//! Merging of shard reports. Nothing is recomputed: the results of all units are combined and judged as if
//! one run had found them.

use std::collections::BTreeMap;

use crate::checkpoint::Site;
use crate::error::{Error, Result};
use crate::report::schema::ReportRow;
use crate::report::{Comparison, ModelRecord, Report, ReportContent, ShardedComparison, Timing};
use crate::verdict::{Basis, Evidence, SiteResult, Verdict, conclude, once_each};

/// Key of [`ShardedComparison::asked`] for the build of the program. An interrupted run can only be resumed
/// by the same build.
pub const BUILD: &str = "build";

/// Merges shard reports, given as (name for messages, report). `command` is the command line of the merge.
///
/// # Errors
/// If there are no reports, a report is not from a shard, or two reports differ in plan, model or settings.
pub fn merge(reports: Vec<(String, ReportContent)>, command: Vec<String>, timing: Timing) -> Result<Report> {
    let (mut parts, mut remarks) = (Vec::new(), Vec::new());
    for (name, read) in reports {
        match read {
            ReportContent::Report(report) => parts.push((name.clone(), part(&name, *report)?)),
            ReportContent::Refused(error) => {
                remarks.push(format!("{name}: the run ended without a verdict: {error}"))
            }
        }
    }
    let Some((first_name, first)) = parts.first() else {
        return Err(Error::Usage(format!("no report to merge; {}", remarks.join("; "))));
    };
    let told = identity(first)?;
    for (name, other) in &parts[1..] {
        let mut others = identity(other)?;
        // Builds of one version for different machines may be mixed.
        others.extend(told.get_key_value(BUILD).map(|(what, value)| (what.clone(), value.clone())));
        if let Some((what, value, other)) = difference(&told, &others) {
            return Err(Error::Usage(format!(
                "{first_name} and {name} are parts of different comparisons: {what}: {value} and {other}"
            )));
        }
    }
    let tokens = parts.iter().fold(first.tokens.clone(), |tokens, (_, part)| tokens.with(&part.tokens));
    let first = Comparison { tokens, ..first.clone() };
    let said = once_each(
        parts.iter().flat_map(|(_, part)| &part.sharded.as_ref().expect("the report is of a shard").remarks),
    );
    let found = parts.iter().map(|(name, part)| (name.as_str(), evidence(part)));
    let found = united(found.collect());
    check_edges(&found, &first)?;
    let comparison = concluded(first, found, said, remarks, timing)?;
    let checkpoints = comparison.outcome.basis.selection.checkpoints.clone();
    Ok(Report { command, results: vec![comparison], checkpoints, served: None })
}

/// Returns the comparison of a shard's report.
fn part(name: &str, report: Report) -> Result<Comparison> {
    let refuse = |problem: &str| Error::Usage(format!("{name}: {problem}"));
    let [part] = <[Comparison; 1]>::try_from(report.results)
        .map_err(|_| refuse("expected a report of one dump, made with --shard"))?;
    match part.sharded {
        Some(_) => Ok(part),
        None => Err(refuse(
            "expected a report of a part, made with --shard; this report is of the whole \
            comparison",
        )),
    }
}

/// Returns the settings that must be equal in two shards, by name.
fn identity(part: &Comparison) -> Result<BTreeMap<String, String>> {
    let Some(sharded) = &part.sharded else {
        return Err(Error::Usage(
            "expected a report of a part, this one is of the whole comparison".to_owned(),
        ));
    };
    let (outcome, basis) = (&part.outcome, &part.outcome.basis);
    let mut told: BTreeMap<String, String> = sharded.asked.clone();
    let more = [
        ("model", told_of(&part.model)),
        ("dump", outcome.subject.name.clone()),
        ("producer", format!("{:?}", outcome.subject.producer)),
        ("numerics", outcome.subject.numerics.clone()),
        ("mode", outcome.subject.mode.name().to_owned()),
        ("gate", outcome.subject.gate.name().to_owned()),
        ("role", outcome.subject.role.name().to_owned()),
        ("selection", format!("{:?}", basis.selection)),
        ("units", format!("{:?}", sharded.units)),
        ("plan", sharded.plan.clone()),
    ];
    told.extend(more.map(|(what, value)| (what.to_owned(), value)));
    Ok(told)
}

/// Describes all recorded facts of a model.
fn told_of(ModelRecord { name, architecture, format, quantisation, sha256 }: &ModelRecord) -> String {
    let hash = sha256.as_ref().map_or(String::new(), |sha256| format!(", SHA-256 {sha256}"));
    format!("{name}, {architecture}, {format}, {quantisation}{hash}")
}

/// Returns the first entry that differs between two identities, with both values.
fn difference<'i>(
    one: &'i BTreeMap<String, String>,
    other: &'i BTreeMap<String, String>,
) -> Option<(&'i str, &'i str, &'i str)> {
    let value = |of: &'i BTreeMap<String, String>, what: &str| of.get(what).map_or("", String::as_str);
    let mut all =
        one.keys().chain(other.keys()).map(|what| (what.as_str(), value(one, what), value(other, what)));
    all.find(|(_, one, other)| one != other)
}

/// Returns the results of `report` for the same comparison as `part`.
///
/// # Errors
/// If the report belongs to another comparison; the message says what differs.
pub fn found_before(report: Report, part: &Comparison) -> Result<Vec<(usize, Evidence)>, String> {
    let mut found = Vec::new();
    let now = identity(part).map_err(|error| error.to_string())?;
    for before in &report.results {
        let told = identity(before).map_err(|error| error.to_string())?;
        if let Some((what, before, now)) = difference(&told, &now) {
            return Err(format!("{what} was {before} and is now {now}"));
        }
        found.extend(evidence(before));
    }
    Ok(found)
}

/// Returns the results of each unit with its rows.
fn evidence(part: &Comparison) -> Vec<(usize, Evidence)> {
    let (outcome, basis) = (&part.outcome, &part.outcome.basis);
    let rows = |found: &Evidence| -> Vec<SiteResult> {
        let is_of = |row: &&SiteResult| found.unit.contains(row.site, basis.slides.len());
        outcome.rows.iter().filter(is_of).cloned().collect()
    };
    basis
        .evidence
        .iter()
        .map(|(number, found)| (*number, Evidence { rows: rows(found), ..found.clone() }))
        .collect()
}

/// Returns each unit once. If two reports of a unit differ at a row, that row fails.
fn united(found: Vec<(&str, Vec<(usize, Evidence)>)>) -> Vec<(usize, Evidence)> {
    let mut units: BTreeMap<usize, (&str, Evidence)> = BTreeMap::new();
    for (name, found) in found {
        for (number, other) in found {
            match units.get_mut(&number) {
                None => drop(units.insert(number, (name, other))),
                Some((first, known)) => {
                    known.rows = agreed(std::mem::take(&mut known.rows), other.rows, [*first, name])
                }
            }
        }
    }
    units.into_iter().map(|(number, (_, found))| (number, found)).collect()
}

/// Checks that neighbouring units have read the same values at their boundary. The values differ if the dump
/// changed between the runs.
fn check_edges(found: &[(usize, Evidence)], of: &Comparison) -> Result<()> {
    let next_to = |pair: &&[(usize, Evidence)]| {
        let part = |at: usize| pair[at].1.unit.part();
        let meet = part(0).zip(part(1)).is_some_and(|(one, other)| one.layers.end == other.layers.start);
        let [(_, one), (_, other)] = pair else { return false };
        let edges = one.edges[1].as_ref().zip(other.edges[0].as_ref());
        meet && pair[0].0 + 1 == pair[1].0 && edges.is_some_and(|(one, other)| one != other)
    };
    let Some(pair) = found.windows(2).find(next_to) else { return Ok(()) };
    Err(Error::Usage(format!(
        "the dump {} changed between the runs of unit {} ({}) and unit {} ({}): the values at their boundary \
         differ; judge all shards with the same dump",
        of.outcome.subject.name,
        pair[0].0 + 1,
        pair[0].1.unit,
        pair[1].0 + 1,
        pair[1].1.unit
    )))
}

/// Combines the rows that two reports have of the same unit. A row fails if the two differ in any bit.
fn agreed(rows: Vec<SiteResult>, others: Vec<SiteResult>, names: [&str; 2]) -> Vec<SiteResult> {
    let written = |row: &SiteResult| serde_json::to_string(&ReportRow::from(row)).unwrap_or_default();
    let [one, other] = names;
    let parted = |mut row: SiteResult| {
        let why =
            format!("not deterministic: the reports {one} and {other} have different figures for this row");
        (row.verdict, row.reason) = (Verdict::Fail, Some(why));
        row
    };
    let mut left: Vec<(Site, SiteResult)> = others.into_iter().map(|row| (row.site, row)).collect();
    let mut all: Vec<SiteResult> = Vec::new();
    for row in rows {
        let twin = left.iter().position(|(site, _)| *site == row.site).map(|at| left.remove(at).1);
        let is_same = twin.is_some_and(|twin| written(&twin) == written(&row));
        all.push(if is_same { row } else { parted(row) });
    }
    all.extend(left.into_iter().map(|(_, row)| parted(row)));
    all.sort_by_key(|row| row.site.flow_order());
    all
}

fn concluded(
    first: Comparison,
    found: Vec<(usize, Evidence)>,
    said: Vec<String>,
    remarks: Vec<String>,
    timing: Timing,
) -> Result<Comparison> {
    let (outcome, sharded) = (first.outcome, first.sharded.expect("the report is of a shard"));
    let is_complete = found.len() == sharded.units.len();
    let supposed = sharded.asked.get("supposed").filter(|supposed| !supposed.is_empty());
    if let Some(supposed) = supposed.filter(|_| is_complete && found.iter().all(|(_, found)| found.made == 0))
    {
        return Err(Error::Usage(format!("{supposed}: no effect in any part")));
    }
    let basis = Basis {
        wanted: sharded.units.iter().cloned().enumerate().collect(),
        is_whole: true,
        evidence: Vec::new(),
        ..outcome.basis
    };
    let mut outcome = conclude(outcome.subject, basis, found);
    outcome.notes.extend(said.clone());
    outcome.notes.extend(remarks);
    let sharded = (!is_complete).then_some(ShardedComparison { remarks: said, ..sharded });
    Ok(Comparison { outcome, timing, sharded, ..first })
}
