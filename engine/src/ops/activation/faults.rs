//! Changes of the feed-forward block's nonlinearity and of the product with the up projection.

pub(crate) mod gates;

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::activation::Activation;
use crate::ops::activation::exact::Nonlinearity;
use crate::tensor::Tensor;

const ACTIVATED: &[Point] = &[Point::FfnAct, Point::ExpertAct, Point::SharedAct, Point::LayerAct];

const WORDS: &str = "silu|gelu_pytorch_tanh|gelu|relu2|relu|quick_gelu|without-up|without-gate";

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::Activation,
        keys: Some(["hidden_act", ""]),
        at: ACTIVATED,
        takes: WORDS,
        own,
        compute: |at, value| has_gate(at).then(|| by_word(at, value.as_word()?))?,
        usual: Some(|at| if has_gate(at) { others(at, &["without-up", "without-gate"]) } else { Vec::new() }),
        ..CatalogueEntry::PLAIN
    },
    // GPT-2 has no gate, and a different key in `config.json`.
    CatalogueEntry {
        kind: CauseKind::Activation,
        keys: Some(["activation_function", ""]),
        at: ACTIVATED,
        takes: WORDS,
        own,
        compute: |at, value| (!has_gate(at)).then(|| by_word(at, value.as_word()?))?,
        usual: Some(|at| if has_gate(at) { Vec::new() } else { others(at, &[]) }),
        ..CatalogueEntry::PLAIN
    },
    // After the short convolution of a recurrent layer.
    CatalogueEntry {
        kind: CauseKind::Activation,
        keys: Some(["hidden_act", ""]),
        at: &[Point::ConvAct],
        takes: "none|silu|gelu_pytorch_tanh|gelu|relu2|relu|quick_gelu",
        own,
        compute: |at, value| match value.as_word()? {
            "none" => at.stage().map(|op: &Nonlinearity| op.x.clone()),
            word => by_word(at, word),
        },
        usual: Some(|at| others(at, &["none"])),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::GateUpSwap,
        at: ACTIVATED,
        takes: "operands",
        compute: |at, value| {
            let Nonlinearity { x, up, activation } = at.stage()?;
            (value.as_word()? == "operands").then(|| Some(at.n.gated(up.as_ref()?, x, *activation)))?
        },
        ..CatalogueEntry::PLAIN
    },
];

/// Activation names in `config.json`. `gelu_new` is the tanh form with other rounding, so it is not a separate cause.
const NAMES: [(&str, Activation); 8] = [
    ("silu", Activation::Silu),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_new", Activation::GeluNew),
    ("gelu_factored", Activation::GeluFactored),
    ("gelu", Activation::GeluErf),
    ("relu2", Activation::SquaredRelu),
    ("relu", Activation::Relu),
    ("quick_gelu", Activation::QuickGelu),
];

fn own(at: &SiteContext) -> ChangeValue {
    let known =
        at.stage().and_then(|op: &Nonlinearity| NAMES.iter().find(|(_, known)| *known == op.activation));
    known.map_or(ChangeValue::Nothing, |(name, _)| ChangeValue::word(name))
}

fn has_gate(at: &SiteContext) -> bool {
    at.stage::<Nonlinearity>().is_some_and(|op| op.up.is_some())
}

/// Returns the names of all other activation functions, and the names in `more`.
fn others(at: &SiteContext, more: &[&str]) -> Vec<ChangeValue> {
    let own = at.stage().map(|op: &Nonlinearity| op.activation.function());
    let functions =
        NAMES.iter().filter(|(_, one)| one.function() == *one && own.is_some_and(|own| own != *one));
    functions.map(|(name, _)| *name).chain(more.iter().copied()).map(ChangeValue::word).collect()
}

fn by_word(at: &SiteContext, word: &str) -> Option<Tensor> {
    let Nonlinearity { x, up, activation } = at.stage()?;
    if let Some((_, other)) = NAMES.iter().find(|(name, _)| *name == word) {
        return Some(match up {
            Some(up) => at.n.gated(x, up, *other),
            None => at.n.activation(x, *other),
        });
    }
    match (word, up) {
        ("without-up", Some(_)) => Some(at.n.activation(x, *activation)),
        ("without-gate", Some(up)) => Some(at.n.activation(up, *activation)),
        _ => None,
    }
}
