//! The nonlinearity of the feed-forward block, and what it is multiplied with.

use crate::change::{At, Entry, Kind, Value};
use crate::checkpoint::Point;
use crate::exact::Activated;
use crate::numerics::Numerics;
use crate::ops::ffn::Activation;
use crate::tensor::Tensor;

const ACTIVATED: &[Point] = &[Point::FfnAct, Point::ExpertAct];

const WORDS: &str = "silu|gelu_pytorch_tanh|gelu|relu2|relu|quick_gelu|without-up|without-gate";

pub(super) static ENTRIES: &[Entry] = &[
    Entry {
        kind: Kind::Activation,
        keys: Some(["hidden_act", ""]),
        at: ACTIVATED,
        takes: WORDS,
        own,
        compute: |at, value| has_gate(at).then(|| by_word(at, value.as_word()?))?,
        usual: |at| if has_gate(at) { others(at, &["without-up", "without-gate"]) } else { Vec::new() },
        ..Entry::PLAIN
    },
    // GPT-2 has no gate, and another key.
    Entry {
        kind: Kind::Activation,
        keys: Some(["activation_function", ""]),
        at: ACTIVATED,
        takes: WORDS,
        own,
        compute: |at, value| (!has_gate(at)).then(|| by_word(at, value.as_word()?))?,
        usual: |at| if has_gate(at) { Vec::new() } else { others(at, &[]) },
        ..Entry::PLAIN
    },
    Entry {
        kind: Kind::GateUpSwap,
        at: ACTIVATED,
        takes: "operands",
        compute: |at, value| {
            let Activated { x, up, activation } = at.stage()?;
            (value.as_word()? == "operands").then(|| Some(at.n.gated(up.as_ref()?, x, *activation)))?
        },
        usual: |_| vec![Value::word("operands")],
        ..Entry::PLAIN
    },
];

/// Activation names in `config.json`. `gelu_new` is the tanh form with other rounding, so it is not a separate cause.
const NAMES: [(&str, Activation); 7] = [
    ("silu", Activation::Silu),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_new", Activation::GeluNew),
    ("gelu", Activation::GeluErf),
    ("relu2", Activation::SquaredRelu),
    ("relu", Activation::Relu),
    ("quick_gelu", Activation::QuickGelu),
];

fn own(at: &At) -> Value {
    let known = at.stage().and_then(|op: &Activated| NAMES.iter().find(|(_, known)| *known == op.activation));
    known.map_or(Value::Nothing, |(name, _)| Value::word(name))
}

fn has_gate(at: &At) -> bool {
    at.stage::<Activated>().is_some_and(|op| op.up.is_some())
}

/// The other functions, and `more`.
fn others(at: &At, more: &[&str]) -> Vec<Value> {
    let own = at.stage().map(|op: &Activated| op.activation.function());
    let functions =
        NAMES.iter().filter(|(_, one)| one.function() == *one && own.is_some_and(|own| own != *one));
    functions.map(|(name, _)| *name).chain(more.iter().copied()).map(Value::word).collect()
}

fn by_word(at: &At, word: &str) -> Option<Tensor> {
    let Activated { x, up, activation } = at.stage()?;
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
