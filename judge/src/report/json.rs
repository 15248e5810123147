//! `report.json`: the report for other programs, and its reader. The meaning of a field never changes within
//! a version. New fields can be added without a new version.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Serializer, Value};

use crate::check::{Gate, Mode, Role};
use crate::checkpoint::{Checkpoint, Point, Site};
use crate::report::checkpoint_line::CheckpointLine;
use crate::report::enum_name::EnumName;
use crate::report::figures::{ElementRow, ErrorFigures, JsonNumber};
use crate::report::finding::FindingRow;
use crate::report::json_layout::RowFormatter;
use crate::report::rows::{ExactRow, ReportRow, SiteRow, StartRow, position, starts};
use crate::report::shard_row::ShardRow;
use crate::report::tokens::TokensRow;
use crate::report::{
    ArchitectureSummary, Comparison, ModelRecord, Report, RunFailure, ServerReport, advice, headline,
};
use crate::verdict::{Coverage, Outcome, SiteResult, Verdict};

pub(super) const SCHEMA: &str = "xcheck-report";
pub(super) const VERSION: u32 = 4;

/// Returns an error unless this program reads reports of this schema and version. Version 3 has other names for some fields.
pub(super) fn check_version(schema: &str, version: u32) -> Result<(), String> {
    match schema == SCHEMA && (3..=VERSION).contains(&version) {
        true => Ok(()),
        false => {
            Err(format!("unsupported schema {schema} version {version}, expected {SCHEMA} 3 or {VERSION}"))
        }
    }
}

/// Returns the report as JSON with a trailing newline.
pub fn json(report: &Report) -> String {
    ReportFile::new(report).text()
}

/// Returns the report as a JSON value.
pub fn value(report: &Report) -> Value {
    ReportFile::new(report).value()
}

/// Returns the report of a run error as a JSON value.
pub fn refused_value(refusal: &RunFailure) -> Value {
    ReportFile::refused(refusal).value()
}

/// Returns the report of a run error as JSON, in the same form.
pub fn refused(refusal: &RunFailure) -> String {
    ReportFile::refused(refusal).text()
}

#[derive(Serialize, Deserialize)]
pub(super) struct ReportFile {
    pub schema: String,
    pub version: u32,
    pub xcheck: Program,
    pub command: Vec<String>,
    verdict: String,
    /// Reason why the verdict is not a pass, if it concerns no single dump.
    reason: Option<String>,
    /// Error message of a run without a verdict.
    pub error: Option<String>,
    model: ModelRow,
    /// Results of a server's own checks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerReport>,
    pub references: Vec<Reference>,
    /// Results per architecture, in a report of several models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    architectures: Vec<ArchitectureRow>,
}

impl ReportFile {
    fn text(&self) -> String {
        let mut text = Vec::new();
        let mut serializer = Serializer::with_formatter(&mut text, RowFormatter::default());
        self.serialize(&mut serializer).expect("every key is a string, every float a Number");
        String::from_utf8(text).expect("JSON is UTF-8") + "\n"
    }

    fn value(&self) -> Value {
        serde_json::to_value(self).expect("every key is a string, every float a Number")
    }

    fn new(report: &Report) -> Self {
        let references = report.results.iter();
        Self {
            schema: SCHEMA.to_owned(),
            version: VERSION,
            xcheck: Program::this(),
            command: report.command.clone(),
            verdict: report.verdict().name().to_owned(),
            reason: report.reason().map(str::to_owned),
            error: None,
            model: ModelRow::common(report),
            server: report.served.clone(),
            references: references.map(|result| Reference::new(report, result)).collect(),
            architectures: report.rollup().iter().map(ArchitectureRow::new).collect(),
        }
    }

    fn refused(refusal: &RunFailure) -> Self {
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

/// Returns the name and version of this program, as in its reports.
pub fn program() -> Value {
    serde_json::to_value(Program::this()).expect("it is plain data")
}

/// The program that wrote a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Program {
    version: String,
    commit: Option<String>,
}

impl Program {
    pub fn this() -> Self {
        let commit = option_env!("XCHECK_COMMIT").map(str::to_owned);
        Self { version: env!("CARGO_PKG_VERSION").to_owned(), commit }
    }
}

/// The model of a report. A field is null if it is unknown, or differs between the references.
#[derive(Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ModelRow {
    name: Option<String>,
    architecture: Option<String>,
    format: Option<String>,
    quantisation: Option<String>,
    sha256: Option<String>,
}

