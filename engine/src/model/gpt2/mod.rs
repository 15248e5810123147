//! GPT-2 (Radford et al., 2019): learned positions, LayerNorm, biases in all layers, GELU, and the embedding table as
//! the vocabulary projection.

mod config;
mod load;

pub(crate) use config::Gpt2Config;

use std::ops::Range;

use serde_json::Value;

use crate::checkpoint::Point::*;
use crate::model::attention::Attention;
use crate::model::cache::{KvLayer, LayerState};
use crate::model::decoder::Family;
use crate::model::weights::{arrive, arrive_rows};
use crate::model::{Dimensions, Model, ModelPass, llama, rows_for_head};
use crate::numerics::Numerics;
use crate::ops::activation::Activation;
use crate::ops::attention::{AttentionScale, Mask};
use crate::ops::norm::LayerNorm;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Names of GPT-2 in files. Its other settings are in [`Gpt2Config`].
pub(crate) const FAMILY: Family = Family {
    architecture: "gpt2",
    gguf_names: &["gpt2"],
    model_types: &["gpt2"],
    config_defaults: || Value::Null,
    ..llama::FAMILY
};

/// A GPT-2 model.
#[derive(Clone, Debug)]
pub struct Gpt2 {
    /// Sizes and constants.
    pub config: Gpt2Config,
    /// `[V, d]`
    pub(crate) token_embd: Matrix,
    /// `[context length, d]`
    pub position_embd: Matrix,
    /// The transformer blocks, in order.
    pub layers: Vec<Gpt2Block>,
    /// `[d]`
    pub(crate) output_norm: LayerNorm,
    /// `[V, d]`
    pub output: Matrix,
}

/// Weights of one block.
#[derive(Clone, Debug)]
pub struct Gpt2Block {
    /// `[d]`
    pub(crate) attn_norm: LayerNorm,
    /// `[d, d]`
    pub q: AffineMatrix,
    /// `[d, d]`
    pub k: AffineMatrix,
    /// `[d, d]`
    pub v: AffineMatrix,
    /// `[d, d]`
    pub attn_output: AffineMatrix,
    /// `[d]`
    pub(crate) ffn_norm: LayerNorm,
    /// `[F, d]`
    pub ffn_up: AffineMatrix,
    /// `[d, F]`
    pub ffn_down: AffineMatrix,
}

/// Matrix and bias of a linear layer.
#[derive(Clone, Debug)]
pub struct AffineMatrix {
    /// `[outputs, inputs]`
    pub weight: Matrix,
    /// `[outputs]`
    pub bias: Vec<f32>,
}

impl AffineMatrix {
    fn of(&self, x: &Tensor, n: &dyn Numerics) -> Tensor {
        n.affine(x, &self.weight, &self.bias)
    }
}

impl Model for Gpt2 {
    fn architecture(&self) -> &'static str {
        "gpt2"
    }

    fn dimensions(&self) -> Dimensions {
        let c = &self.config;
        Dimensions {
            vocab_size: c.vocab_size,
            context_length: c.context_length,
            n_layers: self.layers.len(),
            hidden_size: c.hidden_size,
            n_heads: c.n_heads,
            head_dim: c.head_dim(),
            kv_width: c.hidden_size,
            rope_pairing: None,
            experts: 0,
            expert_groups: None,
            value_width: c.hidden_size,
        }
    }

    fn outer_matrices(&self) -> Vec<(&'static str, &Matrix)> {
        vec![
            ("token_embd", &self.token_embd),
            ("position_embd", &self.position_embd),
            ("output", &self.output),
        ]
    }

    fn layer_matrices(&self, layer: usize) -> Vec<(&'static str, &Matrix)> {
        let products = self.layers[layer].products().into_iter();
        products.map(|(name, product)| (name, &product.weight)).collect()
    }

    fn head(&self) -> &Matrix {
        &self.output
    }

    fn activation(&self) -> Activation {
        self.config.activation
    }

    fn set_gelu(&mut self, form: Activation) -> bool {
        self.config.activation.replace_gelu(form)
    }

    fn pass_within<'m>(
        &'m self,
        n: &'m dyn Numerics,
        positions: Range<usize>,
        _: usize,
    ) -> Box<dyn ModelPass + 'm> {
        let scale = AttentionScale::Products(1.0 / (self.config.head_dim() as f32).sqrt());
        let mask = Mask { position: positions.start, window: None, chunks: None };
        Box::new(Gpt2Pass {
            model: self,
            positions,
            attention: Attention { n, scale, cap: None, mask, sinks: None, slopes: None },
        })
    }
}

