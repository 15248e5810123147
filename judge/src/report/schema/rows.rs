//! Rows of `report.json`, for writing and reading.

use serde::{Deserialize, Serialize};

use crate::align::RecordedRows;
use crate::check::{Gate, Role, RoundingEvaluation, Tolerance};
use crate::checkpoint::{Checkpoint, Point, Site};
use crate::exact::{BiasEstimate, BiasGroup, EngineErrors, ExactValue, InexactValue};
use crate::json_number::{self, JsonNumber};
use crate::noise::{Excess, NoiseFloor};
use crate::report::schema::error_map::ErrorMapRow;
use crate::report::schema::figures::MeasurementRow;
use crate::verdict::{Doubt, SiteResult, Verdict, Waiver};
use crate::weight::DType;

/// A row of `report.json`: the results at one site.
#[derive(Serialize, Deserialize)]
pub(crate) struct ReportRow {
    tap: Point,
    checkpoint: Checkpoint,
    layer: Option<usize>,
    pass: Option<usize>,
    position: Option<usize>,
    tokens: usize,
    /// Number of rows that the dump has, if not all were recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recorded: Option<RecordedRows>,
    verdict: Verdict,
    reason: Option<String>,
    /// Baseline entry that waives the failure.
    known: Option<Waiver>,
    since: Vec<StartRow>,
    local: Option<MeasurementRow>,
    accumulated: Option<MeasurementRow>,
    #[serde(default, with = "json_number::optional")]
    bound_ratio: Option<f64>,
    exact: Option<ExactRow>,
    /// Map of the differences of the two sides. If exact values are known, each side has a map of its own errors instead.
    spread: Option<ErrorMapRow>,
    noise_floor: Option<NoiseFloor>,
    accumulated_noise_floor: Option<NoiseFloor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    distribution: Option<Excess>,
    #[serde(with = "ToleranceRow")]
    tolerance: Tolerance,
    judged: JudgementRow,
    /// Position at which a persistent error of log-probabilities begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    drift: Option<usize>,
}

/// Criteria by which a row was judged.
#[derive(Serialize, Deserialize)]
struct JudgementRow {
    gate: Gate,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    accumulated: bool,
    computed: DType,
    one_stage: bool,
    demanded_of: Option<Role>,
    doubt: Doubt,
}

impl From<&SiteResult> for ReportRow {
    fn from(row: &SiteResult) -> Self {
        let Site { point, layer, pass } = row.site;
        Self {
            tap: point,
            checkpoint: row.checkpoint(),
            layer,
            pass,
            position: position(row),
            tokens: row.positions.len(),
            recorded: row.recorded,
            verdict: row.verdict,
            reason: row.reason.clone(),
            known: row.known.clone(),
            since: row.since.iter().map(StartRow::from).collect(),
            local: row.local.as_ref().map(MeasurementRow::from),
            accumulated: row.accumulated.as_ref().map(MeasurementRow::from),
            bound_ratio: row.bound_ratio(),
            exact: row.explained.as_ref().map(ExactRow::from),
            spread: match row.explained {
                Some(_) => None,
                None => row.judged().and_then(|found| ErrorMapRow::new(found.spread.as_deref()?)),
            },
            noise_floor: row.floor.or(row.accumulated_floor),
            accumulated_noise_floor: row.accumulated_floor,
            distribution: row.excess,
            tolerance: row.tolerance.clone(),
            judged: JudgementRow {
                gate: row.gate,
                accumulated: row.is_judged_by_accumulated(),
                computed: row.computed,
                one_stage: row.is_single_operation,
                demanded_of: row.demanded_of,
                doubt: row.doubt,
            },
            drift: row.drift(),
        }
    }
}

