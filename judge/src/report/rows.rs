//! Rows of `report.json`, written and read.

use serde::{Deserialize, Serialize};

use crate::checkpoint::{Checkpoint, Point, Site};
use crate::compare::{
    Doubt, Excess, Explained, Floor, Gate, Known, Measure, Observed, Recorded, Role, Row, Statistic,
    Tolerance, Verdict,
};
use crate::exact::{BiasEstimate, BiasGroup, EngineErrors, ExactValue, InexactValue};
use crate::report::figures::{Figured, Number};
use crate::report::spread::SpreadRow;
use crate::report::words::Named;
use crate::weight::DType;

/// One tap, layer and pass.
#[derive(Serialize, Deserialize)]
pub struct ResultRow {
    tap: Named<Point>,
    checkpoint: Named<Checkpoint>,
    layer: Option<usize>,
    pass: Option<usize>,
    position: Option<usize>,
    tokens: usize,
    /// The rows that the dump has, where these are not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recorded: Option<RecordedRow>,
    verdict: Named<Verdict>,
    reason: Option<String>,
    /// Baseline entry that waives the failure.
    known: Option<KnownRow>,
    since: Vec<Start>,
    #[serde(alias = "introduced")]
    local: Option<Figured>,
    #[serde(alias = "total")]
    accumulated: Option<Figured>,
    #[serde(alias = "headroom")]
    bound_ratio: Option<Number>,
    exact: Option<ExactRow>,
    /// Distribution of errors if nothing was evaluated exactly; else each side has its own.
    spread: Option<SpreadRow>,
    #[serde(alias = "rounding")]
    noise_floor: Option<NoiseFloor>,
    #[serde(alias = "rounding_of_total")]
    accumulated_noise_floor: Option<NoiseFloor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    distribution: Option<ExcessRow>,
    tolerance: ToleranceRow,
    judged: Judged,
    /// Position from which errors of log-probabilities persist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    drift: Option<usize>,
}

/// The rows of a pass that a dump has.
#[derive(Serialize, Deserialize)]
struct RecordedRow {
    rows: usize,
    last_position: usize,
}

/// A failure that is known.
#[derive(Serialize, Deserialize)]
struct KnownRow {
    reason: String,
    link: String,
    expires: String,
}

impl From<Known> for KnownRow {
    fn from(Known { reason, link, expires }: Known) -> Self {
        Self { reason, link, expires }
    }
}

impl From<KnownRow> for Known {
    fn from(KnownRow { reason, link, expires }: KnownRow) -> Self {
        Self { reason, link, expires }
    }
}

/// By what a row was judged.
#[derive(Serialize, Deserialize)]
struct Judged {
    gate: Named<Gate>,
    #[serde(default, alias = "in_total", skip_serializing_if = "std::ops::Not::not")]
    accumulated: bool,
    computed: Named<DType>,
    one_stage: bool,
    demanded_of: Option<Named<Role>>,
    doubt: Named<Doubt>,
}

impl From<&Row> for ResultRow {
    fn from(row: &Row) -> Self {
        let Site { point, layer, pass } = row.site;
        let Measure { gate, computed, is_one_stage, demanded_of, .. } = row.measure();
        Self {
            tap: Named(point),
            checkpoint: Named(row.checkpoint()),
            layer,
            pass,
            position: position(row),
            tokens: row.positions.len(),
            recorded: row
                .recorded
                .map(|Recorded { rows, last_position }| RecordedRow { rows, last_position }),
            verdict: Named(row.verdict),
            reason: row.reason.clone(),
            known: row.known.clone().map(KnownRow::from),
            since: starts(row),
            local: row.local.as_ref().map(Figured::from),
            accumulated: row.accumulated.as_ref().map(Figured::from),
            bound_ratio: row.bound_ratio().map(Number),
            exact: row.explained.as_ref().map(ExactRow::from),
            spread: match row.explained {
                Some(_) => None,
                None => row.judged().and_then(|found| SpreadRow::new(found.spread.as_deref()?)),
            },
            noise_floor: row.floor.or(row.accumulated_floor).map(NoiseFloor::from),
            accumulated_noise_floor: row.accumulated_floor.map(NoiseFloor::from),
            distribution: row.excess.map(ExcessRow::from),
            tolerance: ToleranceRow::from(&row.tolerance),
            judged: Judged {
                gate: Named(gate),
                accumulated: row.is_judged_by_accumulated(),
                computed: Named(computed),
                one_stage: is_one_stage,
                demanded_of: demanded_of.map(Named),
                doubt: Named(row.doubt()),
            },
            drift: row.drift(),
        }
    }
}

