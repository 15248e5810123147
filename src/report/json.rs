//! `report.json`: the report for other programs. A field keeps its meaning; new fields may be added; the
//! version grows when a meaning changes.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::change::Kind;
use crate::checkpoint::{Checkpoint, Point, Site};
use crate::compare::{Errors, Explained, Floor, Measurement, Row, Tolerance};
use crate::diagnose::{Coverage, Finding, Outcome, Summary};
use crate::exact::{Bias, Side, Strand};
use crate::report::figures::{Element, Figures, Nonfinite, Number};
use crate::report::{ModelRecord, Refusal, Report};

const SCHEMA: &str = "xcheck-report";
const VERSION: u32 = 3;

/// The report as JSON, one line break at its end.
pub fn json(report: &Report) -> String {
    File::new(report).text()
}

/// The error as JSON, in the same form.
pub fn refused(refusal: &Refusal) -> String {
    File::refused(refusal).text()
}

#[derive(Serialize)]
struct File<'r> {
    schema: &'static str,
    version: u32,
    xcheck: Program,
    command: &'r [String],
    verdict: &'static str,
    /// Why the verdict is no pass, where no single reference tells.
    reason: Option<&'static str>,
    /// The message of a run that came to no verdict.
    error: Option<&'r str>,
    model: Model<'r>,
    references: Vec<Reference<'r>>,
}

impl<'r> File<'r> {
    fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("every key is a string, every float a Number") + "\n"
    }

    fn new(report: &'r Report) -> Self {
        let references = report.results.iter();
        Self {
            schema: SCHEMA,
            version: VERSION,
            xcheck: Program::THIS,
            command: &report.command,
            verdict: report.verdict().name(),
            reason: report.reason(),
            error: None,
            model: Model::common(report),
            references: references
                .map(|result| Reference::new(&result.model, &result.outcome, &report.checkpoints))
                .collect(),
        }
    }

    fn refused(refusal: &'r Refusal) -> Self {
        Self {
            schema: SCHEMA,
            version: VERSION,
            xcheck: Program::THIS,
            command: &refusal.command,
            verdict: Refusal::WORD,
            reason: None,
            error: Some(&refusal.error),
            model: Model::default(),
            references: Vec::new(),
        }
    }
}

#[derive(Serialize)]
struct Program {
    version: &'static str,
    commit: Option<&'static str>,
}

impl Program {
    const THIS: Self = Self { version: env!("CARGO_PKG_VERSION"), commit: option_env!("XCHECK_COMMIT") };
}

/// A field is null where it is not known, or not the same for all references.
#[derive(Default, Serialize)]
struct Model<'r> {
    name: Option<&'r str>,
    architecture: Option<&'r str>,
    format: Option<&'r str>,
    quantisation: Option<&'r str>,
    sha256: Option<&'r str>,
}

impl<'r> Model<'r> {
    fn new(model: &'r ModelRecord) -> Self {
        Self {
            name: Some(&model.name),
            architecture: Some(&model.architecture),
            format: Some(&model.format),
            quantisation: Some(&model.quantisation),
            sha256: model.sha256.as_deref(),
        }
    }

    fn common(report: &'r Report) -> Self {
        let same = |field: fn(&Self) -> Option<&'r str>| {
            let mut values = report.results.iter().map(|result| field(&Self::new(&result.model)));
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
}

#[derive(Serialize)]
struct Reference<'r> {
    name: &'r str,
    producer: Producer<'r>,
    model: Model<'r>,
    /// What our engine ran; of two dumps, the producer of the candidate.
    numerics: &'r str,
    /// What the named dump is: "candidate" or "reference".
    role: &'static str,
    mode: &'static str,
    /// What decided: "rounding" or "tolerance".
    gate: &'static str,
    verdict: &'static str,
    reason: Option<&'r str>,
    notes: &'r [String],
    coverage: CoverageRow<'r>,
    first_divergence: Option<Divergence<'r>>,
    findings: Vec<FindingRow<'r>>,
    checkpoints: Vec<CheckpointRow>,
    results: Vec<ResultRow<'r>>,
}

impl<'r> Reference<'r> {
    fn new(model: &'r ModelRecord, outcome: &'r Outcome, checkpoints: &[Checkpoint]) -> Self {
        Self {
            name: &outcome.name,
            producer: Producer::new(outcome),
            model: Model::new(model),
            numerics: &outcome.numerics,
            role: outcome.role.name(),
            mode: outcome.mode.name(),
            gate: outcome.gate.name(),
            verdict: outcome.verdict.name(),
            reason: outcome.reason.as_deref(),
            notes: &outcome.notes,
            coverage: CoverageRow::from(&outcome.coverage),
            first_divergence: outcome.first_divergence().map(Divergence::new),
            findings: outcome.findings.iter().map(FindingRow::from).collect(),
            checkpoints: outcome.summaries(checkpoints).iter().map(CheckpointRow::new).collect(),
            results: outcome.rows.iter().map(ResultRow::new).collect(),
        }
    }
}

