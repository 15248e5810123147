//! Changes of matrix products: another matrix, a missing bias or scale, another order of rows.

pub(crate) mod bias;
mod block_scales;
pub(crate) mod columns;
pub(crate) mod corruption;
pub(crate) mod fused_projections;
mod group_steps;
pub(crate) mod groups;
pub(crate) mod input_factors;
pub(crate) mod input_scales;
pub(crate) mod precision;
pub mod shards;
pub(crate) mod split_sums;
pub(crate) mod unwritten_rows;
pub(crate) mod weight;

use crate::change::outer_operations::made_by;
use crate::change::{
    CatalogueEntry, CauseKind, ChangeValue, FactorEstimate, LinearParameters, SiteContext, distance,
    rounded_to, snapped,
};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::embedding::exact::EmbeddingLookup;
use crate::ops::linear::exact::{Integers, Linear};
use crate::ops::norm::exact::RmsNormalisation;
use crate::ops::rope::exact::Rotary;
use crate::ops::scaling::Multiplier;
use crate::ops::scaling::exact::Scaling;
use crate::tensor::Tensor;
use crate::weight::{DType, Matrix, StoredTensor};

/// Taps of products with a weight matrix, and of the embedding table.
const MATRICES: &[Point] = &[
    Point::Embed,
    Point::PredictCoefs,
    Point::CorrectCoefs,
    Point::LaurelLow,
    Point::LaurelHigh,
    Point::MixerIn,
    Point::ConvIn,
    Point::MixerGate,
    Point::BetaLogit,
    Point::DecayLogit,
    Point::QLatent,
    Point::KvLatent,
    Point::Q,
    Point::K,
    Point::V,
    Point::AttnGate,
    Point::AttnOut,
    Point::RouterLogits,
    Point::SharedGate,
    Point::SharedUp,
    Point::SharedOut,
    Point::FfnGate,
    Point::FfnUp,
    Point::FfnOut,
    Point::Logits,
];

/// Taps of products with a weight matrix.
pub(crate) const PRODUCTS: &[Point] = MATRICES.split_at(1).1;

/// Products that tensor parallelism splits by inputs. The devices add their partial sums. If each device adds the
/// bias, the bias is added once per device.
const ROW_PARALLEL: &[Point] = &[Point::AttnOut, Point::FfnOut, Point::SharedOut];

/// Taps of products inside layers.
const IN_LAYERS: &[Point] = PRODUCTS.split_at(PRODUCTS.len() - 1).0;

