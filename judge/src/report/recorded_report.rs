//! Content of `report.json`, independent of the build that wrote it, so that reports of different builds can
//! be compared.

use std::path::Path;

use serde::Deserialize;

use crate::check::Mode;
use crate::checkpoint::Point;
use crate::error::{Error, Result};
use crate::input;
use crate::measure::larger;
use crate::noise::NoiseFloor;
use crate::report::enum_name::EnumName;
use crate::report::figures::JsonNumber;
use crate::report::json::{check_version, json};
use crate::report::{Report, RunFailure, ServerCheck};
use crate::verdict::Verdict;

/// Content of `report.json` from any build.
#[derive(Clone, Debug)]
pub struct RecordedReport {
    /// Version and commit of the program that wrote the report, and its arguments.
    pub told: [String; 2],
    /// Overall verdict.
    pub verdict: Verdict,
    /// Recorded results of each dump.
    pub dumps: Vec<RecordedDump>,
    /// Results of a server's own checks.
    pub checks: Vec<ServerCheck>,
}

/// Recorded results of one dump.
#[derive(Clone, Debug)]
pub struct RecordedDump {
    /// Name of the dump.
    pub name: String,
    /// Description of the model.
    pub model: String,
    /// SHA-256 of the model's weights, if known.
    pub sha256: Option<String>,
    /// Criterion and mode of the comparison.
    pub judged: String,
    /// Verdict of the dump, from its rows and coverage.
    pub verdict: Verdict,
    /// Reason, if not a pass.
    pub reason: Option<String>,
    /// All compared rows, in data-flow order.
    pub rows: Vec<RecordedRow>,
}

/// Recorded results at one site.
#[derive(Clone, Debug)]
pub struct RecordedRow {
    /// The tap's name.
    pub tap: String,
    /// Layer; `None` outside the layers.
    pub layer: Option<usize>,
    /// Pass; `None` for values of the whole run.
    pub pass: Option<usize>,
    /// Number of compared values.
    pub elements: u64,
    /// Verdict of the row.
    pub verdict: Verdict,
    /// Reason, if not a pass.
    pub reason: Option<String>,
    /// Cause of a failure with its value; the name is the same in all builds.
    pub cause: Option<String>,
    /// True if all compared values are bit-identical in the error that was judged.
    pub is_identical: bool,
    /// Largest error relative to its limit (error bound, noise floor or tolerance). The row fails above 1.
    pub bound_ratio: Option<f64>,
    /// True if `bound_ratio` is relative to a noise floor. The noise floor differs between builds, since few
    /// perturbed runs measure it.
    pub is_measured: bool,
    /// Relative L2 error of all values together. Without error bounds, it distinguishes one wrong value from
    /// many.
    pub rel_l2: Option<f64>,
    /// Largest error of a value relative to its size, if perturbed runs give the noise floor.
    pub max_scaled: Option<f64>,
    /// Largest values of `rel_l2` and `max_scaled` that rounding, or the tolerance that decides, can cause.
    pub noise: [f64; 2],
    /// Number of violations, summed over both sides.
    pub over: Option<usize>,
    /// Largest bias, in sigmas.
    pub sigmas: Option<f64>,
    /// Histogram of bound ratios: a power of two, and the number of values from there up to the next power.
    pub sizes: Option<Vec<(i32, u64)>>,
}

impl RecordedRow {
    /// Returns the number of compared values, if it is the same in every run. It varies for top
    /// log-probabilities, because only tokens that both sides list are compared.
    pub fn counted(&self) -> Option<u64> {
        (self.tap != Point::TopLogprobs.name()).then_some(self.elements)
    }

    /// Returns the number of values with at least this bound ratio; `None` if unknown.
    pub fn off_by(&self, bound_ratio: f64) -> Option<u64> {
        let sizes = self.sizes.as_ref()?;
        Some(sizes.iter().filter(|(power, _)| 2f64.powi(*power) >= bound_ratio).map(|(_, count)| count).sum())
    }
}

