//! The feed-forward branch of a block.

use crate::checkpoint::Point::*;
use crate::model::decoder::{ForwardContext, Norm, Projection};
use crate::ops::sparse_gate::GateSparsity;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Feed-forward branch of a block, from its norm to its down projection. F = feed-forward size.
#[derive(Clone, Debug)]
pub struct FeedForward {
    /// `[d]`; `None` for a block without a norm before it
    pub norm: Option<Norm>,
    /// `[F, d]`; `None` for a block without a gate
    pub gate: Option<Projection>,
    /// Threshold of the gate, if the gate is sparse.
    pub(crate) sparsity: Option<GateSparsity>,
    /// `[F, d]`
    pub up: Projection,
    /// `[d, F]`
    pub down: Projection,
}

impl FeedForward {
    /// Returns the matrices, with names for messages.
    pub(crate) fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        let gate = self.gate.iter().map(|gate| ("ffn_gate", &gate.weight));
        gate.chain([("ffn_up", &self.up.weight), ("ffn_down", &self.down.weight)]).collect()
    }

    /// Computes the block's output, which is added to the residual stream: `[T, d]` to `[T, d]`.
    pub fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe) -> Tensor {
        let (n, activation) = (p.n, p.c.activation);
        let normed = self.norm.as_ref().map(|norm| t.tap(FfnNorm, norm.of(n, x)));
        let x = normed.as_ref().unwrap_or(x);
        let gate = self.gate.as_ref().map(|gate| t.tap(FfnGate, gate.of(n, x)));
        let gate = gate.map(|gate| match self.sparsity {
            Some(sparsity) => t.tap(FfnSparse, n.sparse_gate(&gate, sparsity)),
            None => gate,
        });
        let up = t.tap(FfnUp, self.up.of(n, x));
        let act = match gate {
            Some(gate) => n.gated(&p.times(&gate, |by| by.ffn[0]).unwrap_or(gate), &up, activation),
            None => n.activation(&up, activation),
        };
        let act = t.tap(FfnAct, act);
        t.tap(FfnOut, self.down.of(n, &act))
    }
}