const QKV: &[Point] = &[Point::Q, Point::K, Point::V];

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::LogitScale,
        is_local: false,
        keys: Some(["logits_scaling", "logit_scale"]),
        at: &[Point::Logits],
        takes: "0.0625",
        own: |at| ChangeValue::Number(times(at).map_or(1.0, |(_, by)| by.factor().into())),
        compute: |at, value| match times(at) {
            Some((products, by)) => Some(at.n.scale(products, by.with(value.number()? as f32))),
            None => scaled(at, value),
        },
        read: |at, theirs| match times(at) {
            Some((products, _)) => {
                let pairs = products.data().iter().map(|&x| f64::from(x)).zip(theirs.iter().copied());
                FactorEstimate::read(pairs).map_or(Vec::new(), |scaled| scaled.values(at, &[1.0]))
            }
            None => read_scale(at, theirs),
        },
        usual: Some(|at| {
            let root = width(at).sqrt();
            [1.0, 0.5, 2.0, 1.0 / root, root].map(ChangeValue::Number).into()
        }),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::LmHead,
        keys: Some(["tie_word_embeddings", "output"]),
        at: &[Point::Embed, Point::Logits],
        takes: "token_embd|output",
        own: |at| ChangeValue::word(if at.site.point == Point::Embed { "token_embd" } else { "output" }),
        compute: of_other_table,
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::QkvSwap,
        is_local: true,
        at: QKV,
        takes: "q|k|v",
        own: |at| ChangeValue::word(at.site.point.name()),
        compute: |at, value| {
            let other = QKV.iter().find(|point| Some(point.name()) == value.as_word())?;
            with(at, &at.operations.product(*other, at.site.layer)?)
        },
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::GateUpSwap,
        at: &[Point::FfnGate, Point::FfnUp, Point::SharedGate, Point::SharedUp],
        takes: "weights",
        compute: |at, value| {
            let other = match at.site.point {
                Point::FfnGate => Point::FfnUp,
                Point::SharedGate => Point::SharedUp,
                Point::SharedUp => Point::SharedGate,
                _ => Point::FfnGate,
            };
            let is_asked_for = value.as_word() == Some("weights");
            is_asked_for.then(|| with(at, &at.operations.product(other, at.site.layer)?))?
        },
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::LayerOrder,
        at: IN_LAYERS,
        takes: "3",
        own: |at| at.site.layer.map_or(ChangeValue::Nothing, |layer| ChangeValue::Number(layer as f64)),
        compute: |at, value| with(at, &at.operations.product(at.site.point, Some(whole(value.number()?)?))?),
        read: nearest_layers,
        usual: Some(|at| neighbours(at).map(|layer| ChangeValue::Number(layer as f64)).collect()),
        ..CatalogueEntry::PLAIN
    },
    // A port without support for biases omits all; a port that misreads them omits those of one tap.
    CatalogueEntry {
        kind: CauseKind::BiasMissing,
        at: PRODUCTS,
        takes: "none",
        compute: |at, value| {
            let product = own(at).filter(|product| product.bias.is_some())?;
            (value.as_word()? == "none").then(|| with(at, &LinearParameters { bias: None, ..product }))?
        },
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::BiasMissing,
        is_local: true,
        at: IN_LAYERS,
        takes: "layer:3",
        compute: with_bias_of,
        usual: Some(|at| neighbours(at).map(|layer| ChangeValue::Word(format!("layer:{layer}"))).collect()),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::WeightMissing,
        is_local: true,
        at: PRODUCTS,
        takes: "zero|bias-alone",
        compute: without_weight,
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::QkPermutation,
        at: &[Point::Q, Point::K, Point::QNorm, Point::KNorm, Point::QRope, Point::KRope],
        takes: "half-to-interleaved|interleaved-to-half|half-to-interleaved:8",
        compute: permuted,
        usual: Some(permutations),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::WeightScale,
        is_local: true,
        at: IN_LAYERS,
        takes: "0.5",
        own: |_| ChangeValue::Number(1.0),
        compute: scaled,
        read: read_scale,
        usual: Some(|_| [2.0, 0.5].map(ChangeValue::Number).into()),
        ..CatalogueEntry::PLAIN
    },
];

/// Returns the input of the product.
pub(crate) fn input<'b>(at: &'b SiteContext) -> Option<&'b Tensor> {
    let plain = at.stage::<Linear>().map(|stage| &stage.x);
    plain.or_else(|| Some(&at.stage::<Integers>()?.x))
}

/// Returns the model's own matrix at a site, with its bias and scale.
pub(crate) fn own(at: &SiteContext) -> Option<LinearParameters> {
    LinearParameters::of(at.node()?)
}

/// Multiplies the same activations with another matrix.
pub(crate) fn with(at: &SiteContext, product: &LinearParameters) -> Option<Tensor> {
    multiplied(at, input(at)?, product)
}

/// Computes a product with the model's function: `linear`, `affine` or `bit_linear`.
pub(crate) fn multiplied(at: &SiteContext, x: &Tensor, product: &LinearParameters) -> Option<Tensor> {
    let LinearParameters { w, bias, factor } = product;
    let fits = w.cols == x.row_len() && bias.as_ref().is_none_or(|bias| bias.len() == w.rows);
    let of_codes = at.stage::<Integers>().is_some();
    fits.then(|| match bias {
        None if of_codes => at.n.bit_linear(x, w, *factor),
        _ => at.n.linear_of_pass(x, w, bias.as_deref(), at.positions.len()),
    })
}

fn width(at: &SiteContext) -> f64 {
    input(at).map_or(1.0, |x| x.row_len() as f64)
}

fn whole(number: f64) -> Option<usize> {
    (number >= 0.0 && number.fract() == 0.0).then_some(number as usize)
}

/// Returns the next layer and the previous layer.
fn neighbours(at: &SiteContext) -> impl Iterator<Item = usize> {
    let (layer, all) = (at.site.layer, at.operations.n_layers());
    let next = layer.map(|layer| layer + 1).filter(|&next| next < all);
    next.into_iter().chain(layer.and_then(|layer| layer.checked_sub(1)))
}

