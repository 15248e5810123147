//! Outer operations, which are applied to the result of another operation at the same tap: a factor, a soft cap, or
//! joining the rotated part of heads with the other part. If the inner operation is changed, the outer ones stay
//! the same.

use std::sync::Arc;

use crate::change::{CatalogueEntry, ChangeValue, SiteContext};
use crate::exact::gather::Gather;
use crate::exact::{Node, node_of};
use crate::numerics::Numerics;
use crate::ops::activation::Activation;
use crate::ops::activation::exact::Nonlinearity;
use crate::ops::attention::exact::Scores;
use crate::ops::linear::exact::{Integers, Linear};
use crate::ops::norm::exact::RmsNormalisation;
use crate::ops::rope::exact::Rotary;
use crate::ops::scaling::Multiplier;
use crate::ops::scaling::exact::Scaling;
use crate::tensor::Tensor;
use crate::tracing::TracedNumerics;

/// An operation applied to the result of another one.
#[derive(Clone)]
enum OuterOperation {
    Times(Multiplier),
    Tanh,
    Joined(JoinedPart),
}

/// A part of joined values that an operation computed: the rotated part of heads of latent attention.
#[derive(Clone)]
struct JoinedPart {
    tensors: Vec<Tensor>,
    index: Arc<[(usize, usize)]>,
    /// Index of the tensor that contains the part.
    part: usize,
}

impl JoinedPart {
    fn of(Gather { tensors, index }: &Gather) -> Option<Self> {
        let is_rotation =
            |tensor: &Tensor| made_by(tensor).is_some_and(|node| node.operation::<Rotary>().is_some());
        let part = tensors.iter().position(is_rotation)?;
        Some(Self { tensors: tensors.clone(), index: index.clone(), part })
    }

    fn put(&self, n: &TracedNumerics, made: &Tensor, shape: &[usize]) -> Tensor {
        let tensors: Vec<&Tensor> = (0..self.tensors.len())
            .map(|tensor| if tensor == self.part { made } else { &self.tensors[tensor] })
            .collect();
        n.gathered(&tensors, shape, |flat| self.index[flat])
    }

    /// Returns the values of this part. Values that do not belong to it are NaN.
    fn taken_off(&self, theirs: &[f64]) -> Vec<f64> {
        let mut values = vec![f64::NAN; self.tensors[self.part].data().len()];
        for (&(tensor, index), &value) in self.index.iter().zip(theirs) {
            if tensor == self.part {
                values[index] = value;
            }
        }
        values
    }
}

impl OuterOperation {
    fn of(node: &Node) -> Option<(Tensor, Self)> {
        if let Some(Scaling { x, by }) = node.operation() {
            return Some((x.clone(), OuterOperation::Times(*by)));
        }
        if let Some(joined) = node.operation() {
            let joined = JoinedPart::of(joined)?;
            return Some((joined.tensors[joined.part].clone(), OuterOperation::Joined(joined)));
        }
        match node.operation()? {
            Nonlinearity { x, up: None, activation: Activation::Tanh } => {
                Some((x.clone(), OuterOperation::Tanh))
            }
            _ => None,
        }
    }

    fn put(&self, n: &TracedNumerics, x: &Tensor, shape: &[usize]) -> Tensor {
        match self {
            OuterOperation::Times(by) => n.scale(x, *by),
            OuterOperation::Tanh => n.activation(x, Activation::Tanh),
            OuterOperation::Joined(joined) => joined.put(n, x, shape),
        }
    }

    fn taken_off(&self, theirs: Vec<f64>) -> Vec<f64> {
        match self {
            OuterOperation::Times(by) => theirs.into_iter().map(|y| y / f64::from(by.factor())).collect(),
            OuterOperation::Tanh => theirs.into_iter().map(f64::atanh).collect(),
            OuterOperation::Joined(joined) => joined.taken_off(&theirs),
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
    /// Returns the matrix product, the scores, the rotation or the norm inside a node's outer operations; `None` if there is
    /// none.
    pub(crate) fn of(node: &Node) -> Option<Self> {
        let (x, first) = OuterOperation::of(node)?;
        let inner = made_by(&x)?;
        if inner.operation::<Linear>().is_some()
            || inner.operation::<Integers>().is_some()
            || inner.operation::<Scores>().is_some()
            || inner.operation::<Rotary>().is_some()
            || inner.operation::<RmsNormalisation>().is_some()
        {
            return Some(Self { x, node: inner, around: vec![first] });
        }
        let mut inside = Self::of(&inner)?;
        inside.around.insert(0, first);
        Some(inside)
    }

    fn put_around(&self, n: &TracedNumerics, made: Tensor, shape: &[usize]) -> Tensor {
        self.around.iter().rev().fold(made, |made, around| around.put(n, &made, shape))
    }

    fn taken_off(&self, theirs: &[f64]) -> Vec<f64> {
        self.around.iter().fold(theirs.to_vec(), |theirs, around| around.taken_off(theirs))
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
            Some(inside.put_around(at.n, made, at.value.shape()))
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

    /// Returns the values to try at a site if none can be estimated.
    pub fn usual_at(&self, at: &SiteContext) -> Vec<ChangeValue> {
        let mut usual = self.usual(at);
        if let Some(inside) = inside(at) {
            let more = self.usual(&at.with(&inside.x));
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
    let divided = made_by(&below)?;
    divided.operation().map(|Scaling { x, .. }| (x.clone(), by.factor()))
}

/// Returns the operation that computed all values of a tensor.
pub(crate) fn made_by(x: &Tensor) -> Option<Arc<Node>> {
    match x.origins() {
        [whole] => node_of(whole),
        _ => None,
    }
}
