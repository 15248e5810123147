//! The taps: the table of docs/reference/dump-format.md.

use crate::axes::Axis::{self, *};
use crate::error::{refuse, Result};

/// How often a tap comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Once per layer and pass.
    Layer,
    /// Once per pass.
    Pass,
}

/// A value of the forward pass that has a name.
#[derive(Clone, Copy, Debug)]
pub struct Tap {
    /// Its name.
    pub name: &'static str,
    /// How often it comes.
    pub scope: Scope,
    /// What its axes count, outermost first.
    pub axes: &'static [Axis],
}

const fn layer(name: &'static str, axes: &'static [Axis]) -> Tap {
    Tap { name, scope: Scope::Layer, axes }
}

const fn pass(name: &'static str, axes: &'static [Axis]) -> Tap {
    Tap { name, scope: Scope::Pass, axes }
}

/// Every tap of a pass, in the order of the data flow.
pub const TAPS: &[Tap] = &[
    pass("embed", &[Token, Hidden]),
    pass("altup_projected", &[Token, Hidden]),
    pass("altup_streams", &[Token, Hidden]),
    layer("predict_router", &[Token, Hidden]),
    layer("predict_coefs", &[Token, Hidden]),
    layer("altup_predicted", &[Token, Hidden]),
    layer("attn_norm", &[Token, Hidden]),
    layer("mixer_in", &[Token, Hidden]),
    layer("conv_in", &[Token, Hidden]),
    layer("mixer_gate", &[Token, Hidden]),
    layer("beta_logit", &[Token, Head]),
    layer("decay_logit", &[Token, Head]),
    layer("conv_out", &[Token, Hidden]),
    layer("conv_act", &[Token, Hidden]),
    layer("step_size", &[Token, Head]),
    layer("q_latent", &[Token, Hidden]),
    layer("q_latent_norm", &[Token, Hidden]),
    layer("q", &[Token, Head, HeadDim]),
    layer("k", &[Token, KvHead, HeadDim]),
    layer("v", &[Token, KvHead, HeadDim]),
    layer("attn_gate", &[Token, Hidden]),
    layer("kv_latent", &[Token, Hidden]),
    layer("kv_latent_norm", &[Token, Hidden]),
    layer("q_norm", &[Token, Head, HeadDim]),
    layer("k_norm", &[Token, KvHead, HeadDim]),
    layer("v_norm", &[Token, KvHead, HeadDim]),
    layer("q_rope", &[Token, Head, HeadDim]),
    layer("k_rope", &[Token, KvHead, HeadDim]),
    layer("q_scaled", &[Token, Head, HeadDim]),
    layer("q_rope_norm", &[Token, Head, HeadDim]),
    layer("k_rope_norm", &[Token, KvHead, HeadDim]),
    layer("k_cache", &[Key, KvHead, HeadDim]),
    layer("v_cache", &[Key, KvHead, HeadDim]),
    layer("q_unit", &[Token, Hidden]),
    layer("k_unit", &[Token, Hidden]),
    layer("beta", &[Token, Head]),
    layer("decay", &[Token, Head]),
    layer("recurrent_state", &[Head, HeadDim, State]),
    layer("k_expanded", &[Key, Head, HeadDim]),
    layer("v_expanded", &[Key, Head, HeadDim]),
    layer("attn_scores", &[Head, Token, Key]),
    layer("attn_weights", &[Head, Token, Key]),
    layer("attn_latent", &[Token, Head, HeadDim]),
    layer("attn_context", &[Token, Hidden]),
    layer("attn_gated", &[Token, Hidden]),
    layer("recurrent_out", &[Token, Hidden]),
    layer("recurrent_norm", &[Token, Hidden]),
    layer("mixer_out", &[Token, Hidden]),
    layer("conv_gated", &[Token, Hidden]),
    layer("attn_sub_norm", &[Token, Hidden]),
    layer("attn_out", &[Token, Hidden]),
    layer("attn_post_norm", &[Token, Hidden]),
    layer("attn_residual", &[Token, Hidden]),
    layer("laurel_low", &[Token, Hidden]),
    layer("laurel_high", &[Token, Hidden]),
    layer("laurel_norm", &[Token, Hidden]),
    layer("laurel_out", &[Token, Hidden]),
    layer("laurel_residual", &[Token, Hidden]),
    layer("ffn_norm", &[Token, Hidden]),
    layer("router_norm", &[Token, Hidden]),
    layer("router_logits", &[Token, Expert]),
    layer("expert_scores", &[Token, Expert]),
    layer("experts", &[Token, Chosen]),
    layer("expert_weights", &[Token, Chosen]),
    layer("expert_norm", &[Token, Hidden]),
    layer("expert_latent", &[Token, Hidden]),
    layer("expert_in", &[Token, Chosen, Hidden]),
    layer("expert_gate", &[Token, Chosen, Ffn]),
    layer("expert_up", &[Token, Chosen, Ffn]),
    layer("expert_act", &[Token, Chosen, Ffn]),
    layer("expert_out", &[Token, Chosen, Hidden]),
    layer("routed_latent", &[Token, Hidden]),
    layer("routed_out", &[Token, Hidden]),
    layer("routed_post_norm", &[Token, Hidden]),
    layer("shared_gate", &[Token, Ffn]),
    layer("shared_up", &[Token, Ffn]),
    layer("shared_act", &[Token, Ffn]),
    layer("shared_out", &[Token, Hidden]),
    layer("shared_post_norm", &[Token, Hidden]),
    layer("shared_logit", &[Token]),
    layer("shared_weight", &[Token]),
    layer("ffn_gate", &[Token, Ffn]),
    layer("ffn_sparse", &[Token, Ffn]),
    layer("ffn_up", &[Token, Ffn]),
    layer("ffn_act", &[Token, Ffn]),
    layer("ffn_sub_norm", &[Token, Ffn]),
    layer("ffn_out", &[Token, Hidden]),
    layer("ffn_post_norm", &[Token, Hidden]),
    layer("ffn_residual", &[Token, Hidden]),
    layer("correct_router", &[Token, Hidden]),
    layer("correct_coefs", &[Token, Hidden]),
    layer("altup_corrected", &[Token, Hidden]),
    layer("altup_active", &[Token, Hidden]),
    layer("layer_input", &[Token, Ffn]),
    layer("layer_gate", &[Token, Ffn]),
    layer("layer_act", &[Token, Ffn]),
    layer("layer_out", &[Token, Hidden]),
    layer("layer_post_norm", &[Token, Hidden]),
    layer("block_out", &[Token, Hidden]),
    pass("altup_unembedded", &[Token, Hidden]),
    pass("altup_mean", &[Token, Hidden]),
    pass("final_norm", &[Token, Hidden]),
    pass("logits", &[Token, Vocab]),
    pass("last_logits", &[Vocab]),
    pass("argmax", &[]),
    pass("probs", &[Vocab]),
    pass("token_logprobs", &[Token]),
    pass("top_ids", &[Token, Rank]),
    pass("top_logprobs", &[Token, Rank]),
];

