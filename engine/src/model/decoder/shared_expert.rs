//! The shared expert of a mixture, which every token uses.

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::decoder::{DecoderConfig, FfnShape, ForwardContext, LayerWeights};
use crate::ops::activation::Activation;
use crate::ops::norm::RmsNorm;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// A feed-forward block that every token uses in addition to its chosen experts, with or without a weight. F =
/// feed-forward size of the shared expert.
#[derive(Clone, Debug)]
pub(crate) struct SharedExpert {
    /// `[F, d]`; `None` for a shared expert without a gate
    pub(crate) gate: Option<Matrix>,
    /// `[F, d]`
    pub(crate) up: Matrix,
    /// `[d, F]`
    pub(crate) down: Matrix,
    /// `[1, d]`, which computes the logit of the weight; `None` for a shared expert without a weight
    pub(crate) weight: Option<Matrix>,
}

impl SharedExpert {
    /// Loads the weights of a layer's shared expert of feed-forward size `width`.
    ///
    /// # Errors
    /// If one is missing, has another shape, or has an unsupported type.
    pub(crate) fn load(c: &DecoderConfig, w: &mut LayerWeights, width: usize) -> Result<Self> {
        let is_weighted = w.has_weighted_shared_expert();
        let (gate, up) = match c.shape.ffn {
            FfnShape::Plain => (None, w.matrix("ffn_up_shexp", width, c.hidden_size)?),
            FfnShape::Gated | FfnShape::FusedGate => {
                let [gate, up] = w.shared_gate_and_up(width, c.hidden_size)?;
                (Some(gate), up)
            }
        };
        Ok(Self {
            gate,
            up,
            down: w.matrix("ffn_down_shexp", c.hidden_size, width)?,
            weight: is_weighted.then(|| w.row("ffn_gate_inp_shexp", c.hidden_size)).transpose()?,
        })
    }

    /// Returns the matrices, with names for messages.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = (&'static str, &Matrix)> {
        let gate = self.gate.iter().map(|gate| ("ffn_gate_shexp", gate));
        let others = [("ffn_up_shexp", &self.up), ("ffn_down_shexp", &self.down)];
        gate.chain(others).chain(self.weight.iter().map(|weight| ("ffn_gate_inp_shexp", weight)))
    }

    /// Adds the shared expert's output to the weighted sum over the chosen experts. `x` is the normed input: `[T, d]`
    /// twice, to `[T, d]`. If the shared expert's output has a norm, it is applied before the addition.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        routed: &Tensor,
        post_norm: Option<&RmsNorm>,
        p: &ForwardContext,
        t: &mut Probe,
    ) -> Tensor {
        let n = p.n;
        let gate = self.gate.as_ref().map(|gate| t.tap(SharedGate, n.linear(x, gate)));
        let up = t.tap(SharedUp, n.linear(x, &self.up));
        let act = match &gate {
            Some(gate) => n.gated(gate, &up, p.c.activation),
            None => n.activation(&up, p.c.activation),
        };
        let act = t.tap(SharedAct, act);
        let mut out = t.tap(SharedOut, n.linear(&act, &self.down));
        if let Some(norm) = post_norm {
            out = t.tap(SharedPostNorm, n.rms_norm(&out, norm));
        }
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
