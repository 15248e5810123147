//! A mixture of experts, which replaces the feed-forward block.

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::decoder::{
    BranchNorms, DecoderConfig, FfnShape, ForwardContext, LayerWeights, SharedExpert,
};
use crate::numerics::Numerics;
use crate::ops::activation::ClampedGlu;
use crate::ops::experts::{ExpertRouting, of_chosen};
use crate::ops::norm::RmsNorm;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Feed-forward branch with experts, from the norm to the weighted sum over each token's chosen experts. F =
/// feed-forward size of one expert, E = experts, k = chosen experts of each token.
#[derive(Clone, Debug)]
pub struct Mixture {
    /// `[d]`
    pub(crate) norm: RmsNorm,
    /// `[E, d]`
    pub router: Matrix,
    /// `[F, d]` of each expert; empty for experts without a gate
    pub(crate) gate: Vec<Matrix>,
    /// `[F, d]` of each expert
    pub(crate) up: Vec<Matrix>,
    /// `[d, F]` of each expert
    pub(crate) down: Vec<Matrix>,
    /// Choice and weighting of experts.
    pub routing: ExpertRouting,
    /// True if the routing weights multiply the experts' inputs instead of their outputs.
    pub(crate) weighs_inputs: bool,
    /// The shared expert, if there is one.
    pub(crate) shared: Option<SharedExpert>,
    /// Norms of the experts, of the router and of the shared expert, if they have norms of their own.
    pub(crate) norms: Option<Box<BranchNorms>>,
    /// Matrices that compress the experts' inputs, `[latent, d]`, and expand their sum, `[d, latent]`, if there are any.
    pub(crate) latent: Option<[Matrix; 2]>,
    /// Clamped GLU and biases, if there are any.
    pub(crate) clamped: Option<(ClampedGlu, ExpertBiases)>,
}

/// Biases of the router and of all experts of a layer.
#[derive(Clone, Debug)]
pub(crate) struct ExpertBiases {
    /// `[E]`
    pub(crate) router: Vec<f32>,
    /// `[E, F]`
    pub(crate) gate: Matrix,
    /// `[E, F]`
    pub(crate) up: Matrix,
    /// `[E, d]`
    pub(crate) down: Matrix,
}

impl Mixture {
    /// Loads the weights of a layer's feed-forward half.
    ///
    /// # Errors
    /// If one is missing, has another shape, or has an unsupported type.
    pub(crate) fn load(c: &DecoderConfig, w: &mut LayerWeights) -> Result<Self> {
        let e = w.experts()?;
        let width = e.latent.unwrap_or(c.hidden_size);
        let [gate, up] = match c.shape.ffn {
            FfnShape::Plain => [Vec::new(), w.of_experts("ffn_up_exps", e.count, c.ffn_size, width)?],
            FfnShape::Gated | FfnShape::FusedGate => w.gates_and_ups(e.count, c.ffn_size, width)?,
        };
        let latent = match e.latent {
            Some(width) => Some([
                w.matrix("ffn_latent_down", width, c.hidden_size)?,
                w.matrix("ffn_latent_up", c.hidden_size, width)?,
            ]),
            None => None,
        };
        let scales = if e.has_branch_norms { w.expert_scales(e.count)? } else { Vec::new() };
        let clamped = match e.clamped {
            Some(glu) => Some((glu, w.expert_biases(e.count, c.ffn_size, c.hidden_size)?)),
            None => None,
        };
        let bias = if e.has_bias { w.correction_bias(e.count)? } else { Vec::new() };
        Ok(Self {
            clamped,
            weighs_inputs: e.weighs_inputs,
            routing: ExpertRouting { bias, scales, ..e.routing },
            norms: e.has_branch_norms.then(|| BranchNorms::load(c, w).map(Box::new)).transpose()?,
            latent,
            norm: w.norm("ffn_norm", c.hidden_size)?,
            router: w.matrix("ffn_gate_inp", e.count, c.hidden_size)?,
            gate,
            up,
            down: w.of_experts("ffn_down_exps", e.count, width, c.ffn_size)?,
            shared: e.shared_ffn_size.map(|width| SharedExpert::load(c, w, width)).transpose()?,
        })
    }

