//! Rows of `report.json`, for writing and reading.

use serde::{Deserialize, Serialize};

use crate::align::RecordedRows;
use crate::check::{Gate, Role, RoundingEvaluation, Tolerance};
use crate::checkpoint::{Checkpoint, Point, Site};
use crate::exact::{BiasEstimate, BiasGroup, EngineErrors, ExactValue, InexactValue};
use crate::noise::{Excess, NoiseFloor, Statistic};
use crate::report::enum_name::EnumName;
use crate::report::error_map_row::ErrorMapRow;
use crate::report::figures::{JsonNumber, MeasurementRow};
use crate::verdict::{Doubt, SiteObservation, SiteResult, Verdict, VerdictCriteria, Waiver};
use crate::weight::DType;

/// A row of `report.json`: the results at one site.
#[derive(Serialize, Deserialize)]
pub struct ReportRow {
    tap: EnumName<Point>,
    checkpoint: EnumName<Checkpoint>,
    layer: Option<usize>,
    pass: Option<usize>,
    position: Option<usize>,
    tokens: usize,
    /// Number of rows that the dump has, if not all were recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recorded: Option<RowCountRow>,
    verdict: EnumName<Verdict>,
    reason: Option<String>,
    /// Baseline entry that waives the failure.
    known: Option<WaiverRow>,
    since: Vec<StartRow>,
    #[serde(alias = "introduced")]
    local: Option<MeasurementRow>,
    #[serde(alias = "total")]
    accumulated: Option<MeasurementRow>,
    #[serde(alias = "headroom")]
    bound_ratio: Option<JsonNumber>,
    exact: Option<ExactRow>,
    /// Error map of the row, if no value was computed exactly. Otherwise each side has its own map.
    spread: Option<ErrorMapRow>,
    #[serde(alias = "rounding")]
    noise_floor: Option<NoiseFloorRow>,
    #[serde(alias = "rounding_of_total")]
    accumulated_noise_floor: Option<NoiseFloorRow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    distribution: Option<ExcessRow>,
    tolerance: ToleranceRow,
    judged: JudgementRow,
    /// Position from which on errors of log-probabilities persist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    drift: Option<usize>,
}

/// Number of recorded rows of a pass, and number of all rows.
#[derive(Serialize, Deserialize)]
struct RowCountRow {
    rows: usize,
    last_position: usize,
}

/// The baseline entry of a waived failure.
#[derive(Serialize, Deserialize)]
struct WaiverRow {
    reason: String,
    link: String,
    expires: String,
}

impl From<Waiver> for WaiverRow {
    fn from(Waiver { reason, link, expires }: Waiver) -> Self {
        Self { reason, link, expires }
    }
}

impl From<WaiverRow> for Waiver {
    fn from(WaiverRow { reason, link, expires }: WaiverRow) -> Self {
        Self { reason, link, expires }
    }
}

/// Criteria by which a row was judged.
#[derive(Serialize, Deserialize)]
struct JudgementRow {
    gate: EnumName<Gate>,
    #[serde(default, alias = "in_total", skip_serializing_if = "std::ops::Not::not")]
    accumulated: bool,
    computed: EnumName<DType>,
    one_stage: bool,
    demanded_of: Option<EnumName<Role>>,
    doubt: EnumName<Doubt>,
}

