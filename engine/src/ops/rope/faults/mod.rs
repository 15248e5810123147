//! Changes of RoPE: base, scaling, positions, pairing, width and precision.
//!
//! Any table of angles can be expressed as the model's table with a divisor for each pair and each position.

mod frequencies;
mod scaling;
mod width;
mod yarn;

use std::ops::Range;

use crate::change::outer_operations::made_by;
use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext, distance, rounded_to, snapped};
use crate::checkpoint::Point;
use crate::exact::{Float, Profile};
use crate::numerics::{Numerics, Transformers};
use crate::ops::norm::exact::RmsNormalisation;
use crate::ops::rope::exact::Rotary;
use crate::ops::rope::faults::scaling::{read_scaling, scaling, told};
use crate::ops::rope::faults::yarn::usual_yarns;
use crate::ops::rope::{Rope, RopeScaling, RopeTable};
use crate::tensor::{RopePairing, Tensor};
use crate::tracing::TracedNumerics;

const ROTATED: &[Point] = &[Point::QRope, Point::KRope];

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::RopeTheta,
        is_local: false,
        keys: Some(["rope_theta", "rope.freq_base"]),
        at: ROTATED,
        takes: "10000",
        own: |at| {
            at.stage::<Rotary>().map_or(ChangeValue::Nothing, |op| ChangeValue::Number(op.rope.theta.into()))
        },
        compute: |at, value| {
            let theta = value.number().filter(|&theta| theta >= 1.0)? as f32;
            with(at, |rope| Some(Rope { theta, ..rope.clone() }))
        },
        read: read_theta,
        usual: Some(|at| thetas(at).into_iter().map(ChangeValue::Number).collect()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::RopeScaling,
        is_local: false,
        keys: Some(["rope_scaling", "rope.scaling"]),
        at: ROTATED,
        takes: "none|linear:8|llama3:8:1:4:8192|yarn:4:32768|yarn:4:32768:32:1|inverse|twice|factors-alone|magnitude:1.2|truncated|untruncated",
        own: |at| {
            at.stage::<Rotary>().map_or(ChangeValue::Nothing, |op| ChangeValue::Word(told(&op.rope.scaling)))
        },
        compute: |at, value| {
            let word = value.as_word()?.to_owned();
            with(at, move |rope| Some(Rope { scaling: scaling(rope, &word)?, ..rope.clone() }))
        },
        read: read_scaling,
        usual: Some(|at| {
            let words = [
                "none",
                "factors-alone",
                "truncated",
                "untruncated",
                "inverse",
                "twice",
                "linear:8",
                "linear:4",
                "linear:2",
                "llama3:8:1:4:8192",
                "llama3:32:1:4:8192",
            ];
            let yarns = at.stage::<Rotary>().map_or(Vec::new(), |op| usual_yarns(&op.rope));
            words.map(ChangeValue::word).into_iter().chain(yarns.into_iter().map(ChangeValue::Word)).collect()
        }),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::RopePairing,
        at: ROTATED,
        takes: "half|interleaved",
        own: |at| {
            at.stage::<Rotary>().map_or(ChangeValue::Nothing, |op| ChangeValue::word(op.rope.pairing.name()))
        },
        compute: |at, value| {
            let pairing = pairing(value.as_word()?)?;
            with(at, |rope| Some(Rope { pairing, ..rope.clone() }))
        },
        usual: Some(|_| {
            [RopePairing::Half, RopePairing::Interleaved]
                .map(|pairing| ChangeValue::word(pairing.name()))
                .into()
        }),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::RopeMissing,
        at: ROTATED,
        compute: |at, _| Some(at.stage::<Rotary>()?.x.clone()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::RopePosition,
        at: ROTATED,
        takes: "1|restart|still",
        compute: |at, value| {
            let Rotary { positions, .. } = at.stage()?;
            let by = |start: usize| start..start + positions.len();
            match value {
                ChangeValue::Number(offset) => {
                    let start = positions.start as i64 + *offset as i64;
                    turned_at(at, by(usize::try_from(start).ok()?))
                }
                ChangeValue::Word(word) if word == "restart" && positions.start > 0 => turned_at(at, by(0)),
                ChangeValue::Word(word) if word == "still" && positions.len() > 1 => {
                    each_position(at, |_| positions.start)
                }
                _ => None,
            }
        },
        read: read_position,
        usual: Some(|_| {
            let offsets = [1.0, -1.0, 2.0, -2.0].map(ChangeValue::Number);
            offsets.into_iter().chain(["restart", "still"].map(ChangeValue::word)).collect()
        }),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::RopeDirection,
        at: ROTATED,
        compute: |at, _| with(at, |rope| Some(divided(rope, |_| -1.0))),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::RopeLayers,
        keys: Some(["no_rope_layers", "no_rope_layer_interval"]),
        at: ROTATED,
        compute: |at, _| turned_as_others(at),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::RopeWidth,
        keys: Some(["partial_rotary_factor", "rope.dimension_count"]),
        at: ROTATED,
        takes: "32|32:whole|last:32|last:32:whole",
        own: |at| {
            at.stage::<Rotary>().map_or(ChangeValue::Nothing, |op| ChangeValue::Number(op.rope.width as f64))
        },
        compute: width::changed,
        usual: Some(width::usual),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::RopePrecision,
        at: ROTATED,
        takes: "frequencies-bf16|frequencies-f16|angles-bf16|angles-f16|both-bf16|both-f16|cos-sin-bf16|cos-sin-f16|tables-bf16|tables-f16|all-bf16|all-f16",
        compute: |at, value| rounded(at, value.as_word()?),
        usual: Some(|_| {
            let parts = ["frequencies", "angles", "both", "cos-sin", "tables", "all"];
            let words = |part| ["bf16", "f16"].map(|float| ChangeValue::Word(format!("{part}-{float}")));
            parts.iter().flat_map(words).collect()
        }),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::RopeFrequencies,
        at: ROTATED,
        takes: "4-7:x4|6-7:unscaled|all:x0.5|0-1:short",
        compute: |at, value| frequencies::changed(at, value.as_word()?),
        read: frequencies::read,
        usual: Some(frequencies::usual),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::NormOrder,
        at: ROTATED,
        takes: "after-rope",
        compute: |at, value| (value.as_word()? == "after-rope").then(|| normed_after(at))?,
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::NormOrder,
        at: &[Point::QRope, Point::KRope, Point::QRopeNorm, Point::KRopeNorm],
        takes: "before-rope",
        compute: |at, value| (value.as_word()? == "before-rope").then(|| normed_before(at))?,
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::RopeOnV,
        at: &[Point::V],
        compute: |at, _| {
            let rope = at.operations.rope(at.site.layer?)?;
            Some(at.n.rotate(at.value, &at.n.rope_table(rope, at.positions.clone())))
        },
        ..CatalogueEntry::PLAIN
    },
];

