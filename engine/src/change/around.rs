//! Factor and soft cap around an operation at its tap. A change of the operation keeps them.

use std::sync::Arc;

use crate::change::{At, Entry, Value};
use crate::exact::{Activated, Integers, Linear, Node, Scores, Times, Traced, node_of};
use crate::numerics::Numerics;
use crate::ops::ffn::Activation;
use crate::ops::multiplier::Multiplier;
use crate::tensor::Tensor;

/// Operation around another one.
#[derive(Clone, Copy)]
enum Around {
    Times(Multiplier),
    Tanh,
}

impl Around {
    fn of(node: &Node) -> Option<(&Tensor, Self)> {
        if let Some(Times { x, by }) = node.operation() {
            return Some((x, Around::Times(*by)));
        }
        match node.operation()? {
            Activated { x, up: None, activation: Activation::Tanh } => Some((x, Around::Tanh)),
            _ => None,
        }
    }

    fn put(self, n: &Traced, x: &Tensor) -> Tensor {
        match self {
            Around::Times(by) => n.scale(x, by),
            Around::Tanh => n.activation(x, Activation::Tanh),
        }
    }

    fn taken_off(self, y: f64) -> f64 {
        match self {
            Around::Times(by) => y / f64::from(by.factor()),
            Around::Tanh => y.atanh(),
        }
    }
}

/// An operation that others stand around.
pub(super) struct Inside {
    /// Result, which records its operation.
    pub(super) x: Tensor,
    /// The operation.
    pub(super) node: Arc<Node>,
    /// Outermost first.
    around: Vec<Around>,
}

impl Inside {
    /// The product, or the scores, that a node is made of by operations around; `None` where it is made otherwise.
    pub(super) fn of(node: &Node) -> Option<Self> {
        let (x, first) = Around::of(node)?;
        let inner = made_by(x)?;
        if inner.operation::<Linear>().is_some()
            || inner.operation::<Integers>().is_some()
            || inner.operation::<Scores>().is_some()
        {
            return Some(Self { x: x.clone(), node: inner, around: vec![first] });
        }
        let mut inside = Self::of(&inner)?;
        inside.around.insert(0, first);
        Some(inside)
    }

    fn put_around(&self, n: &Traced, made: Tensor) -> Tensor {
        self.around.iter().rev().fold(made, |made, around| around.put(n, &made))
    }

    fn taken_off(&self, theirs: &[f64]) -> Vec<f64> {
        let one = |&y: &f64| self.around.iter().fold(y, |y, around| around.taken_off(y));
        theirs.iter().map(one).collect()
    }
}

impl Entry {
    /// Returns the model's own setting at a site, of the operation or of one inside it.
    pub fn own_at(&self, at: &At) -> Value {
        match ((self.own)(at), inside(at)) {
            (Value::Nothing, Some(inside)) => (self.own)(&at.with(&inside.x)),
            (own, _) => own,
        }
    }

    /// The place with the change, from the same inputs; `None` where it has no meaning.
    pub fn compute_at(&self, at: &At, value: &Value) -> Option<Tensor> {
        (self.compute)(at, value).or_else(|| {
            let inside = inside(at)?;
            let made = (self.compute)(&at.with(&inside.x), value)?;
            Some(inside.put_around(at.n, made))
        })
    }

    /// Values that the results of an engine show, nearest first.
    pub fn read_at(&self, at: &At, theirs: &[f64]) -> Vec<Value> {
        let mut read = (self.read)(at, theirs);
        if let Some(inside) = inside(at) {
            read.extend((self.read)(&at.with(&inside.x), &inside.taken_off(theirs)));
        }
        read
    }

    /// Values worth trying where nothing can be read.
    pub fn usual_at(&self, at: &At) -> Vec<Value> {
        let mut usual = (self.usual)(at);
        if let Some(inside) = inside(at) {
            let more = (self.usual)(&at.with(&inside.x));
            usual.extend(more.into_iter().filter(|value| !usual.contains(value)).collect::<Vec<_>>());
        }
        usual
    }
}

fn inside(at: &At) -> Option<Inside> {
    Inside::of(at.node()?)
}

/// Returns the value that the model soft-caps at a site, and the cap: `c · tanh(x / c)`.
pub(super) fn soft_cap(at: &At) -> Option<(Tensor, f32)> {
    let Times { x: bent, by } = at.stage()?;
    let tanh = made_by(bent)?;
    let (below, Around::Tanh) = Around::of(&tanh)? else { return None };
    let divided = made_by(below)?;
    divided.operation().map(|Times { x, .. }| (x.clone(), by.factor()))
}

/// The operation that has made all of a tensor.
pub(super) fn made_by(x: &Tensor) -> Option<Arc<Node>> {
    match x.origins() {
        [whole] => node_of(whole),
        _ => None,
    }
}