impl From<&SiteResult> for ReportRow {
    fn from(row: &SiteResult) -> Self {
        let Site { point, layer, pass } = row.site;
        let VerdictCriteria { gate, computed, is_one_stage, demanded_of, .. } = row.measure();
        Self {
            tap: EnumName(point),
            checkpoint: EnumName(row.checkpoint()),
            layer,
            pass,
            position: position(row),
            tokens: row.positions.len(),
            recorded: row
                .recorded
                .map(|RecordedRows { rows, last_position }| RowCountRow { rows, last_position }),
            verdict: EnumName(row.verdict),
            reason: row.reason.clone(),
            known: row.known.clone().map(WaiverRow::from),
            since: starts(row),
            local: row.local.as_ref().map(MeasurementRow::from),
            accumulated: row.accumulated.as_ref().map(MeasurementRow::from),
            bound_ratio: row.bound_ratio().map(JsonNumber),
            exact: row.explained.as_ref().map(ExactRow::from),
            spread: match row.explained {
                Some(_) => None,
                None => row.judged().and_then(|found| ErrorMapRow::new(found.spread.as_deref()?)),
            },
            noise_floor: row.floor.or(row.accumulated_floor).map(NoiseFloorRow::from),
            accumulated_noise_floor: row.accumulated_floor.map(NoiseFloorRow::from),
            distribution: row.excess.map(ExcessRow::from),
            tolerance: ToleranceRow::from(&row.tolerance),
            judged: JudgementRow {
                gate: EnumName(gate),
                accumulated: row.is_judged_by_accumulated(),
                computed: EnumName(computed),
                one_stage: is_one_stage,
                demanded_of: demanded_of.map(EnumName),
                doubt: EnumName(row.doubt()),
            },
            drift: row.drift(),
        }
    }
}

impl From<ReportRow> for SiteResult {
    fn from(read: ReportRow) -> Self {
        let site = Site { point: read.tap.0, layer: read.layer, pass: read.pass };
        let positions = read.position.map_or(0..0, |first| first..first + read.tokens);
        let accumulated_floor = read.accumulated_noise_floor.map(NoiseFloor::from);
        let floor = read.noise_floor.map(NoiseFloor::from).filter(|floor| Some(*floor) != accumulated_floor);
        let measure = VerdictCriteria {
            tolerance: read.tolerance.into(),
            gate: read.judged.gate.0,
            computed: read.judged.computed.0,
            is_one_stage: read.judged.one_stage,
            demanded_of: read.judged.demanded_of.map(|role| role.0),
        };
        let judged = SiteResult::judge(site, positions, SiteObservation::default(), measure);
        let mut row = judged.in_doubt(read.judged.doubt.0);
        row.accumulated = read.accumulated.map(Into::into);
        row.local = read.local.map(Into::into);
        row.since = read.since.into_iter().map(Site::from).collect();
        row.explained = read.exact.map(Into::into);
        (row.floor, row.accumulated_floor) = (floor, accumulated_floor);
        let recorded =
            read.recorded.map(|RowCountRow { rows, last_position }| RecordedRows { rows, last_position });
        row.recorded = recorded;
        row.excess = read.distribution.map(Excess::from);
        (row.verdict, row.reason) = (read.verdict.0, read.reason);
        let judged = if row.is_judged_by_accumulated() { &mut row.accumulated } else { &mut row.local };
        if let Some(judged) = judged {
            judged.spread = read.spread.and_then(ErrorMapRow::read).map(Box::new);
        }
        row.known = read.known.map(Waiver::from);
        row
    }
}

/// Returns the first position of a row; `None` for values of the whole run.
pub fn position(row: &SiteResult) -> Option<usize> {
    row.site.pass.map(|_| row.positions.start)
}

/// Returns the sites whose values were the inputs of a row's local error.
pub fn starts(row: &SiteResult) -> Vec<StartRow> {
    row.since.iter().map(|start| StartRow { tap: EnumName(start.point), layer: start.layer }).collect()
}

/// A site that serves as an input in every pass.
#[derive(Serialize, Deserialize)]
pub struct StartRow {
    tap: EnumName<Point>,
    layer: Option<usize>,
}

impl From<StartRow> for Site {
    fn from(start: StartRow) -> Self {
        Self { point: start.tap.0, layer: start.layer, pass: None }
    }
}

/// A site of the forward pass.
#[derive(Clone, Serialize, Deserialize)]
pub struct SiteRow {
    tap: EnumName<Point>,
    layer: Option<usize>,
    pass: Option<usize>,
}

impl From<Site> for SiteRow {
    fn from(Site { point, layer, pass }: Site) -> Self {
        Self { tap: EnumName(point), layer, pass }
    }
}

impl From<SiteRow> for Site {
    fn from(SiteRow { tap, layer, pass }: SiteRow) -> Self {
        Self { point: tap.0, layer, pass }
    }
}