/// Computes the rotation with another table of angles.
fn with(at: &SiteContext, change: impl Fn(&Rope) -> Option<Rope>) -> Option<Tensor> {
    let Rotary { x, rope, positions } = at.stage()?;
    Some(at.n.rotate(x, &at.n.rope_table(&change(rope)?, positions.clone())))
}

/// Norms a query or key before its rotation instead of after it. At the norm's own tap, the values stay unchanged.
fn normed_before(at: &SiteContext) -> Option<Tensor> {
    let norm = match at.site.point {
        Point::QRope => Point::QRopeNorm,
        Point::KRope => Point::KRopeNorm,
        _ => return at.stage().map(|RmsNormalisation { x, .. }| x.clone()),
    };
    let Rotary { x, rope, positions } = at.stage()?;
    let x = at.n.rms_norm(x, at.operations.norm(norm, at.site.layer)?);
    Some(at.n.rotate(&x, &at.n.rope_table(rope, positions.clone())))
}

/// Norms a query or key after its rotation instead of before it.
fn normed_after(at: &SiteContext) -> Option<Tensor> {
    let Rotary { x, rope, positions } = at.stage()?;
    let norm = if at.site.point == Point::QRope { Point::QNorm } else { Point::KNorm };
    let norm = at.operations.norm(norm, at.site.layer)?;
    let made = made_by(x);
    let before = made.as_ref().and_then(|node| node.operation::<RmsNormalisation>());
    let x = before.map_or(x, |before| &before.x);
    Some(at.n.rms_norm(&at.n.rotate(x, &at.n.rope_table(rope, positions.clone())), norm))
}

/// Estimates the offset of the last token's position by comparing the rotated value with the angles of nearby
/// positions.
fn read_position(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    const AROUND: usize = 256;
    let Some(Rotary { x, rope, positions }) = at.stage() else { return Vec::new() };
    let (Some(last), Some(own)) = (x.rows().checked_sub(1), positions.clone().next_back()) else {
        return Vec::new();
    };
    let row = at.row(x, last, x.row_len()).reshaped(&[1, x.shape()[1], x.shape()[2]]);
    let wanted = &theirs[last * x.row_len()..];
    let off = |position: usize| {
        distance(&at.n.rotate(&row, &at.n.rope_table(rope, position..position + 1)), wanted)
    };
    let near = own.saturating_sub(AROUND)..=own + AROUND;
    let nearest =
        near.map(|position| (off(position), position)).min_by(|one, other| one.0.total_cmp(&other.0));
    let nearest = nearest.filter(|&(off, position)| off < 0.02 && position != own);
    nearest.map(|(_, position)| ChangeValue::Number(position as f64 - own as f64)).into_iter().collect()
}

