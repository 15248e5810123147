//! Norms: epsilon, divisor, gain, kind and width.
//!
//! RMSNorm with a separate epsilon for each row reproduces any divisor that an engine may use.

pub(crate) mod element;
pub(crate) mod gate;

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext, distance, rounded_to, snapped};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::norm::exact::{LayerNormalisation, RmsNormalisation};
use crate::ops::norm::{Gain, LayerNorm, RmsNorm};
use crate::tensor::Tensor;

pub(crate) const NORMS: &[Point] = &[
    Point::Embed,
    Point::AttnNorm,
    Point::QLatentNorm,
    Point::KvLatentNorm,
    Point::QNorm,
    Point::KNorm,
    Point::VNorm,
    Point::LayerPostNorm,
    Point::LaurelNorm,
    Point::QRopeNorm,
    Point::KRopeNorm,
    Point::AttnSubNorm,
    Point::AttnPostNorm,
    Point::FfnNorm,
    Point::RouterNorm,
    Point::ExpertNorm,
    Point::RoutedPostNorm,
    Point::SharedPostNorm,
    Point::FfnSubNorm,
    Point::FfnPostNorm,
    Point::FinalNorm,
];

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::NormEps,
        is_local: false,
        keys: Some(["rms_norm_eps", "attention.layer_norm_rms_epsilon"]),
        at: NORMS,
        takes: "1e-6",
        own: |at| own_eps(at).map_or(ChangeValue::Nothing, |eps| ChangeValue::Number(eps.into())),
        compute: |at, value| with_eps(at, value.number()? as f32),
        read: read_eps,
        usual: Some(|_| EPSILONS.iter().copied().map(ChangeValue::Number).collect()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::NormVariance,
        at: NORMS,
        takes: "eps-outside-root|largest|unbiased|none-subtracted|variance|squared-twice:32",
        compute: |at, value| with_variance(at, value.as_word()?),
        read: read_squares,
        usual: Some(|_| {
            let words = ["eps-outside-root", "largest", "unbiased", "none-subtracted", "variance"];
            words.map(ChangeValue::word).into()
        }),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::NormWeightOffset,
        at: NORMS,
        takes: "1|1:stored",
        own: |_| ChangeValue::Number(0.0),
        compute: with_offset,
        usual: Some(|_| {
            let numbers = [1.0, -1.0].map(ChangeValue::Number);
            numbers.into_iter().chain([ChangeValue::word("1:stored")]).collect()
        }),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::NormWeights,
        is_local: true,
        at: NORMS,
        takes: "ffn_norm|attn_norm:3|none",
        compute: |at, value| of_another(at, value.as_word()?),
        read: read_gains,
        usual: Some(|at| others(at).chain([ChangeValue::word("none")]).collect()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::NormKind,
        at: NORMS,
        takes: "rms|layer|l2",
        compute: |at, value| of_kind(at, value.as_word()?),
        usual: Some(|_| ["layer", "rms", "l2"].map(ChangeValue::word).into()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::NormMissing,
        at: NORMS,
        compute: |at, _| Some(input(at)?.clone()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::NormScope,
        at: &[Point::QNorm, Point::KNorm],
        takes: "all-heads|each-head",
        compute: |at, value| match value.as_word()? {
            "all-heads" => over_all_heads(at),
            "each-head" => over_each_head(at),
            _ => None,
        },
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::NormScope,
        at: NORMS,
        takes: "parts:2",
        compute: |at, value| in_parts(at, value.as_word()?.strip_prefix("parts:")?.parse().ok()?),
        read: read_parts,
        usual: Some(|_| ["parts:2", "parts:4"].map(ChangeValue::word).into()),
        ..CatalogueEntry::PLAIN
    },
];

/// Epsilons of real models, and defaults of engines.
const EPSILONS: [f64; 8] = [1e-5, 1e-6, 1e-8, 1e-12, 1e-3, 1e-4, 1e-7, 0.0];

pub(crate) fn own_eps(at: &SiteContext) -> Option<f32> {
    let of_rms = at.stage::<RmsNormalisation>().map(|rms| rms.norm.eps);
    of_rms.or_else(|| Some(at.stage::<LayerNormalisation>()?.norm.eps))
}

/// Computes the norm with a number added to each weight. With `1:stored`, the sum is rounded to the type of the
/// weights, as if it were stored in the file.
fn with_offset(at: &SiteContext, value: &ChangeValue) -> Option<Tensor> {
    let (offset, is_stored) = match value.as_word() {
        Some(word) => (word.strip_suffix(":stored")?.parse().ok()?, true),
        None => (value.number()? as f32, false),
    };
    let added = |weights: &[f32]| -> Vec<f32> { weights.iter().map(|weight| weight + offset).collect() };
    let Some(RmsNormalisation { x, norm }) =
        at.stage().filter(|rms: &&RmsNormalisation| rms.norm.gain == Gain::OnePlusWeight)
    else {
        return if is_stored { None } else { with_gains(at, added) };
    };
    let with = |weight: Vec<f32>, gain| {
        at.n.rms_norm(x, &RmsNorm { weight, eps: norm.eps, gain, groups: norm.groups })
    };
    match (offset, is_stored) {
        // 1 + (weight - 1) may not be the weight.
        (-1.0, false) => Some(with(norm.weight.clone(), Gain::WeightFirst)),
        (1.0, false) => Some(with(norm.weight.clone(), Gain::TwoPlusWeight)),
        (1.0, true) => {
            let twice = with(norm.weight.clone(), Gain::TwoPlusWeight);
            let stored = with(added(&norm.weight), norm.gain);
            (stored.data() != twice.data()).then_some(stored)
        }
        (_, false) => Some(with(added(&norm.weight), norm.gain)),
        (_, true) => None,
    }
}

/// Returns the input of the norm.
pub(crate) fn input<'b>(at: &'b SiteContext) -> Option<&'b Tensor> {
    let of_rms = at.stage::<RmsNormalisation>().map(|rms| &rms.x);
    of_rms.or_else(|| Some(&at.stage::<LayerNormalisation>()?.x))
}