/// Exact evaluation of a row, for both sides.
#[derive(Serialize, Deserialize)]
pub struct ExactRow {
    evaluated: usize,
    shape: Vec<usize>,
    candidate: EngineErrorsRow,
    reference: EngineErrorsRow,
    found: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    alternatives: Vec<String>,
}

impl ExactRow {
    /// Returns the data without the fields that only the page's figures use.
    pub fn in_short(self) -> Self {
        let in_short = |side| EngineErrorsRow { next: Vec::new(), spread: None, ..side };
        Self { candidate: in_short(self.candidate), reference: in_short(self.reference), ..self }
    }
}

impl From<&RoundingEvaluation> for ExactRow {
    fn from(explained: &RoundingEvaluation) -> Self {
        Self {
            evaluated: explained.evaluated,
            shape: explained.shape.clone(),
            candidate: EngineErrorsRow::new(explained, &explained.candidate),
            reference: EngineErrorsRow::new(explained, &explained.reference),
            found: explained.found.clone(),
            alternatives: explained.alternatives.clone(),
        }
    }
}

impl From<ExactRow> for RoundingEvaluation {
    fn from(row: ExactRow) -> Self {
        let ExactRow { evaluated, shape, candidate, reference, found, alternatives } = row;
        Self {
            candidate: candidate.side(&shape),
            reference: reference.side(&shape),
            evaluated,
            found,
            alternatives,
            reads_unrounded: None,
            is_fused: false,
            shape,
        }
    }
}

/// Exact evaluation of one side: violations, worst values, and largest bias.
#[derive(Serialize, Deserialize)]
struct EngineErrorsRow {
    #[serde(alias = "beyond")]
    over: usize,
    #[serde(alias = "headroom")]
    bound_ratio: JsonNumber,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worst: Option<WorstValueRow>,
    /// Values with the next largest errors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    next: Vec<WorstValueRow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bias: Option<BiasRow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spread: Option<ErrorMapRow>,
}

impl EngineErrorsRow {
    fn new(explained: &RoundingEvaluation, side: &EngineErrors) -> Self {
        let mut worst = side.worst.iter().map(|off| WorstValueRow {
            index: explained.index(off.flat),
            value: JsonNumber(off.value),
            exact: JsonNumber(off.exact.value),
            sigma: JsonNumber(off.exact.sigma),
            radius: JsonNumber(off.exact.radius),
            bound_ratio: JsonNumber(off.bound_ratio),
        });
        Self {
            over: side.over,
            bound_ratio: JsonNumber(side.bound_ratio),
            worst: worst.next(),
            next: worst.collect(),
            bias: side.bias.map(BiasRow::from),
            spread: side.spread.as_ref().and_then(ErrorMapRow::new),
        }
    }