/// Rotates in a layer that should not rotate, with the angles of another layer.
fn turned_as_others(at: &SiteContext) -> Option<Tensor> {
    if at.stage::<Rotary>().is_some() {
        return None;
    }
    let rope = (0..at.operations.n_layers()).find_map(|layer| at.operations.rope(layer))?;
    Some(at.n.rotate(at.value, &at.n.rope_table(rope, at.positions.clone())))
}

fn turned_at(at: &SiteContext, positions: Range<usize>) -> Option<Tensor> {
    let Rotary { x, rope, .. } = at.stage()?;
    Some(at.n.rotate(x, &at.n.rope_table(rope, positions)))
}

/// Rotates each token at its own position.
fn each_position(at: &SiteContext, position: impl Fn(usize) -> usize) -> Option<Tensor> {
    let Rotary { rope, positions, .. } = at.stage()?;
    by_token(at, |token| (rope.clone(), position(positions.start + token)))
}

/// Rotates each token with separate settings and a separate position.
fn by_token(at: &SiteContext, rope: impl Fn(usize) -> (Rope, usize)) -> Option<Tensor> {
    by_table(at, at.n, &at.stage::<Rotary>()?.x, |token| {
        let (rope, position) = rope(token);
        at.n.rope_table(&rope, position..position + 1)
    })
}

/// Rotates each token with a separate table that has one position.
fn by_table(
    at: &SiteContext,
    n: &TracedNumerics,
    x: &Tensor,
    table: impl Fn(usize) -> RopeTable,
) -> Option<Tensor> {
    let shape = [1, x.shape()[1], x.shape()[2]];
    let rows = (0..x.rows()).map(|token| {
        let row = at.row(x, token, x.row_len()).reshaped(&shape);
        n.rotate(&row, &table(token))
    });
    Some(at.joined(&rows.collect::<Vec<_>>()))
}

/// Divides each pair's angle by another factor, on top of the model's scaling.
fn divided(rope: &Rope, by: impl Fn(usize) -> f64) -> Rope {
    let factor = |pair: usize| {
        let plain = Rope { scaling: RopeScaling::None, ..rope.clone() };
        (plain.exact_frequency(pair) / rope.exact_frequency(pair) * by(pair)) as f32
    };
    Rope { scaling: by_factors(rope, (0..rope.width / 2).map(factor).collect()), ..rope.clone() }
}

/// Returns the rotation that undoes this rotation, with the inverse magnitude.
pub(crate) fn inverse(rope: &Rope) -> Rope {
    let back = divided(rope, |_| -1.0);
    let scaling = match back.scaling {
        RopeScaling::Stretched { factors, magnitude } => {
            RopeScaling::Stretched { factors, magnitude: 1.0 / magnitude }
        }
        other => other,
    };
    Rope { scaling, ..back }
}

/// Replaces the scaling factors and keeps the magnitude of cosines and sines.
fn by_factors(rope: &Rope, factors: Vec<f32>) -> RopeScaling {
    match rope.magnitude() {
        1.0 => RopeScaling::Factors(factors),
        magnitude => RopeScaling::Stretched { factors, magnitude },
    }
}

fn pairing(word: &str) -> Option<RopePairing> {
    [RopePairing::Half, RopePairing::Interleaved].into_iter().find(|pairing| pairing.name() == word)
}

/// Computes RoPE with the frequencies, the angles, both, or the whole rotation rounded to a smaller type.
fn rounded(at: &SiteContext, what: &str) -> Option<Tensor> {
    let (what, float) = what.rsplit_once('-')?;
    let (float, short) = match float {
        "bf16" => (Float::Bf16, Transformers::Bf16),
        "f16" => (Float::F16, Transformers::F16),
        _ => return None,
    };
    let Rotary { x, rope, positions } = at.stage()?;
    let frequency = |pair| match what {
        "angles" => rope.exact_frequency(pair),
        _ => float.round(rope.exact_frequency(pair)),
    };
    // Expresses a pair's angle at a position as a divisor of the model's angle.
    let turned = |position: usize| {
        let by = |pair| {
            let angle = float.round(position as f64 * frequency(pair));
            if position == 0 { 1.0 } else { position as f64 * rope.exact_frequency(pair) / angle }
        };
        (divided(rope, by), position)
    };
    match what {
        "frequencies" => {
            with(at, |rope| Some(divided(rope, |pair| rope.exact_frequency(pair) / frequency(pair))))
        }
        "angles" | "both" => by_token(at, |token| turned(positions.start + token)),
        "cos-sin" | "tables" => {
            let n = TracedNumerics::new(at.n.numerics(), Profile { cos_sin: float, ..at.n.profile() });
            let table = |rope: &Rope, position: usize| {
                n.rope_table(rope, position..position + 1).rounded(|x| float.round(x.into()) as f32)
            };
            by_table(at, &n, x, |token| match what {
                "tables" => table(&turned(positions.start + token).0, positions.start + token),
                _ => table(rope, positions.start + token),
            })
        }
        "all" => {
            let n = TracedNumerics::new(&short, Profile::of(&short));
            let x = n.mapped(x, |x, _| x, 0.0);
            by_table(at, &n, &x, |token| {
                let (rope, position) = turned(positions.start + token);
                n.rope_table(&rope, position..position + 1)
            })
        }
        _ => None,
    }
}

