//! Changes of the residual stream: what each addition adds.

pub(crate) mod low_rank;
pub(crate) mod stream;

use crate::change::outer_operations::made_by;
use crate::change::{CatalogueEntry, CauseKind, ChangeValue, FactorEstimate, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::addition::exact::Addition;
use crate::ops::norm::exact::LayerNormalisation;
use crate::ops::scaling::Multiplier;
use crate::ops::scaling::exact::Scaling;
use crate::tensor::Tensor;

const RESIDUALS: &[Point] = &[Point::AttnResidual, Point::BlockOut];

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::ResidualMissing,
        at: RESIDUALS,
        takes: "stream|branch",
        compute: |at, value| {
            let Addition { a, b } = at.stage()?;
            match value.as_word()? {
                "stream" => Some(b.clone()),
                "branch" => Some(a.clone()),
                _ => None,
            }
        },
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::ResidualScale,
        at: RESIDUALS,
        takes: "0.5",
        keys: Some(["residual_multiplier", "residual_scale"]),
        own: |at| branch(at).map_or(ChangeValue::Nothing, |(_, by)| ChangeValue::Number(by.factor().into())),
        compute: |at, value| {
            let (branch, by) = branch(at)?;
            // A branch with the factor 0 is reported as a missing branch.
            let factor = value.number().filter(|&factor| factor != 0.0)? as f32;
            let scaled = if factor == 1.0 { branch } else { at.n.scale(&branch, by.with(factor)) };
            Some(at.n.add(&at.stage::<Addition>()?.a, &scaled))
        },
        read: read_scale,
        usual: Some(|at| factors(at).into_iter().map(ChangeValue::Number).collect()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::NormOrder,
        at: RESIDUALS,
        takes: "normed-residual",
        compute: |at, value| (value.as_word()? == "normed-residual").then(|| of_normed(at))?,
        ..CatalogueEntry::PLAIN
    },
    // The last of transformers' hidden states is normed.
    CatalogueEntry {
        kind: CauseKind::NormOrder,
        at: &[Point::BlockOut],
        takes: "normed-by-final-norm",
        compute: |at, value| {
            let is_last = at.site.layer.is_some_and(|layer| layer + 1 == at.operations.n_layers());
            let is_it = is_last && value.as_word()? == "normed-by-final-norm";
            is_it.then(|| normed(at, at.value, Point::FinalNorm, None))?
        },
        ..CatalogueEntry::PLAIN
    },
];

/// Returns the branch that is added to the stream, before its multiplier, and the multiplier.
fn branch(at: &SiteContext) -> Option<(Tensor, Multiplier)> {
    let Addition { b, .. } = at.stage()?;
    let node = made_by(b);
    let scaled = node.as_ref().and_then(|node| node.operation::<Scaling>());
    Some(scaled.map_or_else(|| (b.clone(), Multiplier::Number(1.0)), |Scaling { x, by }| (x.clone(), *by)))
}

/// Returns the factors of real models: a constant, or a function of the depth.
fn factors(at: &SiteContext) -> Vec<f64> {
    let depth = 2.0 * at.operations.n_layers() as f64;
    vec![1.0, 0.5, 2.0, 1.0 / depth.sqrt()]
}

/// Estimates `c` in `theirs = a + c · b` by least squares.
fn read_scale(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let (Some(Addition { a, .. }), Some((b, _))) = (at.stage(), branch(at)) else { return Vec::new() };
    let pairs = a.data().iter().zip(b.data()).zip(theirs);
    let pairs = pairs.map(|((&a, &b), theirs)| (f64::from(b), theirs - f64::from(a)));
    FactorEstimate::read(pairs).map_or(Vec::new(), |scaled| scaled.values(at, &factors(at)))
}

/// Norms a stream with the norm at a tap and layer.
fn normed(at: &SiteContext, x: &Tensor, point: Point, layer: Option<usize>) -> Option<Tensor> {
    Some(match at.operations.norm(point, layer) {
        Some(norm) => at.n.rms_norm(x, norm),
        None => at.n.layer_norm(x, &at.operations.stage::<LayerNormalisation>(point, layer)?.norm),
    })
}

/// Adds the branch to the normed stream instead of the stream.
fn of_normed(at: &SiteContext) -> Option<Tensor> {
    let Addition { a, b } = at.stage()?;
    let point = if at.site.point == Point::AttnResidual { Point::AttnNorm } else { Point::FfnNorm };
    Some(at.n.add(&normed(at, a, point, at.site.layer)?, b))
}
