//! Norms of a mixture of experts next to a feed-forward block that every token uses (Gemma 4).

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::decoder::{DecoderConfig, LayerWeights};
use crate::numerics::Numerics;
use crate::ops::norm::{Gain, RmsNorm};
use crate::ops::scaling::Multiplier;
use crate::tap::Probe;
use crate::tensor::Tensor;

/// Norms of both branches and of the router. Both branches and the router read the residual stream.
#[derive(Clone, Debug)]
pub(crate) struct BranchNorms {
    /// `[d]`
    router: RmsNorm,
    /// Factor of the router's input, applied after its norm.
    scale: RouterScale,
    /// `[d]`
    experts: RmsNorm,
    /// `[d]`
    pub(crate) routed_post: RmsNorm,
    /// `[d]`
    pub(crate) shared_post: RmsNorm,
}

/// Factor of the router's input, applied after its norm: the product of the stored weights and 1/√d.
#[derive(Clone, Debug)]
enum RouterScale {
    /// 1/√d. transformers multiplies by the stored weights first, so they are the weight of the norm.
    Number(f32),
    /// The stored weights, `[d]`. llama.cpp multiplies by 1/√d first, so 1/√d is the weight of the norm.
    Columns(Vec<f32>),
}

impl BranchNorms {
    /// Loads the norms of a layer.
    ///
    /// # Errors
    /// See [`LayerWeights::norm`].
    pub(crate) fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        let d = c.hidden_size;
        let weights = w.vector("router_scale", d)?;
        let (weight, scale) = match w.is_gguf() {
            true => (vec![1.0 / (d as f32).sqrt(); d], RouterScale::Columns(weights)),
            false => (weights, RouterScale::Number((d as f64).powf(-0.5) as f32)),
        };
        Ok(Self {
            router: RmsNorm { gain: Gain::Weight, ..c.rms_norm(weight) },
            scale,
            experts: w.norm("pre_ffw_norm_2", d)?,
            routed_post: w.norm("post_ffw_norm_2", d)?,
            shared_post: w.norm("post_ffw_norm_1", d)?,
        })
    }

    /// Computes the inputs of the router and of the experts from the stream: `[T, d]` to `[T, d]` twice.
    pub(crate) fn inputs(&self, x: &Tensor, n: &dyn Numerics, t: &mut Probe) -> [Tensor; 2] {
        let normed = n.rms_norm(x, &self.router);
        let router = match &self.scale {
            RouterScale::Number(factor) => n.scale(&normed, Multiplier::Number(*factor)),
            RouterScale::Columns(weights) => n.column_scaled(&normed, weights),
        };
        [t.tap(RouterNorm, router), t.tap(ExpertNorm, n.rms_norm(x, &self.experts))]
    }
}