fn with_eps(at: &SiteContext, eps: f32) -> Option<Tensor> {
    if let Some(RmsNormalisation { x, norm }) = at.stage() {
        return Some(at.n.rms_norm(x, &RmsNorm { eps, ..norm.clone() }));
    }
    let LayerNormalisation { x, norm } = at.stage()?;
    Some(at.n.layer_norm(x, &LayerNorm { eps, ..norm.clone() }))
}

/// Computes the norm with a separate epsilon for each row: `eps(mean square, row)`.
fn by_row(at: &SiteContext, eps: impl Fn(f64, &[f32]) -> f64) -> Option<Tensor> {
    let x = input(at)?;
    let width = at.stage::<RmsNormalisation>().map_or_else(|| x.row_len(), |rms| rms.norm.weight.len());
    let rows = 0..x.data().len() / width;
    let normed = rows.map(|index| {
        let (row, values) = (at.row(x, index, width), &x.data()[index * width..][..width]);
        match (at.stage::<RmsNormalisation>(), at.stage::<LayerNormalisation>()) {
            (Some(rms), _) => {
                let eps = eps(statistics(at, values).1, values) as f32;
                at.n.rms_norm(&row, &RmsNorm { eps, ..rms.norm.clone() })
            }
            (_, Some(layer)) => {
                let eps = eps(statistics(at, values).1, values) as f32;
                at.n.layer_norm(&row, &LayerNorm { eps, ..layer.norm.clone() })
            }
            _ => row,
        }
    });
    Some(at.joined(&normed.collect::<Vec<_>>()))
}

