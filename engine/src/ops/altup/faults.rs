//! Changes of AltUp: router, prediction, correction, magnitudes of streams, and the streams that a layer's embeddings are
//! added to.

use crate::change::outer_operations::made_by;
use crate::change::{CatalogueEntry, CauseKind, SiteContext};
use crate::checkpoint::Point;
use crate::exact::gather::Gather;
use crate::exact::{Node, Operation};
use crate::numerics::Numerics;
use crate::ops::activation::Activation;
use crate::ops::activation::exact::Nonlinearity;
use crate::ops::addition::exact::Addition;
use crate::ops::altup::exact::{MagnitudeMatch, StreamMean, StreamMix};
use crate::ops::altup::parts;
use crate::ops::gating::exact::GatedProduct;
use crate::ops::linear::exact::Linear;
use crate::ops::norm::exact::RmsNormalisation;
use crate::ops::row_factor::exact::RowProduct;
use crate::ops::scaling::exact::Scaling;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::AltupRouter,
        at: &[Point::PredictRouter, Point::CorrectRouter],
        takes: "unbounded|unscaled|unnormed",
        compute: |at, value| routed(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::AltupPrediction,
        at: &[Point::AltupPredicted],
        takes: "none|transposed|alone",
        compute: |at, value| predicted(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::AltupCorrection,
        at: &[Point::AltupCorrected],
        takes: "none|without-one|absolute",
        compute: |at, value| corrected(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::AltupScale,
        keys: Some(["altup_correct_scale", ""]),
        at: &[Point::AltupActive],
        takes: "none",
        compute: |at, value| {
            (value.as_word()? == "none").then(|| at.stage().map(|op: &GatedProduct| op.x.clone()))?
        },
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::AltupMagnitude,
        at: &[Point::AltupStreams, Point::AltupMean],
        takes: "none|copies|first|sum",
        compute: |at, value| magnitudes(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::LayerStreams,
        at: &[Point::BlockOut],
        takes: "none|all",
        compute: |at, value| with_embeddings(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
];

/// Applies `read` to the operation that computed a tensor. `None` if that operation is not of type `S`.
fn inside<S: Operation, R>(x: &Tensor, read: impl Fn(&S) -> R) -> Option<R> {
    made_by(x).and_then(|node: std::sync::Arc<Node>| node.operation().map(&read))
}

/// Computes a router with a known mistake: without tanh, without the factor of its inputs, or without their norm.
fn routed(at: &SiteContext, word: &str) -> Option<Tensor> {
    let Nonlinearity { x: logits, up: None, activation: Activation::Tanh } = at.stage()? else { return None };
    let again =
        |x: &Tensor| inside(logits, |Linear { w, .. }| at.n.activation(&at.n.linear(x, w), Activation::Tanh));
    let scaled = inside(logits, |Linear { x, .. }| x.clone())?;
    let (normed, by) = inside(&scaled, |Scaling { x, by }| (x.clone(), *by))?;
    match word {
        "unbounded" => Some(logits.clone()),
        "unscaled" => again(&normed),
        "unnormed" => again(&at.n.scale(&inside(&normed, |RmsNormalisation { x, .. }| x.clone())?, by)),
        _ => None,
    }
}

/// Computes the predicted streams with a known mistake: the streams unchanged, transposed coefficients, or the
/// mixture without the streams themselves.
fn predicted(at: &SiteContext, word: &str) -> Option<Tensor> {
    let Addition { a: mixed, b: streams } = at.stage()?;
    match word {
        "none" => Some(streams.clone()),
        "alone" => Some(mixed.clone()),
        "transposed" => inside(mixed, |StreamMix { streams, coefs }| {
            let count = parts(coefs);
            let turned = |flat: usize| {
                let at = flat % (count * count);
                (0, flat - at + at % count * count + at / count)
            };
            at.n.add(&at.n.mix_streams(streams, &at.n.gathered(&[coefs], coefs.shape(), turned)), streams)
        }),
        _ => None,
    }
}

/// Computes the corrected streams with a known mistake: the predictions, coefficients to which 1 is not added, or
/// the layer's output in place of its difference from the prediction.
fn corrected(at: &SiteContext, word: &str) -> Option<Tensor> {
    let Addition { a: product, b: predicted } = at.stage()?;
    let (innovation, factors) =
        inside(product, |RowProduct { x, factors, .. }| (x.clone(), factors.clone()))?;
    let of = |innovation: &Tensor, factors: &Tensor| {
        let product = at.n.row_scaled(innovation, factors).reshaped(predicted.shape());
        Some(at.n.add(&product, predicted))
    };
    match word {
        "none" => Some(predicted.clone()),
        "without-one" => of(&innovation, &inside(&factors, |Addition { a, .. }| a.clone())?),
        "absolute" => of(&inside(&innovation, |Addition { a, .. }| a.clone())?, &factors),
        _ => None,
    }
}

/// Computes streams with wrong magnitudes: those of the projections, or copies of the first stream. For a mean of
/// streams: the first stream alone, or the sum.
fn magnitudes(at: &SiteContext, word: &str) -> Option<Tensor> {
    let mean = at.stage::<StreamMean>();
    let joined = mean.map_or_else(|| Some(at.value.clone()), |mean| Some(mean.streams.clone()))?;
    let (first, matched) = inside(&joined, |Gather { tensors, .. }| match tensors.as_slice() {
        [first, matched] => Some((first.clone(), matched.clone())),
        _ => None,
    })??;
    let (x, like) = inside(&matched, |MagnitudeMatch { x, like }| (x.clone(), like.clone()))?;
    let (d, width) = (like.row_len(), joined.row_len());
    let with = |others: &Tensor| {
        let kept = others.row_len();
        at.n.gathered(&[&first, others], joined.shape(), |flat| match (flat / width, flat % width) {
            (row, at) if at < d => (0, row * first.row_len() + at),
            (row, at) => (1, row * kept + (at - d) % kept),
        })
    };
    let average = |streams: Tensor| match mean {
        Some(StreamMean { count, .. }) => at.n.mean_of_streams(&streams, *count),
        None => streams,
    };
    match (word, mean) {
        ("none", _) => Some(average(with(&x))),
        ("copies", None) => Some(with(&like)),
        ("first", Some(_)) => Some(like),
        ("sum", Some(StreamMean { count, .. })) => {
            Some(at.n.mapped(at.value, |mean, count| mean * count, *count as f64))
        }
        _ => None,
    }
}

/// Computes a layer's output with the layer's embeddings added to no stream, or to all streams.
fn with_embeddings(at: &SiteContext, word: &str) -> Option<Tensor> {
    let Gather { tensors, .. } = at.stage()?;
    let [corrected, sums] = tensors.as_slice() else { return None };
    let added = inside(sums, |Addition { b, .. }| b.clone())?;
    let (width, own) = (corrected.row_len(), added.row_len());
    let d = width.checked_sub(own).filter(|d| *d > 0)?;
    match word {
        "none" => Some(corrected.clone()),
        "all" => {
            let repeated =
                at.n.gathered(&[&added], corrected.shape(), |flat| (0, flat / width * own + flat % d));
            Some(at.n.add(corrected, &repeated))
        }
        _ => None,
    }
}
