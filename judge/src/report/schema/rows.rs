//! Rows of `report.json`, for writing and reading.

use serde::{Deserialize, Serialize};

use crate::align::RecordedRows;
use crate::check::{Gate, Role, RoundingEvaluation, Tolerance};
use crate::checkpoint::{Checkpoint, Point, Site};
use crate::exact::{BiasEstimate, BiasGroup, EngineErrors, ExactValue, InexactValue};
use crate::noise::{Excess, NoiseFloor, Statistic};
use crate::report::schema::enum_name::EnumName;
use crate::report::schema::error_map::ErrorMapRow;
use crate::report::schema::figures::MeasurementRow;
use crate::report::schema::form::{JsonForm, JsonNumber, forms};
use crate::verdict::{Doubt, SiteObservation, SiteResult, Verdict, VerdictCriteria, Waiver};
use crate::weight::DType;

/// A row of `report.json`: the results at one site.
#[derive(Serialize, Deserialize)]
pub(crate) struct ReportRow {
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
    local: Option<MeasurementRow>,
    accumulated: Option<MeasurementRow>,
    bound_ratio: Option<JsonNumber>,
    exact: Option<ExactRow>,
    /// Map of the differences of the two sides. If exact values are known, each side has a map of its own errors instead.
    spread: Option<ErrorMapRow>,
    noise_floor: Option<NoiseFloorRow>,
    accumulated_noise_floor: Option<NoiseFloorRow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    distribution: Option<ExcessRow>,
    tolerance: ToleranceRow,
    judged: JudgementRow,
    /// Position at which a persistent error of log-probabilities begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    drift: Option<usize>,
}

/// Criteria by which a row was judged.
#[derive(Serialize, Deserialize)]
struct JudgementRow {
    gate: EnumName<Gate>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    accumulated: bool,
    computed: EnumName<DType>,
    one_stage: bool,
    demanded_of: Option<EnumName<Role>>,
    doubt: EnumName<Doubt>,
}

impl From<&SiteResult> for ReportRow {
    fn from(row: &SiteResult) -> Self {
        let Site { point, layer, pass } = row.site;
        let VerdictCriteria { gate, computed, is_single_operation, demanded_of, .. } = row.criteria();
        Self {
            tap: EnumName(point),
            checkpoint: EnumName(row.checkpoint()),
            layer,
            pass,
            position: position(row),
            tokens: row.positions.len(),
            recorded: JsonForm::of(row.recorded),
            verdict: EnumName(row.verdict),
            reason: row.reason.clone(),
            known: JsonForm::of(row.known.clone()),
            since: JsonForm::of(row.since.clone()),
            local: JsonForm::of(row.local.clone()),
            accumulated: JsonForm::of(row.accumulated.clone()),
            bound_ratio: row.bound_ratio().map(JsonNumber),
            exact: JsonForm::of(row.explained.clone()),
            spread: match row.explained {
                Some(_) => None,
                None => row.judged().and_then(|found| ErrorMapRow::new(found.spread.as_deref()?)),
            },
            noise_floor: JsonForm::of(row.floor.or(row.accumulated_floor)),
            accumulated_noise_floor: JsonForm::of(row.accumulated_floor),
            distribution: JsonForm::of(row.excess),
            tolerance: JsonForm::of(row.tolerance.clone()),
            judged: JudgementRow {
                gate: EnumName(gate),
                accumulated: row.is_judged_by_accumulated(),
                computed: EnumName(computed),
                one_stage: is_single_operation,
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
        let positions = read.position.map_or(0..0, |first| first..first.saturating_add(read.tokens));
        let accumulated_floor = read.accumulated_noise_floor.value();
        let floor = read.noise_floor.value().filter(|floor| Some(*floor) != accumulated_floor);
        let measure = VerdictCriteria {
            tolerance: read.tolerance.value(),
            gate: read.judged.gate.0,
            computed: read.judged.computed.0,
            is_single_operation: read.judged.one_stage,
            demanded_of: read.judged.demanded_of.value(),
        };
        let judged = SiteResult::judge(site, positions, SiteObservation::default(), measure);
        let mut row = judged.in_doubt(read.judged.doubt.0);
        row.accumulated = read.accumulated.value();
        row.local = read.local.value();
        row.since = read.since.value();
        row.explained = read.exact.value();
        (row.floor, row.accumulated_floor) = (floor, accumulated_floor);
        row.recorded = read.recorded.value();
        row.excess = read.distribution.value();
        (row.verdict, row.reason) = (read.verdict.0, read.reason);
        let judged = if row.is_judged_by_accumulated() { &mut row.accumulated } else { &mut row.local };
        if let Some(judged) = judged {
            judged.spread = read.spread.and_then(ErrorMapRow::read).map(Box::new);
        }
        row.known = read.known.value();
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
    tap: EnumName<Point>,
    layer: Option<usize>,
}

impl JsonForm for StartRow {
    type Value = Site;

    fn of(Site { point, layer, .. }: Site) -> Self {
        Self { tap: EnumName(point), layer }
    }

    fn value(self) -> Site {
        Site { point: self.tap.0, layer: self.layer, pass: None }
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

impl JsonForm for ExactRow {
    type Value = RoundingEvaluation;

    fn of(explained: RoundingEvaluation) -> Self {
        Self {
            candidate: EngineErrorsRow::new(&explained, &explained.candidate),
            reference: EngineErrorsRow::new(&explained, &explained.reference),
            evaluated: explained.evaluated,
            shape: explained.shape,
            found: explained.found,
            alternatives: explained.alternatives,
        }
    }

    fn value(self) -> RoundingEvaluation {
        let Self { evaluated, shape, candidate, reference, found, alternatives } = self;
        RoundingEvaluation {
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
            bias: JsonForm::of(side.bias),
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
            bias: self.bias.value(),
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

impl JsonForm for BiasRow {
    type Value = BiasEstimate;

    fn of(bias: BiasEstimate) -> Self {
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

    fn value(self) -> BiasEstimate {
        let group = match self.of {
            BiasGroupName::Tensor => BiasGroup::Whole,
            BiasGroupName::Axis => BiasGroup::Axis(self.axis.unwrap_or(0)),
            BiasGroupName::Channel => BiasGroup::Channel,
        };
        let is_scale = self.kind == BiasKind::Scale;
        BiasEstimate { group, index: self.index, error: self.error.0, is_scale, z: self.sigmas.0 }
    }
}

forms! {
    /// A site of the forward pass.
    SiteRow of Site {
        #[serde(rename = "tap")]
        point: EnumName<Point>,
        layer: Option<usize>,
        pass: Option<usize>,
    }

    /// Number of recorded rows of a pass, and the position of the last one.
    RowCountRow of RecordedRows {
        rows: usize,
        last_position: usize,
    }

    /// Baseline entry that waives a failure.
    WaiverRow of Waiver {
        reason: String,
        link: String,
        expires: String,
    }

    /// Noise floor, if it was measured.
    NoiseFloorRow of NoiseFloor {
        max_abs: JsonNumber,
        max_scaled: JsonNumber,
        rel_l2: JsonNumber,
    }

    /// The error statistic that exceeds the perturbed runs the most.
    ExcessRow of Excess {
        statistic: EnumName<Statistic>,
        error: JsonNumber,
        noise: JsonNumber,
        ratio: JsonNumber,
    }

    /// Entry of the tolerance table.
    ToleranceRow of Tolerance {
        max_abs: JsonNumber,
        mean_abs: Option<JsonNumber>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min_cosine: Option<JsonNumber>,
        source: String,
        #[serde(rename = "asked")]
        is_asked: bool,
    }
}