impl From<ReportRow> for SiteResult {
    fn from(read: ReportRow) -> Self {
        let site = Site { point: read.tap, layer: read.layer, pass: read.pass };
        let positions = read.position.map_or(0..0, |first| first..first.saturating_add(read.tokens));
        let accumulated_floor = read.accumulated_noise_floor;
        let floor = read.noise_floor.filter(|floor| Some(*floor) != accumulated_floor);
        let mut row = Self {
            accumulated: read.accumulated.map(Into::into),
            local: read.local.map(Into::into),
            since: read.since.into_iter().map(Into::into).collect(),
            explained: read.exact.map(Into::into),
            recorded: read.recorded,
            floor,
            accumulated_floor,
            excess: read.distribution,
            verdict: read.verdict,
            reason: read.reason,
            known: read.known,
            gate: read.judged.gate,
            computed: read.judged.computed,
            is_single_operation: read.judged.one_stage,
            demanded_of: read.judged.demanded_of,
            doubt: read.judged.doubt,
            ..Self::new(site, positions, read.tolerance)
        };
        let judged = if row.is_judged_by_accumulated() { &mut row.accumulated } else { &mut row.local };
        if let Some(judged) = judged {
            judged.spread = read.spread.and_then(ErrorMapRow::read).map(Box::new);
        }
        row
    }
}

/// Returns the first position of a row; `None` for values of the whole run.
pub(crate) fn position(row: &SiteResult) -> Option<usize> {
    row.site.pass.map(|_| row.positions.start)
}

/// A site that serves as an input in every pass.
#[derive(Serialize, Deserialize)]
pub(crate) struct StartRow {
    tap: Point,
    layer: Option<usize>,
}

impl From<&Site> for StartRow {
    fn from(site: &Site) -> Self {
        Self { tap: site.point, layer: site.layer }
    }
}

impl From<StartRow> for Site {
    fn from(start: StartRow) -> Self {
        Self { point: start.tap, layer: start.layer, pass: None }
    }
}

/// Exact evaluation of a row, for both sides.
#[derive(Serialize, Deserialize)]
pub(crate) struct ExactRow {
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
    pub(crate) fn in_short(self) -> Self {
        let in_short = |side| EngineErrorsRow { next: Vec::new(), spread: None, ..side };
        Self { candidate: in_short(self.candidate), reference: in_short(self.reference), ..self }
    }
}

impl From<&RoundingEvaluation> for ExactRow {
    fn from(explained: &RoundingEvaluation) -> Self {
        Self {
            candidate: EngineErrorsRow::new(explained, &explained.candidate),
            reference: EngineErrorsRow::new(explained, &explained.reference),
            evaluated: explained.evaluated,
            shape: explained.shape.clone(),
            found: explained.found.clone(),
            alternatives: explained.alternatives.clone(),
        }
    }
}

impl From<ExactRow> for RoundingEvaluation {
    fn from(ExactRow { evaluated, shape, candidate, reference, found, alternatives }: ExactRow) -> Self {
        Self {
            candidate: candidate.side(&shape),
            reference: reference.side(&shape),
            evaluated,
            found,
            alternatives,
            reads_unrounded: None,
            is_fused: false,
            is_tf32: false,
            is_in_parts: false,
            is_impossible: false,
            shape,
        }
    }
}

/// Exact evaluation of one side: violations, worst values, and largest bias.
#[derive(Serialize, Deserialize)]
struct EngineErrorsRow {
    over: usize,
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
            bias: self.bias.map(Into::into),
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
        let (of, axis) = match bias.group {
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
        let group = match row.of {
            BiasGroupName::Tensor => BiasGroup::Whole,
            BiasGroupName::Axis => BiasGroup::Axis(row.axis.unwrap_or(0)),
            BiasGroupName::Channel => BiasGroup::Channel,
        };
        let is_scale = row.kind == BiasKind::Scale;
        Self { group, index: row.index, error: row.error.0, is_scale, z: row.sigmas.0 }
    }
}

/// Entry of the tolerance table. The table itself, a TOML file, has no field `asked`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Tolerance")]
struct ToleranceRow {
    #[serde(with = "json_number")]
    max_abs: f64,
    #[serde(default, with = "json_number::optional")]
    mean_abs: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "json_number::optional")]
    min_cosine: Option<f64>,
    source: String,
    #[serde(rename = "asked")]
    is_asked: bool,
}