    fn side(self, shape: &[usize]) -> EngineErrors {
        let flat = |index: &[usize]| {
            index
                .iter()
                .zip(shape)
                .fold(0usize, |flat, (&along, &length)| flat.saturating_mul(length).saturating_add(along))
        };
        let off = |row: WorstValueRow| InexactValue {
            flat: flat(&row.index),
            value: row.value.0,
            exact: ExactValue { value: row.exact.0, sigma: row.sigma.0, radius: row.radius.0 },
            bound_ratio: row.bound_ratio.0,
        };
        EngineErrors {
            over: self.over,
            bound_ratio: self.bound_ratio.0,
            worst: self.worst.into_iter().chain(self.next).map(off).collect(),
            bias: self.bias.map(BiasEstimate::from),
            spread: self.spread.and_then(ErrorMapRow::read),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct WorstValueRow {
    index: Vec<usize>,
    value: JsonNumber,
    exact: JsonNumber,
    sigma: JsonNumber,
    radius: JsonNumber,
    #[serde(alias = "headroom")]
    bound_ratio: JsonNumber,
}

#[derive(Serialize, Deserialize)]
struct BiasRow {
    of: BiasGroupName,
    axis: Option<usize>,
    index: usize,
    kind: BiasKind,
    error: JsonNumber,
    sigmas: JsonNumber,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BiasGroupName {
    Tensor,
    Axis,
    Channel,
}

#[derive(PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BiasKind {
    Scale,
    Offset,
}

impl From<BiasEstimate> for BiasRow {
    fn from(bias: BiasEstimate) -> Self {
        let (of, axis) = match bias.strand {
            BiasGroup::Whole => (BiasGroupName::Tensor, None),
            BiasGroup::Axis(axis) => (BiasGroupName::Axis, Some(axis)),
            BiasGroup::Channel => (BiasGroupName::Channel, None),
        };
        Self {
            of,
            axis,
            index: bias.index,
            kind: if bias.is_scale { BiasKind::Scale } else { BiasKind::Offset },
            error: JsonNumber(bias.error),
            sigmas: JsonNumber(bias.z),
        }
    }
}

impl From<BiasRow> for BiasEstimate {
    fn from(row: BiasRow) -> Self {
        let strand = match row.of {
            BiasGroupName::Tensor => BiasGroup::Whole,
            BiasGroupName::Axis => BiasGroup::Axis(row.axis.unwrap_or(0)),
            BiasGroupName::Channel => BiasGroup::Channel,
        };
        let is_scale = row.kind == BiasKind::Scale;
        Self { strand, index: row.index, error: row.error.0, is_scale, z: row.sigmas.0 }
    }
}

/// Noise floor, if it was measured.
#[derive(Serialize, Deserialize)]
struct NoiseFloorRow {
    max_abs: JsonNumber,
    max_scaled: JsonNumber,
    rel_l2: JsonNumber,
}

impl From<NoiseFloor> for NoiseFloorRow {
    fn from(floor: NoiseFloor) -> Self {
        Self {
            max_abs: JsonNumber(floor.max_abs),
            max_scaled: JsonNumber(floor.max_scaled),
            rel_l2: JsonNumber(floor.rel_l2),
        }
    }
}

impl From<NoiseFloorRow> for NoiseFloor {
    fn from(row: NoiseFloorRow) -> Self {
        Self { max_abs: row.max_abs.0, max_scaled: row.max_scaled.0, rel_l2: row.rel_l2.0 }
    }
}

/// The error statistic that exceeds the perturbed runs the most.
#[derive(Serialize, Deserialize)]
struct ExcessRow {
    statistic: EnumName<Statistic>,
    error: JsonNumber,
    noise: JsonNumber,
    ratio: JsonNumber,
}

impl From<Excess> for ExcessRow {
    fn from(Excess { statistic, error, noise, ratio }: Excess) -> Self {
        let [error, noise, ratio] = [error, noise, ratio].map(JsonNumber);
        Self { statistic: EnumName(statistic), error, noise, ratio }
    }
}

impl From<ExcessRow> for Excess {
    fn from(row: ExcessRow) -> Self {
        Self { statistic: row.statistic.0, error: row.error.0, noise: row.noise.0, ratio: row.ratio.0 }
    }
}

#[derive(Serialize, Deserialize)]
struct ToleranceRow {
    max_abs: JsonNumber,
    mean_abs: Option<JsonNumber>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min_cosine: Option<JsonNumber>,
    source: String,
    asked: bool,
}

impl From<&Tolerance> for ToleranceRow {
    fn from(tolerance: &Tolerance) -> Self {
        let Tolerance { max_abs, mean_abs, min_cosine, source, is_asked } = tolerance.clone();
        let (mean_abs, min_cosine) = (mean_abs.map(JsonNumber), min_cosine.map(JsonNumber));
        Self { max_abs: JsonNumber(max_abs), mean_abs, min_cosine, source, asked: is_asked }
    }
}

impl From<ToleranceRow> for Tolerance {
    fn from(row: ToleranceRow) -> Self {
        let ToleranceRow { max_abs, mean_abs, min_cosine, source, asked } = row;
        let [mean_abs, min_cosine] = [mean_abs, min_cosine].map(|bound| bound.map(|bound| bound.0));
        Self { max_abs: max_abs.0, mean_abs, min_cosine, source, is_asked: asked }
    }
}