#[derive(Serialize)]
struct Producer<'r> {
    name: &'r str,
    version: &'r str,
    settings: &'r Map<String, Value>,
}

impl<'r> Producer<'r> {
    fn new(outcome: &'r Outcome) -> Self {
        let producer = &outcome.producer;
        Self { name: &producer.name, version: &producer.version, settings: &producer.settings }
    }
}

#[derive(Serialize)]
struct CoverageRow<'r> {
    taps_compared: usize,
    taps_expected: usize,
    elements: usize,
    taps_identical: usize,
    elements_identical: usize,
    skipped: &'r [String],
}

impl<'r> From<&'r Coverage> for CoverageRow<'r> {
    fn from(coverage: &'r Coverage) -> Self {
        let &Coverage {
            taps_compared,
            taps_expected,
            elements,
            taps_identical,
            elements_identical,
            ref skipped,
        } = coverage;
        Self { taps_compared, taps_expected, elements, taps_identical, elements_identical, skipped }
    }
}

/// The first row that fails, with the figures it fails by.
#[derive(Serialize)]
struct Divergence<'r> {
    tap: Point,
    checkpoint: Checkpoint,
    layer: Option<usize>,
    pass: Option<usize>,
    position: Option<usize>,
    tokens: usize,
    judged: &'static str,
    since: Vec<Start>,
    reason: Option<&'r str>,
    max_abs: Option<Number>,
    headroom: Option<Number>,
    exact: Option<ExactRow<'r>>,
    tolerance: Number,
    #[serde(flatten)]
    element: Element<'r>,
}

impl<'r> Divergence<'r> {
    fn new(row: &'r Row) -> Self {
        let Site { point, layer, pass } = row.site;
        Self {
            tap: point,
            checkpoint: row.checkpoint(),
            layer,
            pass,
            position: position(row),
            tokens: row.positions.len(),
            judged: if row.introduced.is_some() { "introduced" } else { "total" },
            since: starts(row),
            reason: row.reason.as_deref(),
            max_abs: row.judged().map(|found| Number(found.errors.max_abs)),
            headroom: row.headroom().map(Number),
            exact: row.explained.as_ref().map(ExactRow::from),
            tolerance: Number(row.tolerance.max_abs),
            element: Element::new(row.judged()),
        }
    }
}

/// What explains a failure.
#[derive(Serialize)]
struct FindingRow<'r> {
    kind: Kind,
    stage: Checkpoint,
    #[serde(flatten)]
    place: Place,
    taps: &'r [Point],
    layers: &'r [usize],
    key: Option<&'r str>,
    reference: Option<&'r str>,
    candidate: Option<&'r str>,
    what: &'r str,
    verified_on: &'r [String],
    remaining: &'r [String],
    excluded: &'r [String],
}

impl<'r> From<&'r Finding> for FindingRow<'r> {
    fn from(finding: &'r Finding) -> Self {
        Self {
            kind: finding.kind,
            stage: finding.site.point.checkpoint(),
            place: Place::from(finding.site),
            taps: &finding.points,
            layers: &finding.layers,
            key: finding.key.as_deref(),
            reference: finding.reference.as_deref(),
            candidate: finding.candidate.as_deref(),
            what: &finding.what,
            verified_on: &finding.verified_on,
            remaining: &finding.remaining,
            excluded: &finding.excluded,
        }
    }
}

#[derive(Serialize)]
struct CheckpointRow {
    checkpoint: Checkpoint,
    number: usize,
    verdict: &'static str,
    total: Option<Figures>,
    introduced: Option<Figures>,
    headroom: Option<Number>,
    beyond: Option<usize>,
    tolerance: Option<Number>,
    worst: Option<Place>,
}

impl CheckpointRow {
    fn new(summary: &Summary<'_>) -> Self {
        let figures = |errors: Option<Errors>| errors.map(|errors| Figures::new(Some(&errors)));
        Self {
            checkpoint: summary.checkpoint,
            number: summary.checkpoint.number(),
            verdict: summary.verdict.name(),
            total: figures(summary.total),
            introduced: figures(summary.introduced),
            headroom: summary.headroom.map(Number),
            beyond: summary.beyond,
            tolerance: summary.worst.map(|row| Number(row.tolerance.max_abs)),
            worst: summary.worst.map(|row| Place::from(row.site)),
        }
    }
}

/// The first position of a row; none for what belongs to the whole run.
fn position(row: &Row) -> Option<usize> {
    row.site.pass.map(|_| row.positions.start)
}

/// The values that a row's introduced error starts from.
fn starts(row: &Row) -> Vec<Start> {
    row.since.iter().map(|start| Start { tap: start.point, layer: start.layer }).collect()
}

#[derive(Serialize)]
struct Start {
    tap: Point,
    layer: Option<usize>,
}

#[derive(Serialize)]
struct Place {
    tap: Point,
    layer: Option<usize>,
    pass: Option<usize>,
}

impl From<Site> for Place {
    fn from(Site { point, layer, pass }: Site) -> Self {
        Self { tap: point, layer, pass }
    }
}