impl From<ResultRow> for Row {
    fn from(read: ResultRow) -> Self {
        let site = Site { point: read.tap.0, layer: read.layer, pass: read.pass };
        let positions = read.position.map_or(0..0, |first| first..first + read.tokens);
        let accumulated_floor = read.accumulated_noise_floor.map(Floor::from);
        let floor = read.noise_floor.map(Floor::from).filter(|floor| Some(*floor) != accumulated_floor);
        let measure = Measure {
            tolerance: read.tolerance.into(),
            gate: read.judged.gate.0,
            computed: read.judged.computed.0,
            is_one_stage: read.judged.one_stage,
            demanded_of: read.judged.demanded_of.map(|role| role.0),
        };
        let judged = Row::judge(site, positions, Observed::default(), measure);
        let mut row = judged.in_doubt(read.judged.doubt.0);
        row.accumulated = read.accumulated.map(Into::into);
        row.local = read.local.map(Into::into);
        row.since = read.since.into_iter().map(Site::from).collect();
        row.explained = read.exact.map(Into::into);
        (row.floor, row.accumulated_floor) = (floor, accumulated_floor);
        let recorded =
            read.recorded.map(|RecordedRow { rows, last_position }| Recorded { rows, last_position });
        row.recorded = recorded;
        row.excess = read.distribution.map(Excess::from);
        (row.verdict, row.reason) = (read.verdict.0, read.reason);
        let judged = if row.is_judged_by_accumulated() { &mut row.accumulated } else { &mut row.local };
        if let Some(judged) = judged {
            judged.spread = read.spread.and_then(SpreadRow::read).map(Box::new);
        }
        row.known = read.known.map(Known::from);
        row
    }
}

/// The first position of a row; none for what belongs to the whole run.
pub fn position(row: &Row) -> Option<usize> {
    row.site.pass.map(|_| row.positions.start)
}

/// Returns the input values of a row's local error.
pub fn starts(row: &Row) -> Vec<Start> {
    row.since.iter().map(|start| Start { tap: Named(start.point), layer: start.layer }).collect()
}

/// A value that others start from, in every pass.
#[derive(Serialize, Deserialize)]
pub struct Start {
    tap: Named<Point>,
    layer: Option<usize>,
}

impl From<Start> for Site {
    fn from(start: Start) -> Self {
        Self { point: start.tap.0, layer: start.layer, pass: None }
    }
}

/// A site of the forward pass.
#[derive(Clone, Serialize, Deserialize)]
pub struct Place {
    tap: Named<Point>,
    layer: Option<usize>,
    pass: Option<usize>,
}

impl From<Site> for Place {
    fn from(Site { point, layer, pass }: Site) -> Self {
        Self { tap: Named(point), layer, pass }
    }
}

impl From<Place> for Site {
    fn from(Place { tap, layer, pass }: Place) -> Self {
        Self { point: tap.0, layer, pass }
    }
}

/// The evaluation of both sides of a row.
#[derive(Serialize, Deserialize)]
pub struct ExactRow {
    evaluated: usize,
    shape: Vec<usize>,
    candidate: SideRow,
    reference: SideRow,
    found: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    alternatives: Vec<String>,
}

impl ExactRow {
    /// Without what a figure is drawn of.
    pub fn in_short(self) -> Self {
        let in_short = |side| SideRow { next: Vec::new(), spread: None, ..side };
        Self { candidate: in_short(self.candidate), reference: in_short(self.reference), ..self }
    }
}

impl From<&Explained> for ExactRow {
    fn from(explained: &Explained) -> Self {
        Self {
            evaluated: explained.evaluated,
            shape: explained.shape.clone(),
            candidate: SideRow::new(explained, &explained.candidate),
            reference: SideRow::new(explained, &explained.reference),
            found: explained.found.clone(),
            alternatives: explained.alternatives.clone(),
        }
    }
}

impl From<ExactRow> for Explained {
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

/// The evaluation of one side: number of values above their bound, the worst values, and the largest bias.
#[derive(Serialize, Deserialize)]
struct SideRow {
    #[serde(alias = "beyond")]
    over: usize,
    #[serde(alias = "headroom")]
    bound_ratio: Number,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worst: Option<OffRow>,
    /// The next worst.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    next: Vec<OffRow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bias: Option<BiasRow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spread: Option<SpreadRow>,
}

impl SideRow {
    fn new(explained: &Explained, side: &EngineErrors) -> Self {
        let mut worst = side.worst.iter().map(|off| OffRow {
            index: explained.index(off.flat),
            value: Number(off.value),
            exact: Number(off.exact.value),
            sigma: Number(off.exact.sigma),
            radius: Number(off.exact.radius),
            bound_ratio: Number(off.bound_ratio),
        });
        Self {
            over: side.over,
            bound_ratio: Number(side.bound_ratio),
            worst: worst.next(),
            next: worst.collect(),
            bias: side.bias.map(BiasRow::from),
            spread: side.spread.as_ref().and_then(SpreadRow::new),
        }
    }

