//! The shared expert of a mixture, which every token uses.

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::decoder::{DecoderConfig, ForwardContext, LayerWeights};
use crate::ops::activation::Activation;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// A feed-forward block that every token uses in addition to its chosen experts, with or without a weight. F =
/// feed-forward size of the shared expert.
#[derive(Clone, Debug)]
pub(crate) struct SharedExpert {
    /// `[F, d]`
    pub(crate) gate: Matrix,
    /// `[F, d]`
    pub(crate) up: Matrix,
    /// `[d, F]`
    pub(crate) down: Matrix,
    /// `[1, d]`, for the logit of the weight; `None` for an expert without a weight
    pub(crate) weight: Option<Matrix>,
}

impl SharedExpert {
    /// Loads the weights of a layer's shared expert of feed-forward size `width`.
    ///
    /// # Errors
    /// If one is missing, has another shape, or has an unsupported type.
    pub(crate) fn load(c: &DecoderConfig, w: &mut LayerWeights, width: usize) -> Result<Self> {
        let is_weighted = w.has_weighted_shared_expert();
        let [gate, up] = w.shared_gate_and_up(width, c.hidden_size)?;
        Ok(Self {
            gate,
            up,
            down: w.matrix("ffn_down_shexp", c.hidden_size, width)?,
            weight: is_weighted.then(|| w.row("ffn_gate_inp_shexp", c.hidden_size)).transpose()?,
        })
    }

    /// Returns the matrices, with names for messages.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = (&'static str, &Matrix)> {
        let all =
            [("ffn_gate_shexp", &self.gate), ("ffn_up_shexp", &self.up), ("ffn_down_shexp", &self.down)];
        all.into_iter().chain(self.weight.iter().map(|weight| ("ffn_gate_inp_shexp", weight)))
    }

    /// Adds the shared expert's share to the weighted sum over the chosen experts. `x` is the normed input: `[T, d]`
    /// twice, to `[T, d]`.
    pub(crate) fn forward(&self, x: &Tensor, routed: &Tensor, p: &ForwardContext, t: &mut Probe) -> Tensor {
        let n = p.n;
        let gate = t.tap(SharedGate, n.linear(x, &self.gate));
        let up = t.tap(SharedUp, n.linear(x, &self.up));
        let act = t.tap(SharedAct, n.gated(&gate, &up, p.c.activation));
        let out = t.tap(SharedOut, n.linear(&act, &self.down));
        let weight = self.weight.as_ref().map(|weight| {
            let logit = t.tap(SharedLogit, n.linear(x, weight).reshaped(&[x.rows()]));
            let has_plain_sigmoid = p.c.experts.as_ref().is_some_and(|experts| experts.has_plain_sigmoid);
            let weights = match has_plain_sigmoid {
                true => n.activation(&logit, Activation::Sigmoid),
                false => n.shared_weights(&logit),
            };
            t.tap(SharedWeight, weights)
        });
        n.add_shared(routed, &out, weight.as_ref())
    }
}
