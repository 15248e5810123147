//! The figures of a report that another build reproduces, so that reports of different builds can be compared.

use std::path::Path;

use crate::check::RoundingEvaluation;
use crate::checkpoint::{Point, Site};
use crate::error::{Error, Result};
use crate::error_map::{ErrorMagnitude, ErrorMap};
use crate::exact::EngineErrors;
use crate::measure::{Errors, Measurement, larger};
use crate::noise::NoiseFloor;
use crate::report::report_reader::{content, of_file};
use crate::report::schema::{Program, ReportFile};
use crate::report::{Comparison, Report, ReportContent, ServerCheck};
use crate::verdict::{Finding, SiteResult, Verdict};

/// Content of a report from any build.
#[derive(Clone, Debug)]
pub struct RecordedReport {
    /// Version and commit of the program that wrote the report, and its arguments.
    pub(crate) told: [String; 2],
    /// Overall verdict.
    pub verdict: Verdict,
    /// Recorded results of each dump.
    pub(crate) dumps: Vec<RecordedDump>,
    /// Results of a server's own checks.
    pub(crate) checks: Vec<ServerCheck>,
}

/// Recorded results of one dump.
#[derive(Clone, Debug)]
pub struct RecordedDump {
    /// Name of the dump.
    pub(crate) name: String,
    /// Description of the model.
    pub(crate) model: String,
    /// SHA-256 of the model's weights, if known.
    pub(crate) sha256: Option<String>,
    /// Criterion and mode of the comparison.
    pub(crate) judged: String,
    /// Verdict of the dump, from its rows and coverage.
    pub(crate) verdict: Verdict,
    /// Reason, if not a pass.
    pub(crate) reason: Option<String>,
    /// All compared rows, in data-flow order.
    pub(crate) rows: Vec<RecordedRow>,
}

/// Figures of a failure. Another build with the same fault gives nearly the same figures. A figure is `None` if it
/// was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct FailureSize {
    /// Largest error relative to its limit (error bound, noise floor or tolerance). The row fails above 1.
    pub(crate) bound_ratio: Option<f64>,
    /// Relative L2 error of all values together, if there are no error bounds per value. It distinguishes one wrong
    /// value from many.
    pub(crate) rel_l2: Option<f64>,
    /// Largest error of a value relative to its size, if perturbed runs give the noise floor.
    pub(crate) max_scaled: Option<f64>,
    /// Number of values above their error bound, summed over both sides.
    pub(crate) over: Option<usize>,
    /// Largest bias, in sigmas.
    pub(crate) sigmas: Option<f64>,
}

/// Recorded results at one site.
#[derive(Clone, Debug)]
pub struct RecordedRow {
    pub(crate) site: Site,
    /// Number of compared values.
    pub(crate) elements: u64,
    /// Verdict of the row.
    pub(crate) verdict: Verdict,
    /// Reason, if not a pass.
    pub(crate) reason: Option<String>,
    /// Cause of a failure with its value; the name is the same in all builds.
    pub(crate) cause: Option<String>,
    /// True if all compared values are bit-identical in the error that was judged.
    pub(crate) is_identical: bool,
    /// Size of the failure, or of the error if the row does not fail.
    pub(crate) size: FailureSize,
    /// True if `bound_ratio` is relative to a noise floor. The noise floor differs between builds, since few
    /// perturbed runs measure it.
    pub(crate) is_measured: bool,
    /// Largest values of `rel_l2` and `max_scaled` that rounding, or the tolerance that decides, can cause.
    pub(crate) noise: [f64; 2],
    /// Histogram of bound ratios. Each entry is an exponent e and the number of values from 2^e up to 2^(e+1).
    pub(crate) sizes: Option<Vec<(i32, u64)>>,
}

impl RecordedRow {
    /// Returns the number of compared values, if it is the same in every run. It varies for top
    /// log-probabilities, because only tokens that both sides list are compared.
    pub(crate) fn counted(&self) -> Option<u64> {
        (self.site.point != Point::TopLogprobs).then_some(self.elements)
    }

    /// Returns the number of values with a bound ratio of at least `bound_ratio`; `None` if unknown.
    pub(crate) fn off_by(&self, bound_ratio: f64) -> Option<u64> {
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
        Self::written_by(Program::this(), report)
    }

    /// Reads the content of a report file.
    ///
    /// # Errors
    /// If the file cannot be read, is not a report with this version of the schema, or is about a run without
    /// a verdict.
    pub fn read(path: &Path) -> Result<Self> {
        of_file(path, |text| {
            let file = ReportFile::parse(text, |_| Ok(()))?;
            let program = file.xcheck.clone();
            match content(file)? {
                ReportContent::Report(report) => Ok(Self::written_by(program, &report)),
                ReportContent::Refused(error) => Err(format!("the run ended without a verdict: {error}")),
            }
        })
    }

    fn written_by(Program { version, commit }: Program, report: &Report) -> Self {
        let program = [version, commit.unwrap_or_default()].join(" ").trim().to_owned();
        Self {
            told: [program, report.command.join(" ")],
            verdict: report.verdict(),
            dumps: report.results.iter().map(RecordedDump::of).collect(),
            checks: report.served.iter().flat_map(|served| served.checks.clone()).collect(),
        }
    }
}

impl RecordedDump {
    fn of(Comparison { model, outcome, .. }: &Comparison) -> Self {
        let subject = &outcome.subject;
        Self {
            name: subject.name.clone(),
            model: model.to_string(),
            sha256: model.sha256.clone(),
            judged: [subject.gate.name(), subject.mode.name()].join(", "),
            verdict: outcome.verdict,
            reason: outcome.reason.clone(),
            rows: outcome.rows.iter().map(|row| RecordedRow::of(row, &outcome.findings)).collect(),
        }
    }
}