fn with_variance(at: &SiteContext, how: &str) -> Option<Tensor> {
    let eps = f64::from(own_eps(at)?);
    match how {
        "eps-outside-root" => by_row(at, |square, _| 2.0 * eps * square.sqrt() + eps * eps),
        "largest" => by_row(at, |square, _| (eps - square).max(0.0)),
        "unbiased" => by_row(at, |square, row| square / (row.len() as f64 - 1.0) + eps),
        "none-subtracted" => {
            at.stage::<LayerNormalisation>()?;
            // The mean is subtracted from the row, but the mean square includes it.
            by_row(at, |variance, row| mean_square(row) - variance + eps)
        }
        "variance" => {
            at.stage::<RmsNormalisation>()?;
            // Nothing is subtracted from the row, but the divisor is the root of its variance.
            by_row(at, |square, row| variance(row) - square + eps)
        }
        _ => {
            let width: usize = how.strip_prefix("squared-twice:")?.parse().ok()?;
            let fits = |x: &Tensor| width > 0 && x.row_len().is_multiple_of(width);
            input(at).filter(|x| fits(x))?;
            by_row(at, |square, row| squared_twice(row, width) - square + eps)
        }
    }
}

/// Returns the mean of the squares of partial mean squares: a reduction in two steps that wrongly squares in both.
fn squared_twice(row: &[f32], width: usize) -> f64 {
    let parts = row.chunks(width).map(|part| mean_square(part).powi(2));
    parts.sum::<f64>() / row.len().div_ceil(width) as f64
}

/// Finds the width of the parts whose mean squares are squared again.
fn read_squares(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some(x) = input(at) else { return Vec::new() };
    let widths = (3..=10).map(|power| 1 << power).filter(|width| x.row_len().is_multiple_of(*width));
    let values = widths.map(|width: usize| ChangeValue::Word(format!("squared-twice:{width}")));
    let is_near = |value: &ChangeValue| {
        let made = value.as_word().and_then(|how| with_variance(at, how));
        made.is_some_and(|made| distance(&made, theirs) < 0.01)
    };
    values.filter(is_near).collect()
}

fn mean_square(row: &[f32]) -> f64 {
    row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / row.len() as f64
}

fn mean(row: &[f32]) -> f64 {
    row.iter().map(|&x| f64::from(x)).sum::<f64>() / row.len() as f64
}

fn variance(row: &[f32]) -> f64 {
    let mean = mean(row);
    row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / row.len() as f64
}

/// Returns the mean that is subtracted from a row, and the mean square of the remainder.
pub(crate) fn statistics(at: &SiteContext, row: &[f32]) -> (f64, f64) {
    match at.stage::<LayerNormalisation>() {
        Some(_) => (mean(row), variance(row)),
        None => (0.0, mean_square(row)),
    }
}

/// Computes the norm with gains that are computed from the model's gains.
pub(crate) fn with_gains(at: &SiteContext, change: impl Fn(&[f32]) -> Vec<f32>) -> Option<Tensor> {
    if let Some(RmsNormalisation { x, norm }) = at.stage() {
        let weight = change(&norm.gains().collect::<Vec<_>>());
        return Some(
            at.n.rms_norm(x, &RmsNorm { weight, eps: norm.eps, gain: Gain::Weight, groups: norm.groups }),
        );
    }
    let LayerNormalisation { x, norm } = at.stage()?;
    Some(at.n.layer_norm(x, &LayerNorm { weight: change(&norm.weight), ..norm.clone() }))
}

/// Computes the norm with the gain of another norm, such as `ffn_norm` (same layer) or `ffn_norm:3`, or without a gain.
fn of_another(at: &SiteContext, place: &str) -> Option<Tensor> {
    if place == "none" {
        return with_gains(at, |gains| vec![1.0; gains.len()]);
    }
    let (name, layer) = match place.split_once(':') {
        Some((name, layer)) => (name, Some(layer.parse().ok()?)),
        None => (place, at.site.layer),
    };
    let point: Point = name.parse().ok()?;
    let layer = if point == Point::FinalNorm { None } else { layer };
    if let Some(RmsNormalisation { x, norm }) = at.stage() {
        let other = at.operations.norm(point, layer)?.clone();
        let fits = other.weight.len() == norm.weight.len();
        return fits.then(|| at.n.rms_norm(x, &RmsNorm { eps: norm.eps, ..other }));
    }
    let LayerNormalisation { x, norm } = at.stage()?;
    let other = &at.operations.stage::<LayerNormalisation>(point, layer)?.norm;
    let fits = other.weight.len() == norm.weight.len();
    fits.then(|| at.n.layer_norm(x, &LayerNorm { eps: norm.eps, ..other.clone() }))
}