impl RecordedReport {
    /// Checks that all dumps have different names.
    ///
    /// # Errors
    /// If two dumps have the same name.
    pub fn check_names(&self) -> Result<()> {
        let mut names = std::collections::HashSet::new();
        let twice = self.dumps.iter().find(|dump| !names.insert(&dump.name));
        twice.map_or(Ok(()), |dump| {
            Err(Error::Usage(format!("duplicate dump name '{}'; rename one of the files", dump.name)))
        })
    }

    /// Converts a report of this build.
    pub fn of(report: &Report) -> Self {
        Self::parse(&json(report)).expect("what is written can be read")
    }

    /// Reads the content of a report file.
    ///
    /// # Errors
    /// If the file cannot be read, is not a report with this version of the schema, or is about a run without
    /// a verdict.
    pub fn read(path: &Path) -> Result<Self> {
        let text = input::text(path)?;
        Self::parse(&text).map_err(|problem| Error::BadContainer {
            file: path.to_owned(),
            format: "xcheck report",
            problem,
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let head: HeadFields = serde_json::from_str(text).map_err(|error| error.to_string())?;
        check_version(&head.schema, head.version)?;
        if head.verdict == RunFailure::WORD {
            return Err(format!("the run ended without a verdict: {}", head.error.unwrap_or_default()));
        }
        let file: FileFields = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let HeadFields { xcheck: ProgramFields { version, commit }, command, .. } = head;
        let told = [[version, commit.unwrap_or_default()].join(" ").trim().to_owned(), command.join(" ")];
        let checks = file.server.map(|server| server.checks).unwrap_or_default();
        let dumps = file.references.into_iter().map(dump).collect();
        Ok(Self { told, verdict: file.verdict.0, dumps, checks })
    }
}

#[derive(Deserialize)]
struct HeadFields {
    schema: String,
    version: u32,
    xcheck: ProgramFields,
    #[serde(default)]
    command: Vec<String>,
    verdict: String,
    error: Option<String>,
}

#[derive(Deserialize)]
struct ProgramFields {
    version: String,
    commit: Option<String>,
}

#[derive(Deserialize)]
struct FileFields {
    verdict: EnumName<Verdict>,
    references: Vec<DumpFields>,
    server: Option<ServerFields>,
}

#[derive(Deserialize)]
struct ServerFields {
    checks: Vec<ServerCheck>,
}

#[derive(Deserialize)]
struct DumpFields {
    name: String,
    model: ModelFields,
    #[serde(default)]
    gate: String,
    mode: EnumName<Mode>,
    verdict: EnumName<Verdict>,
    reason: Option<String>,
    #[serde(default)]
    findings: Vec<CauseFields>,
    results: Vec<RowFields>,
}

#[derive(Deserialize)]
struct ModelFields {
    name: Option<String>,
    architecture: Option<String>,
    format: Option<String>,
    quantisation: Option<String>,
    sha256: Option<String>,
}

#[derive(Deserialize)]
struct CauseFields {
    kind: String,
    #[serde(default)]
    places: Vec<SiteFields>,
    supposed: Option<String>,
    candidate: Option<String>,
}

#[derive(Deserialize)]
struct SiteFields {
    tap: String,
    layer: Option<usize>,
    pass: Option<usize>,
}

/// Kinds of findings that do not name a cause.
const NO_CAUSE: [&str; 3] = ["partial", "unknown", "unfinished"];

impl CauseFields {
    fn explains(&self, row: &RowFields) -> bool {
        let is_here =
            |place: &SiteFields| (&place.tap, place.layer, place.pass) == (&row.tap, row.layer, row.pass);
        self.places.iter().any(is_here) && !NO_CAUSE.contains(&self.kind.as_str())
    }

    /// Returns the name of the cause with all its changes, so that an additional change makes it a different
    /// cause.
    fn name(&self) -> String {
        if let Some(supposed) = &self.supposed {
            return supposed.clone();
        }
        [&*self.kind, self.candidate.as_deref().unwrap_or_default()].join(" ").trim_end().to_owned()
    }
}

#[derive(Deserialize)]
struct RowFields {
    tap: String,
    layer: Option<usize>,
    pass: Option<usize>,
    verdict: EnumName<Verdict>,
    reason: Option<String>,
    #[serde(alias = "introduced")]
    local: Option<FigureFields>,
    #[serde(alias = "total")]
    accumulated: Option<FigureFields>,
    #[serde(alias = "headroom")]
    bound_ratio: Option<JsonNumber>,
    exact: Option<ExactFields>,
    #[serde(alias = "rounding")]
    noise_floor: Option<NoiseFloorFields>,
    #[serde(alias = "rounding_of_total")]
    accumulated_noise_floor: Option<NoiseFloorFields>,
    tolerance: ToleranceFields,
    #[serde(default)]
    judged: JudgementFields,
}

#[derive(Default, Deserialize)]
struct JudgementFields {
    #[serde(default, alias = "in_total")]
    accumulated: bool,
}

#[derive(Deserialize)]
struct FigureFields {
    max_abs: JsonNumber,
    rel_l2: JsonNumber,
    max_scaled: Option<JsonNumber>,
    max_rel_rms: Option<JsonNumber>,
    elements: u64,
    identical: u64,
}

#[derive(Deserialize)]
struct NoiseFloorFields {
    max_scaled: JsonNumber,
    rel_l2: JsonNumber,
}

#[derive(Deserialize)]
struct ToleranceFields {
    max_abs: JsonNumber,
}

#[derive(Deserialize)]
struct ExactFields {
    candidate: SideFields,
    reference: SideFields,
}

#[derive(Deserialize)]
struct SideFields {
    #[serde(alias = "beyond")]
    over: usize,
    bias: Option<BiasFields>,
    spread: Option<ErrorMapFields>,
}

#[derive(Deserialize)]
struct BiasFields {
    sigmas: JsonNumber,
}

#[derive(Deserialize)]
struct ErrorMapFields {
    least: i32,
    counts: Vec<u64>,
    nonfinite: u64,
}

fn dump(read: DumpFields) -> RecordedDump {
    let ModelFields { name, architecture, format, quantisation, sha256 } = read.model;
    let words =
        [name, architecture, format, quantisation].into_iter().flatten().filter(|word| !word.is_empty());
    let findings = read.findings;
    RecordedDump {
        name: read.name,
        model: words.collect::<Vec<_>>().join(", "),
        sha256,
        judged: [&*read.gate, read.mode.0.name()].join(", "),
        verdict: read.verdict.0,
        reason: read.reason,
        rows: read.results.into_iter().map(|row| seen(row, &findings)).collect(),
    }
}

fn seen(row: RowFields, findings: &[CauseFields]) -> RecordedRow {
    let is_good = row.verdict.0 <= Verdict::Tie;
    let mut causes: Vec<String> = findings
        .iter()
        .filter(|explanation| !is_good && explanation.explains(&row))
        .map(CauseFields::name)
        .collect();
    causes.sort_unstable();
    causes.dedup();
    let judged = judged(&row);
    let measured = measured(&row);
    let sides = row.exact.as_ref().map(|exact| [&exact.candidate, &exact.reference]);
    let sigmas = sides.iter().flatten().filter_map(|side| Some(finite(side.bias.as_ref()?.sigmas.0.abs())));
    RecordedRow {
        cause: (!causes.is_empty()).then(|| causes.join(" + ")),
        is_identical: judged.is_some_and(|found| found.elements > 0 && found.identical == found.elements),
        elements: judged.map_or(0, |found| found.elements),
        bound_ratio: bound_ratio(&row),
        is_measured: is_measured(&row),
        rel_l2: measured
            .map(|(found, _)| found)
            .or(judged.filter(|_| sides.is_none()))
            .map(|found| finite(found.rel_l2.0)),
        max_scaled: measured.and_then(|(found, _)| Some(finite(found.max_scaled.as_ref()?.0))),
        noise: noise(&row, measured),
        over: sides.map(|sides| sides.iter().map(|side| side.over).sum()),
        sigmas: sigmas.reduce(f64::max),
        sizes: sides.and_then(sizes),
        tap: row.tap,
        layer: row.layer,
        pass: row.pass,
        verdict: row.verdict.0,
        reason: row.reason,
    }
}

/// Returns the figures that the verdict is based on.
fn judged(row: &RowFields) -> Option<&FigureFields> {
    row.local.as_ref().filter(|_| !row.judged.accumulated).or(row.accumulated.as_ref())
}

/// Returns the bound ratio of the row. If the accumulated error is too large, it is included.
fn bound_ratio(row: &RowFields) -> Option<f64> {
    let of_table = || {
        let judged = judged(row)?;
        let allowed = Some(row.tolerance.max_abs.0).filter(|allowed| *allowed > 0.0)?;
        Some(judged.max_abs.0 / allowed)
    };
    let told = row.bound_ratio.as_ref().map(|told| told.0).or_else(of_table);
    [told, inherited(row)].into_iter().flatten().reduce(larger).map(finite)
}

/// Returns the bound ratio of the accumulated error, for a row that is not good.
fn inherited(row: &RowFields) -> Option<f64> {
    let (accumulated, floor) = (row.accumulated.as_ref()?, row.accumulated_noise_floor.as_ref()?);
    let far = |error: f64, floor: f64| error / (NoiseFloor::NEAR * floor);
    let scaled = far(accumulated.max_scaled.as_ref()?.0, floor.max_scaled.0);
    Some(larger(scaled, far(accumulated.rel_l2.0, floor.rel_l2.0))).filter(|_| row.verdict.0 > Verdict::Tie)
}

/// Returns the errors that were compared with perturbed runs, and their noise floor.
fn measured(row: &RowFields) -> Option<(&FigureFields, &NoiseFloorFields)> {
    let of_accumulated =
        || inherited(row).and_then(|_| row.accumulated.as_ref().zip(row.accumulated_noise_floor.as_ref()));
    let of_judged = || judged(row).zip(row.noise_floor.as_ref()).filter(|_| row.exact.is_none());
    of_accumulated().or_else(of_judged)
}

/// Returns true if the row's bound ratio comes from a comparison with perturbed runs.
fn is_measured(row: &RowFields) -> bool {
    let told = row.bound_ratio.as_ref().map_or(0.0, |told| told.0);
    match inherited(row) {
        Some(inherited) => !(told > inherited),
        None => measured(row).is_some(),
    }
}

/// Returns the limits of `rel_l2` and `max_scaled` by rounding. If the tolerance table decides, the tolerance
/// is the limit.
fn noise(row: &RowFields, measured: Option<(&FigureFields, &NoiseFloorFields)>) -> [f64; 2] {
    if let Some((_, floor)) = measured {
        return [floor.rel_l2.0, floor.max_scaled.0].map(|floor| NoiseFloor::NEAR * floor);
    }
    let of_table = || {
        let FigureFields { max_abs, max_rel_rms, .. } = judged(row)?;
        let size = Some(max_abs.0 / max_rel_rms.as_ref()?.0).filter(|size| *size > 0.0)?;
        Some(row.tolerance.max_abs.0 / size)
    };
    [of_table().unwrap_or(0.0), 0.0]
}

/// Returns the figure, with NaN replaced by a value larger than any error.
fn finite(figure: f64) -> f64 {
    if figure.is_nan() { f64::INFINITY } else { figure }
}

/// Returns the histogram of both sides together. `None` if a side has violations but no histogram.
fn sizes(sides: [&SideFields; 2]) -> Option<Vec<(i32, u64)>> {
    const BEYOND_ALL: i32 = i32::MAX;
    let spreads = sides.iter().filter_map(|side| side.spread.as_ref());
    let is_told = sides.iter().all(|side| side.over == 0 || side.spread.is_some());
    let counted = spreads.flat_map(|spread| {
        let powers = (spread.least..).zip(spread.counts.iter().copied());
        powers.chain([(BEYOND_ALL, spread.nonfinite)])
    });
    is_told.then(|| counted.collect())
}