/// More layers than any model has.
const MOST_LAYERS: usize = 1 << 16;

impl Tap {
    /// The tap of that name.
    pub(crate) fn named(name: &str) -> Result<&'static Self> {
        if let Some(tap) = TAPS.iter().find(|tap| tap.name == name) {
            return Ok(tap);
        }
        if name == "generated" {
            return refuse("'generated' is no tap of a pass; give the continuation to Dump::generated");
        }
        let nearest = TAPS.iter().min_by_key(|tap| distance(name, tap.name)).map_or("q", |tap| tap.name);
        let name = name.escape_debug();
        refuse(format!(
            "no tap is named '{name}'; did you mean '{nearest}'? docs/reference/dump-format.md lists them all"
        ))
    }

    /// Whether it holds token ids.
    pub(crate) fn is_tokens(&self) -> bool {
        matches!(self.name, "argmax" | "top_ids" | "experts")
    }

    pub(crate) fn check_layer(&self, layer: Option<usize>) -> Result<()> {
        let name = self.name;
        match (self.scope, layer) {
            (Scope::Layer, None) => {
                refuse(format!("tap '{name}' is of a layer; give its number, from 0, in place of None"))
            }
            (Scope::Pass, Some(layer)) => {
                refuse(format!("tap '{name}' is of no layer; give None in place of {layer}"))
            }
            (_, Some(layer)) if layer >= MOST_LAYERS => {
                refuse(format!("tap '{name}': no model has a layer {layer}"))
            }
            _ => Ok(()),
        }
    }
}

/// How many letters must be changed, left out or put in (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.chars().enumerate() {
            let changed = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[row.len() - 1]
}