#[derive(Serialize)]
struct ResultRow<'r> {
    tap: Point,
    checkpoint: Checkpoint,
    layer: Option<usize>,
    pass: Option<usize>,
    position: Option<usize>,
    tokens: usize,
    verdict: &'static str,
    reason: Option<&'r str>,
    since: Vec<Start>,
    introduced: Option<Figured<'r>>,
    total: Option<Figured<'r>>,
    headroom: Option<Number>,
    exact: Option<ExactRow<'r>>,
    rounding: Option<Rounding>,
    tolerance: ToleranceRow<'r>,
}

impl<'r> ResultRow<'r> {
    fn new(row: &'r Row) -> Self {
        let Site { point, layer, pass } = row.site;
        Self {
            tap: point,
            checkpoint: row.checkpoint(),
            layer,
            pass,
            position: position(row),
            tokens: row.positions.len(),
            verdict: row.verdict.name(),
            reason: row.reason.as_deref(),
            since: starts(row),
            introduced: row.introduced.as_ref().map(Figured::from),
            total: row.total.as_ref().map(Figured::from),
            headroom: row.headroom().map(Number),
            exact: row.explained.as_ref().map(ExactRow::from),
            rounding: row.floor.or(row.floor_of_total).map(Rounding::from),
            tolerance: ToleranceRow::from(&row.tolerance),
        }
    }
}

/// What one comparison found.
#[derive(Serialize)]
struct Figured<'r> {
    #[serde(flatten)]
    figures: Figures,
    elements: usize,
    identical: usize,
    nonfinite: Nonfinite,
    #[serde(flatten)]
    element: Element<'r>,
}

impl<'r> From<&'r Measurement> for Figured<'r> {
    fn from(found: &'r Measurement) -> Self {
        Self {
            figures: Figures::new(Some(&found.errors)),
            elements: found.elements,
            identical: found.identical,
            nonfinite: Some(found).into(),
            element: Element::new(Some(found)),
        }
    }
}

/// Both sides of a row against what the stage comes to exactly.
#[derive(Serialize)]
struct ExactRow<'r> {
    evaluated: usize,
    candidate: SideRow,
    reference: SideRow,
    found: &'r [String],
}

impl<'r> From<&'r Explained> for ExactRow<'r> {
    fn from(explained: &'r Explained) -> Self {
        Self {
            evaluated: explained.evaluated,
            candidate: SideRow::new(explained, &explained.candidate),
            reference: SideRow::new(explained, &explained.reference),
            found: &explained.found,
        }
    }
}

/// One side: how many of its values no rounding explains, the worst of all, and the systematic error that stands out most.
#[derive(Serialize)]
struct SideRow {
    beyond: usize,
    headroom: Number,
    worst: Option<WorstRow>,
    bias: Option<BiasRow>,
}

impl SideRow {
    fn new(explained: &Explained, side: &Side) -> Self {
        let worst = side.worst.map(|(flat, value, exact)| WorstRow {
            index: explained.index(flat),
            value: Number(value),
            exact: Number(exact.value),
            radius: Number(exact.radius),
        });
        Self {
            beyond: side.beyond,
            headroom: Number(side.headroom),
            worst,
            bias: side.bias.map(BiasRow::from),
        }
    }
}

#[derive(Serialize)]
struct WorstRow {
    index: Vec<usize>,
    value: Number,
    exact: Number,
    radius: Number,
}

#[derive(Serialize)]
struct BiasRow {
    of: &'static str,
    axis: Option<usize>,
    index: usize,
    kind: &'static str,
    error: Number,
    sigmas: Number,
}

impl From<Bias> for BiasRow {
    fn from(bias: Bias) -> Self {
        let (of, axis) = match bias.strand {
            Strand::Whole => ("tensor", None),
            Strand::Axis(axis) => ("axis", Some(axis)),
            Strand::Channel => ("channel", None),
        };
        Self {
            of,
            axis,
            index: bias.index,
            kind: if bias.is_scale { "scale" } else { "offset" },
            error: Number(bias.error),
            sigmas: Number(bias.z),
        }
    }
}

/// How far rounding moves the values, where that was asked.
#[derive(Serialize)]
struct Rounding {
    max_abs: Number,
    max_scaled: Number,
    rel_l2: Number,
}

impl From<Floor> for Rounding {
    fn from(floor: Floor) -> Self {
        Self {
            max_abs: Number(floor.max_abs),
            max_scaled: Number(floor.max_scaled),
            rel_l2: Number(floor.rel_l2),
        }
    }
}

#[derive(Serialize)]
struct ToleranceRow<'r> {
    max_abs: Number,
    mean_abs: Option<Number>,
    source: &'r str,
}

impl<'r> From<&'r Tolerance> for ToleranceRow<'r> {
    fn from(tolerance: &'r Tolerance) -> Self {
        let Tolerance { max_abs, mean_abs, source, is_asked: _ } = tolerance;
        Self { max_abs: Number(*max_abs), mean_abs: mean_abs.map(Number), source }
    }
}