    /// Returns the matrices, with names for messages.
    pub(crate) fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        let kinds = [("ffn_gate_exps", &self.gate), ("ffn_up_exps", &self.up), ("ffn_down_exps", &self.down)];
        let of_experts = kinds.into_iter().flat_map(|(name, all)| all.iter().map(move |w| (name, w)));
        let shared = self.shared.iter().flat_map(|shared| shared.matrices());
        let latent =
            self.latent.iter().flat_map(|[down, up]| [("ffn_latent_down", down), ("ffn_latent_up", up)]);
        let router = [("ffn_gate_inp", &self.router)];
        router.into_iter().chain(latent).chain(of_experts).chain(shared).collect()
    }

    /// Computes the block's output, which is added to the residual stream: `[T, d]` to `[T, d]`.
    pub(crate) fn forward(&self, x: &Tensor, p: &ForwardContext, t: &mut Probe) -> Tensor {
        let n = p.n;
        let normed = t.tap(FfnNorm, n.rms_norm(x, &self.norm));
        let own = self.norms.as_ref().map(|norms| norms.inputs(x, n, t));
        let [for_router, for_experts] = own.as_ref().map_or([&normed; 2], |own| own.each_ref());
        let mixed = self.routed(for_router, for_experts, p, t);
        let Some(shared) = &self.shared else { return t.tap(FfnOut, mixed) };
        let routed = t.tap(RoutedOut, mixed);
        let (routed, post_norm) = match &self.norms {
            Some(norms) => {
                (t.tap(RoutedPostNorm, n.rms_norm(&routed, &norms.routed_post)), Some(&norms.shared_post))
            }
            None => (routed, None),
        };
        let sum = shared.forward(&normed, &routed, post_norm, p, t);
        t.tap(FfnOut, sum)
    }

    /// Computes the weighted sum of the chosen experts' outputs, `[T, d]`. The router reads `for_router`, the experts
    /// read `x`; both are `[T, d]`.
    fn routed(&self, for_router: &Tensor, x: &Tensor, p: &ForwardContext, t: &mut Probe) -> Tensor {
        let (n, routing) = (p.n, &self.routing);
        let biases = self.clamped.as_ref().map(|(_, biases)| biases);
        let logits = match biases {
            Some(biases) => n.affine(for_router, &self.router, &biases.router),
            None => n.router_logits(for_router, &self.router, routing.precision),
        };
        let logits = t.tap(RouterLogits, logits);
        let mut scores = match routing.chooses_by_logits() {
            true => logits.clone(),
            false => n.expert_scores(&logits, routing),
        };
        if routing.has_scores() {
            scores = t.tap(ExpertScores, scores);
        }
        let chosen = t.tap(Experts, n.choose(&scores, routing));
        let mut weights = t.tap(ExpertWeights, n.expert_weights(&logits, &chosen, routing));
        let latent = self.latent.as_ref().map(|[down, _]| t.tap(ExpertLatent, n.linear(x, down)));
        let x = latent.as_ref().unwrap_or(x);
        let weighed = self.weighs_inputs.then(|| t.tap(ExpertIn, n.row_scaled(x, &weights)));
        if weighed.is_some() {
            weights = weights.map(|_| 1.0);
        }
        let out = self.outputs(weighed.as_ref().unwrap_or(x), &chosen, p, t);
        let mixed = n.mix(&out, &weights, &of_chosen(&scores, &chosen), routing.mixes_whole);
        match &self.latent {
            Some([_, up]) => n.linear(&t.tap(RoutedLatent, mixed), up),
            None => mixed,
        }
    }

    /// Computes the outputs of the chosen experts, `[T, k, d]`. `chosen` is `[T, k]`. `x` is `[T, d]`, or `[T, k, d]`
    /// if each expert has an input of its own.
    fn outputs(&self, x: &Tensor, chosen: &Tensor, p: &ForwardContext, t: &mut Probe) -> Tensor {
        let n = p.n;
        let biases = self.clamped.as_ref().map(|(_, biases)| biases);
        let routed = |x: &Tensor, w: &[Matrix], bias: Option<&Matrix>| match bias {
            Some(bias) => n.add(&n.routed(x, w, chosen), &rows_of(bias, chosen, n)),
            None => n.routed(x, w, chosen),
        };
        let gate = (!self.gate.is_empty())
            .then(|| t.tap(ExpertGate, routed(x, &self.gate, biases.map(|biases| &biases.gate))));
        let up = t.tap(ExpertUp, routed(x, &self.up, biases.map(|biases| &biases.up)));
        let act = match (&self.clamped, &gate) {
            (Some((glu, _)), Some(gate)) => n.clamped_glu(gate, &up, *glu),
            (None, Some(gate)) => n.gated(gate, &up, p.c.activation),
            (_, None) => n.activation(&up, p.c.activation),
        };
        let act = t.tap(ExpertAct, act);
        t.tap(ExpertOut, routed(&act, &self.down, biases.map(|biases| &biases.down)))
    }
}

/// Looks up the row of each chosen expert in `table`, `[E, width]`. `chosen` is `[T, k]`, the result is
/// `[T, k, width]`.
fn rows_of(table: &Matrix, chosen: &Tensor, n: &dyn Numerics) -> Tensor {
    let experts: Vec<u32> = chosen.data().iter().map(|&expert| expert as u32).collect();
    n.embed(table, &experts).reshaped(&[chosen.rows(), chosen.row_len(), table.cols])
}