/// Multiplies each token's first activation by a matrix of zeros, so that only the bias remains.
fn without_weight(at: &SiteContext, value: &ChangeValue) -> Option<Tensor> {
    let (x, product) = (input(at)?, own(at)?);
    let first = at.n.gathered(&[x], &[x.rows(), 1], |token| (0, token * x.row_len()));
    let zeros = StoredTensor {
        dtype: DType::F32,
        shape: vec![product.w.rows, 1],
        data: vec![0; 4 * product.w.rows].into(),
    };
    let zeros = Matrix::from_stored(&zeros)?;
    match (value.as_word()?, product.bias) {
        ("zero", _) => Some(at.n.linear(&first, &zeros)),
        ("bias-alone", Some(bias)) => Some(at.n.affine(&first, &zeros, &bias)),
        _ => None,
    }
}

/// Computes the product with the bias of another layer.
fn with_bias_of(at: &SiteContext, value: &ChangeValue) -> Option<Tensor> {
    let product = own(at).filter(|product| product.bias.is_some())?;
    let layer = value.as_word()?.strip_prefix("layer:")?.parse().ok()?;
    let bias = at.operations.product(at.site.point, Some(layer))?.bias?;
    with(at, &LinearParameters { bias: Some(bias), ..product })
}

/// Computes logits with the embedding table, or embeddings with the output matrix.
fn of_other_table(at: &SiteContext, value: &ChangeValue) -> Option<Tensor> {
    let (table, output) = (at.operations.table()?, at.operations.product(Point::Logits, None)?);
    if *table == output.w || (table.rows, table.cols) != (output.w.rows, output.w.cols) {
        return None;
    }
    match (value.as_word()?, at.site.point) {
        ("token_embd", Point::Logits) => with(at, &LinearParameters { w: table.clone(), ..output }),
        ("output", Point::Embed) => Some(at.n.embed(&output.w, &at.stage::<EmbeddingLookup>()?.tokens)),
        _ => None,
    }
}

/// Returns a product that the model multiplies by a number, and the number.
fn times<'b>(at: &'b SiteContext) -> Option<(&'b Tensor, Multiplier)> {
    let Scaling { x, by } = at.stage()?;
    LinearParameters::of(&*made_by(x)?).map(|_| (x, *by))
}

fn scaled(at: &SiteContext, value: &ChangeValue) -> Option<Tensor> {
    own(at)?;
    Some(at.n.scale(at.value, Multiplier::Element(value.number()? as f32)))
}

/// Estimates the factor by least squares and rounds it to a number with few digits.
fn read_scale(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let (mut up, mut down, mut all) = (0.0, 0.0, 0.0);
    for (&own, &theirs) in at.value.data().iter().zip(theirs).filter(|(_, theirs)| !theirs.is_nan()) {
        let own = f64::from(own);
        up += own * theirs;
        down += own * own;
        all += theirs * theirs;
    }
    let read = up / down;
    // Share of the engine's result that the scaled product does not explain.
    let rest = 1.0 - up * up / (down * all);
    if own(at).is_none() || !(rest < 0.01) || read == 0.0 {
        return Vec::new();
    }
    let root = width(at).sqrt();
    let known = [2.0, 0.5, 4.0, 0.25, 8.0, 0.125, root, 1.0 / root, root * root, 1.0 / (root * root)];
    let mut values = snapped(read.abs(), &known, 0.02);
    values.iter_mut().for_each(|value| *value = value.copysign(read));
    values.extend([2, 3, 4, 7].map(|digits| rounded_to(digits, read)));
    // Numbers that give the same rounded results count once.
    let unit = if at.n.numerics().activation_type() == DType::F32 { 1e-6 } else { 1.0 / 256.0 };
    let mut near: Vec<f64> = Vec::new();
    for value in values {
        if !near.iter().any(|other| (value / other - 1.0).abs() < unit) {
            near.push(value);
        }
    }
    near.into_iter().filter(|value| (value / read - 1.0).abs() < 0.02).map(ChangeValue::Number).collect()
}

