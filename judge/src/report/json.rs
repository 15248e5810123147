//! Conversion of a report to `report.json`.

use serde_json::Value;

use crate::checkpoint::Site;
use crate::dump::Producer;
use crate::report::schema::{
    Divergence, ElementRow, ExactRow, ModelRow, Program, Reference, ReportFile, ReportRow, SCHEMA, ShardRow,
    StartRow, VERSION, position,
};
use crate::report::{Comparison, Report, RunFailure, advice, headline};
use crate::verdict::{Finding, Outcome, SiteResult, Verdict};

/// Returns the report as JSON with a trailing newline.
pub fn json(report: &Report) -> String {
    ReportFile::from(report).text()
}

/// Returns the name and version of this program, as in its reports.
pub fn program() -> Value {
    serde_json::to_value(Program::this()).expect("the program's version can be written as JSON")
}

impl From<&Report> for ReportFile {
    fn from(report: &Report) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            version: VERSION,
            xcheck: Program::this(),
            command: report.command.clone(),
            verdict: report.verdict().name().to_owned(),
            reason: report.reason().map(str::to_owned),
            error: None,
            model: common_model(report),
            server: report.served.clone(),
            references: report.results.iter().map(|result| reference(report, result)).collect(),
            architectures: report.rollup(),
        }
    }
}

impl From<&RunFailure> for ReportFile {
    fn from(refusal: &RunFailure) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            version: VERSION,
            xcheck: Program::this(),
            command: refusal.command.clone(),
            verdict: RunFailure::WORD.to_owned(),
            reason: None,
            error: Some(refusal.error.clone()),
            model: ModelRow::default(),
            server: None,
            references: Vec::new(),
            architectures: Vec::new(),
        }
    }
}

/// Returns the facts that all models of a report share.
fn common_model(report: &Report) -> ModelRow {
    let same = |field: fn(ModelRow) -> Option<String>| {
        let mut values = report.results.iter().map(|result| field(result.model.clone().into()));
        let first = values.next()?;
        values.all(|value| value == first).then_some(first)?
    };
    ModelRow {
        name: same(|model| model.name),
        architecture: same(|model| model.architecture),
        format: same(|model| model.format),
        quantisation: same(|model| model.quantisation),
        sha256: same(|model| model.sha256),
    }
}

fn reference(report: &Report, result: &Comparison) -> Reference {
    let outcome: &Outcome = &result.outcome;
    let finding = |finding: &Finding| Finding {
        confirm: headline::confirm_command(result, finding),
        ..finding.clone()
    };
    Reference {
        name: outcome.subject.name.clone(),
        producer: Producer { rounding: None, ..outcome.subject.producer.clone() },
        model: result.model.clone().into(),
        numerics: outcome.subject.numerics.clone(),
        role: outcome.subject.role,
        mode: outcome.subject.mode,
        gate: outcome.subject.gate,
        verdict: outcome.verdict,
        reason: outcome.reason.clone(),
        sentence: (!outcome.verdict.is_good()).then(|| headline::sentence(outcome)),
        notes: outcome.notes.clone(),
        coverage: outcome.coverage.clone(),
        first_divergence: outcome.first_divergence().map(divergence),
        findings: outcome.findings.iter().map(finding).collect(),
        next: advice::commands(report, result).iter().map(|command| advice::shell(command)).collect(),
        remedy: remedy(result),
        tokens: result.tokens.clone().into(),
        checkpoints: outcome.summaries(&report.checkpoints),
        results: outcome.rows.iter().map(ReportRow::from).collect(),
        shard: ShardRow::of(result),
    }
}

fn remedy(result: &Comparison) -> Option<String> {
    let is_in_doubt = result.outcome.verdict == Verdict::Inconclusive;
    is_in_doubt.then(|| advice::remedy(result)).filter(|remedy| !remedy.is_empty())
}

fn divergence(row: &SiteResult) -> Divergence {
    let Site { point, layer, pass } = row.site;
    Divergence {
        tap: point,
        checkpoint: row.checkpoint(),
        layer,
        pass,
        position: position(row),
        tokens: row.positions.len(),
        judged: if row.is_judged_by_accumulated() { "accumulated" } else { "local" }.to_owned(),
        since: row.since.iter().map(StartRow::from).collect(),
        reason: row.reason.clone(),
        max_abs: row.judged().map(|found| found.errors.max_abs),
        bound_ratio: row.bound_ratio(),
        exact: row.explained.as_ref().map(|explained| ExactRow::from(explained).in_short()),
        tolerance: row.tolerance.max_abs,
        element: ElementRow::new(row.judged()),
    }
}