/// Returns the bases of common models. Bases of this model's other layers come first.
fn thetas(at: &SiteContext) -> Vec<f64> {
    const USUAL: [f64; 12] = [1e4, 5e5, 1e6, 1e5, 1.6e5, 1.5e5, 2.5e5, 2e5, 1e7, 8e6, 5e6, 5e4];
    let layers = 0..at.operations.n_layers();
    let own = layers.filter_map(|layer| Some(f64::from(at.operations.rope(layer)?.theta)));
    let mut all: Vec<f64> = Vec::new();
    for theta in own.chain(USUAL) {
        if !all.contains(&theta) {
            all.push(theta);
        }
    }
    all
}

/// Returns each pair's angle per position, and its weight. The angles of each row are known only up to full turns.
pub(crate) fn pair_frequencies(at: &SiteContext, theirs: &[f64]) -> Vec<(f64, f64)> {
    let Some(Rotary { x, rope, positions }) = at.stage() else { return Vec::new() };
    let (head_dim, heads) = (x.shape()[2], x.shape()[1]);
    let angle_of = |token: usize, pair: usize| {
        let (first, second) = rope.pairing.members(pair, rope.width);
        let (mut dot, mut cross) = (0.0, 0.0);
        for head in 0..heads {
            let start = (token * heads + head) * head_dim;
            let [a, b] = [first, second].map(|at| f64::from(x.data()[start + at]));
            let [c, d] = [first, second].map(|at| theirs[start + at]);
            dot += a * c + b * d;
            cross += a * d - b * c;
        }
        (cross.atan2(dot), dot.hypot(cross))
    };
    let of_pair = |pair: usize| {
        let (mut sum, mut weights, mut turned) = (0.0, 0.0, None::<f64>);
        for token in 0..x.rows() {
            let position = (positions.start + token) as f64;
            let (angle, amplitude) = angle_of(token, pair);
            if position == 0.0 || !angle.is_finite() {
                continue;
            }
            // The first angle is less than half a turn. The estimate so far gives the number of full turns at the next
            // position.
            let expected = turned
                .map_or(if positions.start > 1 { rope.exact_frequency(pair) } else { 0.0 }, |f| f)
                * position;
            let turns = ((expected - angle) / std::f64::consts::TAU).round();
            let whole = angle + turns * std::f64::consts::TAU;
            let weight = amplitude * position * position;
            sum += weight * whole / position;
            weights += weight;
            turned = Some(sum / weights);
        }
        (sum / weights, weights)
    };
    (0..rope.width / 2).map(of_pair).collect()
}

/// Estimates theta from the ratio of neighbouring frequencies.
fn read_theta(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some(Rotary { rope, .. }) = at.stage() else { return Vec::new() };
    let plain = Rope { scaling: RopeScaling::None, ..rope.clone() };
    let (mut up, mut down) = (0.0, 0.0);
    for (pair, (read, weight)) in pair_frequencies(at, theirs).into_iter().enumerate().skip(1) {
        if !(read > 0.0) || !weight.is_finite() {
            continue;
        }
        // The model's own scaling stays applied.
        let scaled = rope.exact_frequency(pair) / plain.exact_frequency(pair);
        let exponent = 2.0 * pair as f64 / rope.width as f64;
        let weight = weight * (read * exponent).powi(2);
        up += weight * -(read / scaled).ln() / exponent;
        down += weight;
    }
    let read = (up / down).exp();
    if !read.is_finite() {
        return Vec::new();
    }
    let mut values = snapped(read, &thetas(at), 0.3);
    values.extend([2, 3, 5].map(|digits| rounded_to(digits, read)));
    near(at, theirs, values.into_iter().map(ChangeValue::Number), "theta")
}

/// Returns the values of `--suppose` whose results are near the engine's.
fn near(
    at: &SiteContext,
    theirs: &[f64],
    values: impl Iterator<Item = ChangeValue>,
    what: &str,
) -> Vec<ChangeValue> {
    let computed = |value: &ChangeValue| {
        let entry = ENTRIES.iter().find(|entry| entry.kind.name().ends_with(what))?;
        (entry.compute)(at, value)
    };
    values
        .filter(|value| computed(value).is_some_and(|computed| distance(&computed, theirs) < 0.05))
        .collect()
}