/// Returns the other layers whose matrix approximately reproduces the dump's first outputs, nearest first.
fn nearest_layers(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    const OUTPUTS: usize = 16;
    let (Some(x), Some(product)) = (input(at), own(at)) else { return Vec::new() };
    let (rows, few) = (product.w.rows, OUTPUTS.min(product.w.rows));
    let of_few = |flat: usize| theirs[flat / few * rows + flat % few];
    let wanted: Vec<f64> = (0..x.rows() * few).map(of_few).collect();
    let x = Tensor::new(x.shape(), x.data().to_vec());
    let off = |layer: usize| {
        let other = at.operations.product(at.site.point, Some(layer))?;
        let fits = other.w.rows == rows;
        let bias = other.bias.map(|bias| bias[..few.min(bias.len())].to_vec());
        let first =
            fits.then(|| LinearParameters { w: other.w.rows_from(0, few), bias, factor: other.factor })?;
        let off = distance(&multiplied(at, &x, &first)?, &wanted);
        (off < 0.1).then_some((layer, off))
    };
    let layers = (0..at.operations.n_layers()).filter(|&layer| Some(layer) != at.site.layer);
    let mut near: Vec<(usize, f64)> = layers.filter_map(off).collect();
    near.sort_by(|a, b| a.1.total_cmp(&b.1));
    near.into_iter().map(|(layer, _)| ChangeValue::Number(layer as f64)).collect()
}

/// Permutes the rows of each head into the order of the other RoPE pairing. With a head count, permutes as a
/// converter does that assumes this number of heads.
fn permuted(at: &SiteContext, value: &ChangeValue) -> Option<Tensor> {
    at.operations.rope(at.site.layer?)?;
    let (word, counted) = match value.as_word()?.split_once(':') {
        Some((word, heads)) => (word, Some(heads.parse::<usize>().ok()?)),
        None => (value.as_word()?, None),
    };
    let (rows, heads) = (at.value.row_len(), *at.value.shape().get(1)?);
    let half_of = |heads: usize| (heads > 0 && rows.is_multiple_of(2 * heads)).then(|| rows / heads / 2);
    let half = half_of(heads)?;
    let [there, back] = orders(word)?;
    let gathered = |x: &Tensor, from: RowOrder, half: usize| {
        let place = |flat: usize| flat / (2 * half) * (2 * half) + from(flat % (2 * half), half);
        at.n.gathered(&[x], x.shape(), |flat| (0, place(flat)))
    };
    if own(at).is_some() {
        return match counted {
            None => Some(gathered(at.value, there, half)),
            Some(counted) => Some(gathered(&gathered(at.value, back, half), there, half_of(counted)?)),
        };
    }
    // If all queries and keys of a dump use the other pairing, they are permuted when they are read. What remains is
    // that the engine rotates other pairs, and that a norm applies other gains to the values.
    if !at.is_turned || counted.is_some() {
        return None;
    }
    let made = match (at.stage::<Rotary>(), at.stage::<RmsNormalisation>()) {
        (Some(Rotary { x, rope, positions }), _) => {
            at.n.rotate(&gathered(x, there, half), &at.n.rope_table(rope, positions.clone()))
        }
        (_, Some(RmsNormalisation { x, norm })) => at.n.rms_norm(&gathered(x, there, half), norm),
        _ => return None,
    };
    Some(gathered(&made, back, half))
}

/// Maps a position in a head to the row of the head at that position.
type RowOrder = fn(place: usize, half: usize) -> usize;

/// Returns a row order and its inverse.
fn orders(word: &str) -> Option<[RowOrder; 2]> {
    let to_interleaved: RowOrder = |place, half| place % 2 * half + place / 2;
    let to_half: RowOrder = |place, half| place % half * 2 + place / half;
    match word {
        "half-to-interleaved" => Some([to_interleaved, to_half]),
        "interleaved-to-half" => Some([to_half, to_interleaved]),
        _ => None,
    }
}

/// Returns the permutations to try: in both directions, with the right head count and with the counts of query
/// heads and of key heads.
fn permutations(at: &SiteContext) -> Vec<ChangeValue> {
    let &[_, heads, head_dim] = at.value.shape() else { return Vec::new() };
    let heads_at = |point| Some(at.operations.product(point, at.site.layer)?.w.rows / head_dim);
    let others = [Point::Q, Point::K].into_iter().filter_map(heads_at).filter(|&other| other != heads);
    let suffixes: Vec<String> =
        [String::new()].into_iter().chain(others.map(|heads| format!(":{heads}"))).collect();
    let words = ["half-to-interleaved", "interleaved-to-half"];
    words
        .iter()
        .flat_map(|word| suffixes.iter().map(move |suffix| ChangeValue::Word(format!("{word}{suffix}"))))
        .collect()
}