    fn side(self, shape: &[usize]) -> EngineErrors {
        let flat = |index: &[usize]| {
            index
                .iter()
                .zip(shape)
                .fold(0usize, |flat, (&along, &length)| flat.saturating_mul(length).saturating_add(along))
        };
        let off = |row: OffRow| InexactValue {
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
            spread: self.spread.and_then(SpreadRow::read),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct OffRow {
    index: Vec<usize>,
    value: Number,
    exact: Number,
    sigma: Number,
    radius: Number,
    #[serde(alias = "headroom")]
    bound_ratio: Number,
}

#[derive(Serialize, Deserialize)]
struct BiasRow {
    of: StrandName,
    axis: Option<usize>,
    index: usize,
    kind: BiasKind,
    error: Number,
    sigmas: Number,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StrandName {
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
            BiasGroup::Whole => (StrandName::Tensor, None),
            BiasGroup::Axis(axis) => (StrandName::Axis, Some(axis)),
            BiasGroup::Channel => (StrandName::Channel, None),
        };
        Self {
            of,
            axis,
            index: bias.index,
            kind: if bias.is_scale { BiasKind::Scale } else { BiasKind::Offset },
            error: Number(bias.error),
            sigmas: Number(bias.z),
        }
    }
}

impl From<BiasRow> for BiasEstimate {
    fn from(row: BiasRow) -> Self {
        let strand = match row.of {
            StrandName::Tensor => BiasGroup::Whole,
            StrandName::Axis => BiasGroup::Axis(row.axis.unwrap_or(0)),
            StrandName::Channel => BiasGroup::Channel,
        };
        let is_scale = row.kind == BiasKind::Scale;
        Self { strand, index: row.index, error: row.error.0, is_scale, z: row.sigmas.0 }
    }
}

/// The noise floor, if measured.
#[derive(Serialize, Deserialize)]
struct NoiseFloor {
    max_abs: Number,
    max_scaled: Number,
    rel_l2: Number,
}

impl From<Floor> for NoiseFloor {
    fn from(floor: Floor) -> Self {
        Self {
            max_abs: Number(floor.max_abs),
            max_scaled: Number(floor.max_scaled),
            rel_l2: Number(floor.rel_l2),
        }
    }
}

impl From<NoiseFloor> for Floor {
    fn from(row: NoiseFloor) -> Self {
        Self { max_abs: row.max_abs.0, max_scaled: row.max_scaled.0, rel_l2: row.rel_l2.0 }
    }
}

/// The statistic of the errors that exceeds those of perturbed runs most.
#[derive(Serialize, Deserialize)]
struct ExcessRow {
    statistic: Named<Statistic>,
    error: Number,
    noise: Number,
    ratio: Number,
}

impl From<Excess> for ExcessRow {
    fn from(Excess { statistic, error, noise, ratio }: Excess) -> Self {
        let [error, noise, ratio] = [error, noise, ratio].map(Number);
        Self { statistic: Named(statistic), error, noise, ratio }
    }
}

impl From<ExcessRow> for Excess {
    fn from(row: ExcessRow) -> Self {
        Self { statistic: row.statistic.0, error: row.error.0, noise: row.noise.0, ratio: row.ratio.0 }
    }
}

#[derive(Serialize, Deserialize)]
struct ToleranceRow {
    max_abs: Number,
    mean_abs: Option<Number>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min_cosine: Option<Number>,
    source: String,
    asked: bool,
}

impl From<&Tolerance> for ToleranceRow {
    fn from(tolerance: &Tolerance) -> Self {
        let Tolerance { max_abs, mean_abs, min_cosine, source, is_asked } = tolerance.clone();
        let (mean_abs, min_cosine) = (mean_abs.map(Number), min_cosine.map(Number));
        Self { max_abs: Number(max_abs), mean_abs, min_cosine, source, asked: is_asked }
    }
}

impl From<ToleranceRow> for Tolerance {
    fn from(row: ToleranceRow) -> Self {
        let ToleranceRow { max_abs, mean_abs, min_cosine, source, asked } = row;
        let [mean_abs, min_cosine] = [mean_abs, min_cosine].map(|bound| bound.map(|bound| bound.0));
        Self { max_abs: max_abs.0, mean_abs, min_cosine, source, is_asked: asked }
    }
}
