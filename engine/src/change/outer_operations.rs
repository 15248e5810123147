//! Outer operations: a factor or soft cap applied to another operation at the same tap. A change of the inner operation
//! keeps them.

use std::sync::Arc;

use crate::change::{CatalogueEntry, ChangeValue, SiteContext};
use crate::exact::{Node, node_of};
use crate::numerics::Numerics;
use crate::ops::activation::Activation;
use crate::ops::activation::exact::Nonlinearity;
use crate::ops::attention::exact::Scores;
use crate::ops::linear::exact::{Integers, Linear};
use crate::ops::scaling::Multiplier;
use crate::ops::scaling::exact::Scaling;
use crate::tensor::Tensor;
use crate::tracing::TracedNumerics;

/// An operation applied to the result of another one.
#[derive(Clone, Copy)]
enum OuterOperation {
    Times(Multiplier),
    Tanh,
}

impl OuterOperation {
    fn of(node: &Node) -> Option<(&Tensor, Self)> {
        if let Some(Scaling { x, by }) = node.operation() {
            return Some((x, OuterOperation::Times(*by)));
        }
        match node.operation()? {
            Nonlinearity { x, up: None, activation: Activation::Tanh } => Some((x, OuterOperation::Tanh)),
            _ => None,
        }
    }

    fn put(self, n: &TracedNumerics, x: &Tensor) -> Tensor {
        match self {
            OuterOperation::Times(by) => n.scale(x, by),
            OuterOperation::Tanh => n.activation(x, Activation::Tanh),
        }
    }

    fn taken_off(self, y: f64) -> f64 {
        match self {
            OuterOperation::Times(by) => y / f64::from(by.factor()),
            OuterOperation::Tanh => y.atanh(),
        }
    }
}

/// An operation whose result passes through outer operations.
pub(crate) struct InnerOperation {
    /// Result, which records its operation.
    pub(crate) x: Tensor,
    /// The operation.
    pub(crate) node: Arc<Node>,
    /// Outer operations, outermost first.
    around: Vec<OuterOperation>,
}

impl InnerOperation {
    /// Returns the matrix product or the scores inside a node's outer operations; `None` if there is none.
    pub(crate) fn of(node: &Node) -> Option<Self> {
        let (x, first) = OuterOperation::of(node)?;
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

    fn put_around(&self, n: &TracedNumerics, made: Tensor) -> Tensor {
        self.around.iter().rev().fold(made, |made, around| around.put(n, &made))
    }

    fn taken_off(&self, theirs: &[f64]) -> Vec<f64> {
        let one = |&y: &f64| self.around.iter().fold(y, |y, around| around.taken_off(y));
        theirs.iter().map(one).collect()
    }
}

impl CatalogueEntry {
    /// Returns the model's own value at a site, for its operation or for the inner operation.
    pub(crate) fn own_at(&self, at: &SiteContext) -> ChangeValue {
        match ((self.own)(at), inside(at)) {
            (ChangeValue::Nothing, Some(inside)) => (self.own)(&at.with(&inside.x)),
            (own, _) => own,
        }
    }

    /// Computes the changed operation with its outer operations; `None` if the change does not apply.
    pub(crate) fn compute_at(&self, at: &SiteContext, value: &ChangeValue) -> Option<Tensor> {
        (self.compute)(at, value).or_else(|| {
            let inside = inside(at)?;
            let made = (self.compute)(&at.with(&inside.x), value)?;
            Some(inside.put_around(at.n, made))
        })
    }

    /// Estimates values from an engine's results, nearest first.
    pub fn read_at(&self, at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
        let mut read = (self.read)(at, theirs);
        if let Some(inside) = inside(at) {
            read.extend((self.read)(&at.with(&inside.x), &inside.taken_off(theirs)));
        }
        read
    }

    /// Returns values to try if none can be estimated.
    pub fn usual_at(&self, at: &SiteContext) -> Vec<ChangeValue> {
        let mut usual = (self.usual)(at);
        if let Some(inside) = inside(at) {
            let more = (self.usual)(&at.with(&inside.x));
            usual.extend(more.into_iter().filter(|value| !usual.contains(value)).collect::<Vec<_>>());
        }
        usual
    }
}

fn inside(at: &SiteContext) -> Option<InnerOperation> {
    InnerOperation::of(at.node()?)
}

/// Returns the value that the model soft-caps at a site, and the cap `c` of `c · tanh(x / c)`.
pub(crate) fn soft_cap(at: &SiteContext) -> Option<(Tensor, f32)> {
    let Scaling { x: bent, by } = at.stage()?;
    let tanh = made_by(bent)?;
    let (below, OuterOperation::Tanh) = OuterOperation::of(&tanh)? else { return None };
    let divided = made_by(below)?;
    divided.operation().map(|Scaling { x, .. }| (x.clone(), by.factor()))
}

/// Returns the operation that computed all values of a tensor.
pub(crate) fn made_by(x: &Tensor) -> Option<Arc<Node>> {
    match x.origins() {
        [whole] => node_of(whole),
        _ => None,
    }
}