/// A pass of a GPT-2 model.
struct Gpt2Pass<'m> {
    model: &'m Gpt2,
    positions: Range<usize>,
    attention: Attention<'m>,
}

impl ModelPass for Gpt2Pass<'_> {
    /// Returns the sum of the token and position embeddings.
    fn embed(&self, tokens: &[u32], t: &mut Probe) -> Tensor {
        let n = self.attention.n;
        let positions: Vec<u32> = self.positions.clone().map(|position| position as u32).collect();
        arrive_rows(&self.model.token_embd, tokens);
        let rows = n.embed(&self.model.token_embd, tokens);
        t.tap(Embed, n.add(&rows, &n.embed(&self.model.position_embd, &positions)))
    }

    fn layer(&self, layer: usize, x: &Tensor, t: &mut Probe, state: &mut LayerState) -> Tensor {
        t.enter_layer(layer);
        let products = self.model.layers[layer].products();
        arrive(format_args!("layer {layer}"), &products.map(|(name, product)| (name, &product.weight)));
        self.model.layers[layer].forward(x, &self.model.config, &self.attention, t, state.kv())
    }

    fn head(&self, x: Tensor, t: &mut Probe) -> Tensor {
        let (n, model) = (self.attention.n, self.model);
        arrive(format_args!("the head"), &[("output", &model.output)]);
        let x = rows_for_head(x, t);
        let norm = t.tap(FinalNorm, n.layer_norm(&x, &model.output_norm));
        t.tap(Logits, n.linear_of_pass(&norm, &model.output, None, self.positions.len()))
    }
}

impl Gpt2Block {
    /// Computes the residual stream after the block: `[T, d]` to `[T, d]`. GPT-2 has no RoPE, so the taps after RoPE
    /// get the unchanged queries and keys.
    fn forward(
        &self,
        x: &Tensor,
        c: &Gpt2Config,
        attention: &Attention,
        t: &mut Probe,
        kv: &mut KvLayer,
    ) -> Tensor {
        let n = attention.n;
        let norm = t.tap(AttnNorm, n.layer_norm(x, &self.attn_norm));
        let q = t.tap(Q, c.heads(self.q.of(&norm, n)));
        let k = t.tap(K, c.heads(self.k.of(&norm, n)));
        let v = t.tap(V, c.heads(self.v.of(&norm, n)));
        let (q, k) = (t.tap(QRope, q), t.tap(KRope, k));
        let context = attention.attend(&q, k, v, t, kv);
        let out = t.tap(AttnOut, self.attn_output.of(&context, n));
        let h = t.tap(AttnResidual, n.add(x, &out));
        let norm = t.tap(FfnNorm, n.layer_norm(&h, &self.ffn_norm));
        let up = t.tap(FfnUp, self.ffn_up.of(&norm, n));
        let act = t.tap(FfnAct, n.activation(&up, c.activation));
        let out = t.tap(FfnOut, self.ffn_down.of(&act, n));
        t.tap(BlockOut, n.add(&h, &out))
    }

    /// Returns the linear layers, with names for messages.
    fn products(&self) -> [(&'static str, &AffineMatrix); 6] {
        [
            ("attn_q", &self.q),
            ("attn_k", &self.k),
            ("attn_v", &self.v),
            ("attn_output", &self.attn_output),
            ("ffn_up", &self.ffn_up),
            ("ffn_down", &self.ffn_down),
        ]
    }
}
