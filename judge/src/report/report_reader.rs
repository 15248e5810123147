//! Reader of `report.json`.

use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::input;
use crate::report::schema::{Program, Reference, ReportFile};
use crate::report::{Comparison, Report, Timing};
use crate::verdict::{Basis, ComparisonSubject, Outcome};

/// The content of a report file.
#[derive(Clone, Debug)]
pub enum ReportContent {
    /// A report with a verdict.
    Report(Box<Report>),
    /// Error message of a run without a verdict.
    Refused(String),
}

/// Reads a report file. Does not restore its time. Restores its arguments only for a shard.
///
/// # Errors
/// If the file cannot be read, is not a report, or was written by another version of xcheck.
pub fn read(path: &Path) -> Result<ReportContent> {
    of_file(path, parse)
}

/// Reads a file with a parser of reports.
pub(crate) fn of_file<T>(path: &Path, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T> {
    let text = input::text(path)?;
    parse(&text).map_err(|problem| Error::BadContainer {
        file: path.to_owned(),
        format: "xcheck report",
        problem,
    })
}

/// Parses a report.
///
/// # Errors
/// The errors of [`read`], as text.
pub fn parse(text: &str) -> Result<ReportContent, String> {
    content(ReportFile::parse(text, check_program)?)
}

fn check_program(program: &Program) -> Result<(), String> {
    let this = Program::this();
    match *program == this {
        true => Ok(()),
        false => Err(format!("written by {program:?}, but this is {this:?}; use one build for all parts")),
    }
}

/// Returns the content of a parsed file.
///
/// # Errors
/// If the data of a shard is invalid, or the verdict is not that of the results.
pub(crate) fn content(file: ReportFile) -> Result<ReportContent, String> {
    if let Some(error) = file.error {
        return Ok(ReportContent::Refused(error));
    }
    let checkpoints = checkpoints(&file.references);
    let results = file.references.into_iter().map(comparison).collect::<Result<_, _>>()?;
    let report = Report { command: file.command, results, checkpoints, served: file.server };
    let (stated, verdict) = (file.verdict, report.verdict().name());
    if stated != verdict {
        return Err(format!("the verdict is stated as {stated}, but the results give {verdict}"));
    }
    Ok(ReportContent::Report(Box::new(report)))
}

/// Returns the requested checkpoints.
fn checkpoints(references: &[Reference]) -> Vec<Checkpoint> {
    let told = references.iter().flat_map(|reference| &reference.checkpoints);
    let mut all: Vec<Checkpoint> = told.map(|row| row.checkpoint).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn comparison(reference: Reference) -> Result<Comparison, String> {
    let read = reference.shard.map(|shard| shard.read()).transpose()?;
    let (basis, sharded, again, inspect) = match read {
        Some((basis, sharded, again, inspect)) => (basis, Some(sharded), again, inspect),
        None => (Basis::default(), None, Vec::new(), None),
    };
    let subject = ComparisonSubject {
        name: reference.name,
        producer: reference.producer,
        numerics: reference.numerics,
        role: reference.role,
        // The report only says at which checkpoints a case was compared.
        is_case: false,
        gate: reference.gate,
        mode: reference.mode,
    };
    let outcome = Outcome {
        subject,
        verdict: reference.verdict,
        reason: reference.reason,
        notes: reference.notes,
        findings: reference.findings,
        coverage: reference.coverage,
        rows: reference.results.into_iter().map(Into::into).collect(),
        basis,
    };
    let timing = Timing { started: SystemTime::UNIX_EPOCH, took: Duration::ZERO };
    Ok(Comparison {
        model: reference.model.into(),
        outcome,
        again,
        reference: inspect,
        tokens: reference.tokens.into(),
        timing,
        sharded,
    })
}