/// Returns the other norms of the same width: first those of this layer, then the same norm in other layers, nearest
/// first.
fn others(at: &SiteContext) -> impl Iterator<Item = ChangeValue> {
    let width = at.stage::<RmsNormalisation>().map(|rms| rms.norm.weight.len());
    let width = width.or_else(|| Some(at.stage::<LayerNormalisation>()?.norm.weight.len())).unwrap_or(0);
    let (own, layer) = (at.site.point, at.site.layer);
    let mut found: Vec<(usize, bool, ChangeValue)> = at
        .operations
        .norms(width)
        .filter(|(point, other, _)| (*point, *other) != (own, layer))
        .map(|(point, other, _)| {
            let away = other.zip(layer).map_or(0, |(other, layer)| other.abs_diff(layer));
            let name = match other.filter(|other| Some(*other) != layer) {
                Some(other) => format!("{point}:{other}"),
                None => point.to_string(),
            };
            (away, point != own, ChangeValue::Word(name))
        })
        .filter(|(away, other_point, _)| *away == 0 || !other_point)
        .collect();
    found.sort_by_key(|(away, is_other, _)| (*away, *is_other));
    found.into_iter().map(|(_, _, value)| value)
}

fn of_kind(at: &SiteContext, kind: &str) -> Option<Tensor> {
    if let Some(RmsNormalisation { x, norm }) = at.stage() {
        let weight: Vec<f32> = norm.gains().collect();
        let bias = vec![0.0; weight.len()];
        return match kind {
            "layer" => {
                Some(at.n.layer_norm(x, &LayerNorm { weight, bias, eps: norm.eps, gain: Gain::Weight }))
            }
            // The sum of squares replaces the mean of squares.
            "l2" => by_row(at, |square, row| square * (row.len() as f64 - 1.0) + f64::from(norm.eps)),
            _ => None,
        };
    }
    let LayerNormalisation { x, norm } = at.stage()?;
    let rms = RmsNorm { weight: norm.weight.clone(), eps: norm.eps, gain: norm.gain, groups: 1 };
    match kind {
        "rms" => {
            let bias = Tensor::from_rows(x.data().len() / norm.bias.len(), norm.bias.len(), |_, out| {
                out.copy_from_slice(&norm.bias)
            });
            Some(at.n.add(&at.n.rms_norm(x, &rms), &bias.reshaped(x.shape())))
        }
        _ => None,
    }
}

/// Norms all heads of a token with one divisor.
fn over_all_heads(at: &SiteContext) -> Option<Tensor> {
    let RmsNormalisation { x, norm } = at.stage()?;
    let (heads, width) = (*x.shape().get(1)?, norm.weight.len());
    if width != *x.shape().get(2)? {
        return None;
    }
    let squares: Vec<f64> = (0..x.rows()).map(|token| mean_square(x.row(token))).collect();
    let rows = (0..x.data().len() / width).map(|index| {
        let own = mean_square(&x.data()[index * width..][..width]);
        let eps = squares[index / heads] - own + f64::from(norm.eps);
        at.n.rms_norm(&at.row(x, index, width), &RmsNorm { eps: eps as f32, ..norm.clone() })
    });
    Some(at.joined(&rows.collect::<Vec<_>>()))
}