impl RecordedRow {
    fn of(row: &SiteResult, findings: &[Finding]) -> Self {
        let is_good = row.verdict <= Verdict::Tie;
        let explains =
            |finding: &&Finding| !is_good && finding.sites.contains(&row.site) && finding.kind.is_cause();
        let mut causes: Vec<String> = findings.iter().filter(explains).map(cause_name).collect();
        causes.sort_unstable();
        causes.dedup();
        let judged = row.judged();
        let measured = measured(row);
        let sides = row.explained.as_ref().map(sides);
        let of_judged = judged.filter(|_| sides.is_none()).map(|found| &found.errors);
        let of_all = measured.map(|(errors, _)| errors).or(of_judged);
        let sigmas = sides.iter().flatten().filter_map(|side| Some(finite(side.bias?.z.abs())));
        Self {
            site: row.site,
            cause: (!causes.is_empty()).then(|| causes.join(" + ")),
            is_identical: judged.is_some_and(|found| found.elements > 0 && found.identical == found.elements),
            elements: judged.map_or(0, |found| found.elements as u64),
            size: FailureSize {
                bound_ratio: bound_ratio(row),
                rel_l2: of_all.map(|errors| finite(errors.rel_l2)),
                max_scaled: measured.map(|(errors, _)| finite(errors.max_scaled)),
                over: row.explained.as_ref().map(RoundingEvaluation::over),
                sigmas: sigmas.reduce(f64::max),
            },
            is_measured: is_measured(row),
            noise: noise(row, measured),
            sizes: sides.and_then(sizes),
            verdict: row.verdict,
            reason: row.reason.clone(),
        }
    }
}

/// Returns the name of a cause with all its changes, so that an additional change makes it a different cause.
fn cause_name(finding: &Finding) -> String {
    let candidate = finding.candidate.as_deref().unwrap_or_default();
    let told = || [finding.kind.name(), candidate].join(" ").trim_end().to_owned();
    finding.supposed.clone().unwrap_or_else(told)
}

fn sides(explained: &RoundingEvaluation) -> [&EngineErrors; 2] {
    [&explained.candidate, &explained.reference]
}

/// Returns the bound ratio of the row, including that of the accumulated error if the accumulated error is too
/// large.
fn bound_ratio(row: &SiteResult) -> Option<f64> {
    let of_table = || {
        let allowed = Some(row.tolerance.max_abs).filter(|allowed| *allowed > 0.0)?;
        Some(row.judged()?.errors.max_abs / allowed)
    };
    let told = row.bound_ratio().or_else(of_table);
    [told, inherited(row)].into_iter().flatten().reduce(larger).map(finite)
}

/// Returns the bound ratio of the accumulated error, for a row that is not good.
fn inherited(row: &SiteResult) -> Option<f64> {
    let (errors, floor) = accumulated(row)?;
    let far = |error: f64, floor: f64| error / (NoiseFloor::NEAR * floor);
    let ratio = larger(far(errors.max_scaled, floor.max_scaled), far(errors.rel_l2, floor.rel_l2));
    Some(ratio).filter(|_| row.verdict > Verdict::Tie)
}

/// Returns the accumulated errors and their noise floor.
fn accumulated(row: &SiteResult) -> Option<(&Errors, NoiseFloor)> {
    Some((&row.accumulated.as_ref()?.errors, row.accumulated_floor?))
}

/// Returns the errors that were compared with perturbed runs, and their noise floor.
fn measured(row: &SiteResult) -> Option<(&Errors, NoiseFloor)> {
    let of_judged = || {
        let floor = row.floor.or(row.accumulated_floor).filter(|_| row.explained.is_none())?;
        Some((&row.judged()?.errors, floor))
    };
    inherited(row).and_then(|_| accumulated(row)).or_else(of_judged)
}

/// Returns true if the row's bound ratio comes from a comparison with perturbed runs.
fn is_measured(row: &SiteResult) -> bool {
    match inherited(row) {
        Some(inherited) => !(row.bound_ratio().unwrap_or(0.0) > inherited),
        None => measured(row).is_some(),
    }
}

/// Returns the limits of `rel_l2` and `max_scaled` by rounding. If the tolerance table decides, the tolerance
/// is the limit.
fn noise(row: &SiteResult, measured: Option<(&Errors, NoiseFloor)>) -> [f64; 2] {
    if let Some((_, floor)) = measured {
        return [floor.rel_l2, floor.max_scaled].map(|floor| NoiseFloor::NEAR * floor);
    }
    let size = |found: &Measurement| found.errors.max_abs / found.errors.max_rel_rms;
    let size = row.judged().map(size).filter(|size| *size > 0.0);
    [size.map_or(0.0, |size| row.tolerance.max_abs / size), 0.0]
}

/// Replaces a figure that is NaN by a number larger than any error.
fn finite(figure: f64) -> f64 {
    if figure.is_nan() { f64::INFINITY } else { figure }
}

/// Returns the histogram of both sides together. `None` if a side has violations but no histogram.
fn sizes(sides: [&EngineErrors; 2]) -> Option<Vec<(i32, u64)>> {
    let is_told = sides.iter().all(|side| side.over == 0 || side.spread.is_some());
    let counts = sides.iter().filter_map(|side| side.spread.as_ref()).flat_map(ErrorMap::counts);
    let power = |size: ErrorMagnitude| match size {
        ErrorMagnitude::NONE => None,
        ErrorMagnitude::NONFINITE => Some(i32::MAX),
        size => size.exponent().map(i32::from),
    };
    let counted = counts.filter_map(|(size, count)| Some((power(size)?, count)));
    is_told.then(|| counted.collect())
}