impl ModelRow {
    fn new(model: &ModelRecord) -> Self {
        Self {
            name: Some(model.name.clone()),
            architecture: Some(model.architecture.clone()),
            format: Some(model.format.clone()),
            quantisation: Some(model.quantisation.clone()),
            sha256: model.sha256.clone(),
        }
    }

    fn common(report: &Report) -> Self {
        let same = |field: fn(Self) -> Option<String>| {
            let mut values = report.results.iter().map(|result| field(Self::new(&result.model)));
            let first = values.next()?;
            values.all(|value| value == first).then_some(first)?
        };
        Self {
            name: same(|model| model.name),
            architecture: same(|model| model.architecture),
            format: same(|model| model.format),
            quantisation: same(|model| model.quantisation),
            sha256: same(|model| model.sha256),
        }
    }

    pub fn record(self) -> ModelRecord {
        ModelRecord {
            name: self.name.unwrap_or_default(),
            architecture: self.architecture.unwrap_or_default(),
            format: self.format.unwrap_or_default(),
            quantisation: self.quantisation.unwrap_or_default(),
            sha256: self.sha256,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct Reference {
    pub name: String,
    pub producer: ProducerRow,
    pub model: ModelRow,
    /// Numerics of our engine; for two dumps, the producer of the candidate.
    pub numerics: String,
    /// Role of the named dump.
    pub role: EnumName<Role>,
    pub mode: EnumName<Mode>,
    /// Criterion of the verdict.
    pub gate: EnumName<Gate>,
    pub verdict: EnumName<Verdict>,
    pub reason: Option<String>,
    /// The failure in a sentence; null after a pass.
    #[serde(default)]
    sentence: Option<String>,
    pub notes: Vec<String>,
    pub coverage: Coverage,
    first_divergence: Option<Divergence>,
    pub findings: Vec<FindingRow>,
    /// Next commands, quoted for a shell.
    #[serde(default)]
    next: Vec<String>,
    /// Remedy for an undetermined comparison.
    #[serde(default)]
    remedy: Option<String>,
    #[serde(default)]
    pub tokens: TokensRow,
    pub checkpoints: Vec<CheckpointRow>,
    pub results: Vec<ReportRow>,
    /// Data to merge the report of a shard with others.
    pub shard: Option<ShardRow>,
}

impl Reference {
    fn new(report: &Report, result: &Comparison) -> Self {
        let outcome: &Outcome = &result.outcome;
        let summaries = outcome.summaries(&report.checkpoints);
        Self {
            name: outcome.subject.name.clone(),
            producer: ProducerRow::new(outcome),
            model: ModelRow::new(&result.model),
            numerics: outcome.subject.numerics.clone(),
            role: EnumName(outcome.subject.role),
            mode: EnumName(outcome.subject.mode),
            gate: EnumName(outcome.subject.gate),
            verdict: EnumName(outcome.verdict),
            reason: outcome.reason.clone(),
            sentence: (!outcome.verdict.is_good()).then(|| headline::sentence(outcome)),
            notes: outcome.notes.clone(),
            coverage: outcome.coverage.clone(),
            first_divergence: outcome.first_divergence().map(Divergence::new),
            findings: outcome.findings.iter().map(|finding| FindingRow::of(result, finding)).collect(),
            next: advice::commands(report, result).iter().map(|command| advice::shell(command)).collect(),
            remedy: remedy(result),
            tokens: TokensRow::from(&result.tokens),
            checkpoints: summaries
                .iter()
                .map(CheckpointLine::worst)
                .map(|line| CheckpointRow::new(&line))
                .collect(),
            results: outcome.rows.iter().map(ReportRow::from).collect(),
            shard: ShardRow::of(result),
        }
    }
}

fn remedy(result: &Comparison) -> Option<String> {
    let is_in_doubt = result.outcome.verdict == Verdict::Inconclusive;
    is_in_doubt.then(|| advice::remedy(result)).filter(|remedy| !remedy.is_empty())
}

#[derive(Serialize, Deserialize)]
pub(super) struct ProducerRow {
    name: String,
    version: String,
    settings: Map<String, Value>,
}

impl ProducerRow {
    fn new(outcome: &Outcome) -> Self {
        let crate::dump::Producer { name, version, settings, rounding: _ } = outcome.subject.producer.clone();
        Self { name, version, settings }
    }
}

impl From<ProducerRow> for crate::dump::Producer {
    fn from(ProducerRow { name, version, settings }: ProducerRow) -> Self {
        Self { name, version, settings, rounding: None }
    }
}

/// First failing row, with the figures that fail.
#[derive(Serialize, Deserialize)]
struct Divergence {
    tap: EnumName<Point>,
    checkpoint: EnumName<Checkpoint>,
    layer: Option<usize>,
    pass: Option<usize>,
    position: Option<usize>,
    tokens: usize,
    judged: String,
    since: Vec<StartRow>,
    reason: Option<String>,
    max_abs: Option<JsonNumber>,
    #[serde(alias = "headroom")]
    bound_ratio: Option<JsonNumber>,
    exact: Option<ExactRow>,
    tolerance: JsonNumber,
    #[serde(flatten)]
    element: ElementRow,
}

impl Divergence {
    fn new(row: &SiteResult) -> Self {
        let Site { point, layer, pass } = row.site;
        Self {
            tap: EnumName(point),
            checkpoint: EnumName(row.checkpoint()),
            layer,
            pass,
            position: position(row),
            tokens: row.positions.len(),
            judged: if row.is_judged_by_accumulated() { "accumulated" } else { "local" }.to_owned(),
            since: starts(row),
            reason: row.reason.clone(),
            max_abs: row.judged().map(|found| JsonNumber(found.errors.max_abs)),
            bound_ratio: row.bound_ratio().map(JsonNumber),
            exact: row.explained.as_ref().map(|explained| ExactRow::from(explained).in_short()),
            tolerance: JsonNumber(row.tolerance.max_abs),
            element: ElementRow::new(row.judged()),
        }
    }
}

/// Results of all dumps of one architecture.
#[derive(Serialize, Deserialize)]
pub struct ArchitectureRow {
    architecture: String,
    models: Vec<String>,
    dumps: usize,
    verdict: EnumName<Verdict>,
    checkpoints: Vec<CheckpointRow>,
}

impl ArchitectureRow {
    /// Makes the row of an architecture.
    pub fn new(summary: &ArchitectureSummary) -> Self {
        Self {
            architecture: summary.architecture.clone(),
            models: summary.models.iter().cloned().collect(),
            dumps: summary.dumps,
            verdict: EnumName(summary.verdict),
            checkpoints: summary.checkpoints.iter().map(CheckpointRow::new).collect(),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct CheckpointRow {
    pub checkpoint: EnumName<Checkpoint>,
    number: usize,
    verdict: EnumName<Verdict>,
    #[serde(alias = "introduced")]
    local: Option<ErrorFigures>,
    #[serde(alias = "total")]
    accumulated: Option<ErrorFigures>,
    #[serde(alias = "headroom")]
    bound_ratio: Option<JsonNumber>,
    #[serde(alias = "beyond")]
    over: Option<usize>,
    tolerance: Option<JsonNumber>,
    worst: Option<SiteRow>,
}

impl CheckpointRow {
    fn new(line: &CheckpointLine) -> Self {
        Self {
            checkpoint: EnumName(line.checkpoint),
            number: line.checkpoint.number(),
            verdict: EnumName(line.verdict),
            local: line.local.map(ErrorFigures::from),
            accumulated: line.accumulated.map(ErrorFigures::from),
            bound_ratio: line.bound_ratio.map(JsonNumber),
            over: line.over,
            tolerance: line.tolerance.map(JsonNumber),
            worst: line.site.map(SiteRow::from),
        }
    }
}