/// Norms each head with its own divisor, where the model has one divisor for all heads.
fn over_each_head(at: &SiteContext) -> Option<Tensor> {
    let RmsNormalisation { x, norm } = at.stage()?;
    let (heads, head_dim) = (*x.shape().get(1)?, *x.shape().get(2)?);
    let gains = |head: usize| norm.weight.get(head * head_dim..(head + 1) * head_dim);
    gains(heads - 1)?;
    let rows = (0..x.rows() * heads).map(|index| {
        let weight = gains(index % heads)?.to_vec();
        Some(at.n.rms_norm(&at.row(x, index, head_dim), &RmsNorm { weight, groups: 1, ..*norm }))
    });
    Some(at.joined(&rows.collect::<Option<Vec<_>>>()?))
}

/// Norms equal parts of each row with separate divisors, as on devices that each have a part of the row.
fn in_parts(at: &SiteContext, parts: usize) -> Option<Tensor> {
    let RmsNormalisation { x, norm } = at.stage()?;
    let whole = norm.weight.len();
    if !(2..=whole / 2).contains(&parts) || !whole.is_multiple_of(parts) {
        return None;
    }
    let width = whole / parts;
    let rows = (0..x.data().len() / width).map(|index| {
        let weight = norm.weight[index % parts * width..][..width].to_vec();
        at.n.rms_norm(&at.row(x, index, width), &RmsNorm { weight, groups: 1, ..*norm })
    });
    Some(at.joined(&rows.collect::<Vec<_>>()))
}

/// Finds the numbers of parts for which the results are near the engine's.
fn read_parts(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let width = at.stage::<RmsNormalisation>().map_or(0, |rms| rms.norm.weight.len());
    let is_near = |&parts: &usize| in_parts(at, parts).is_some_and(|made| distance(&made, theirs) < 0.02);
    let parts = (2..=width.min(64)).filter(is_near);
    parts.map(|parts| ChangeValue::Word(format!("parts:{parts}"))).collect()
}

/// Estimates eps from the factor of each row, r = 1/√(mean square + eps). Rows with small values weigh most.
fn read_eps(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some(x) = input(at) else { return Vec::new() };
    let (gains, biases) = match (at.stage::<RmsNormalisation>(), at.stage::<LayerNormalisation>()) {
        (Some(rms), _) => (rms.norm.gains().collect::<Vec<_>>(), vec![0.0; rms.norm.weight.len()]),
        (_, Some(layer)) => (layer.norm.weight.clone(), layer.norm.bias.clone()),
        _ => return Vec::new(),
    };
    let (mut sum, mut weights) = (0.0, 0.0);
    for (row, theirs) in x.data().chunks(gains.len()).zip(theirs.chunks(gains.len())) {
        let (mean, square) = statistics(at, row);
        let (mut up, mut down) = (0.0, 0.0);
        for (index, (&x, &y)) in row.iter().zip(theirs).enumerate() {
            let scaled = (f64::from(x) - mean) * f64::from(gains[index]);
            up += (y - f64::from(biases[index])) * scaled;
            down += scaled * scaled;
        }
        let factor = up / down;
        let weight = 1.0 / (square * square);
        if factor.is_finite() && factor > 0.0 && weight.is_finite() {
            sum += weight * (1.0 / (factor * factor) - square);
            weights += weight;
        }
    }
    let read = sum / weights;
    if !read.is_finite() {
        return Vec::new();
    }
    let mut values = if read > 0.0 { snapped(read, &EPSILONS[..7], 0.7) } else { Vec::new() };
    values.push(rounded_to(2, read.max(0.0)));
    values.extend(EPSILONS);
    values.dedup();
    values.into_iter().map(ChangeValue::Number).collect()
}

/// Finds the other norms whose gain reproduces the engine's rows.
fn read_gains(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let is_near = |value: &ChangeValue| {
        let computed = value.as_word().and_then(|place| of_another(at, place));
        computed.is_some_and(|computed| distance(&computed, theirs) < 0.1)
    };
    others(at).chain([ChangeValue::word("none")]).filter(is_near).collect()
}
