"""The taps: which values a dump may hold, where there is one of each, and its axes.

This table is that of docs/reference/dump-format.md, in the order in which an engine computes them.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from .errors import DumpError

# Every name that an axis may have. `group` are the query heads that share a key-value head.
AXES = (
    *("batch", "token", "head", "kv_head", "group", "head_dim", "hidden", "ffn", "key", "vocab", "rank"),
    *("expert", "chosen", "state"),
)

LAYER, PASS, SEQUENCE = "layer", "pass", "sequence"  # there is one of each: layer of a pass; pass; sequence of a pass


@dataclass(frozen=True)
class Tap:
    """One kind of value."""

    name: str
    scope: str
    axes: tuple[str, ...]
    what: str

    @property
    def holds_ids(self) -> bool:
        """Whether its values are ids of tokens or numbers of experts, and not numbers with a point."""
        return self.name in ("argmax", "top_ids", "experts")

    @property
    def has_heads(self) -> bool:
        """Whether an axis of its own counts heads, so that `[.., heads * head_dim]` has to be cut into heads."""
        return "head_dim" in self.axes


HEADS, KV_HEADS = ("token", "head", "head_dim"), ("token", "kv_head", "head_dim")
CACHE, SCORES = ("key", "kv_head", "head_dim"), ("head", "token", "key")
CHOSEN, OF_EXPERTS = ("token", "chosen"), ("token", "chosen", "ffn")
IN_EXPERTS = ("token", "chosen", "hidden")
HIDDEN, FFN, VOCAB = ("token", "hidden"), ("token", "ffn"), ("token", "vocab")

TABLE = (
    Tap("embed", PASS, HIDDEN, "what enters layer 0: embeddings, after any scale"),
    Tap("altup_projected", PASS, HIDDEN, "projections of the embeddings to AltUp's other streams (Gemma 3n)"),
    Tap("altup_streams", PASS, HIDDEN, "AltUp's streams that layer 0 reads, side by side"),
    Tap("predict_router", LAYER, HIDDEN, "AltUp's router of the predictions, after tanh"),
    Tap("predict_coefs", LAYER, HIDDEN, "coefficients of the predictions of AltUp's streams"),
    Tap("altup_predicted", LAYER, HIDDEN, "predictions of AltUp's streams, side by side"),
    Tap("attn_norm", LAYER, HIDDEN, "output of the norm before attention"),
    Tap("mixer_in", LAYER, HIDDEN, "projections of a recurrent layer, before they are split"),
    Tap("conv_in", LAYER, HIDDEN, "input of the short convolution, gated if the layer has a gate before it"),
    Tap("mixer_gate", LAYER, HIDDEN, "gate of a recurrent layer's norm, before its activation"),
    Tap("beta_logit", LAYER, ("token", "head"), "logits of β of the gated delta rule"),
    Tap("decay_logit", LAYER, ("token", "head"), "projections that the decay of linear attention is computed from"),
    Tap("conv_out", LAYER, HIDDEN, "short convolution with its bias, before any activation"),
    Tap("conv_act", LAYER, HIDDEN, "short convolution after its activation"),
    Tap("step_size", LAYER, ("token", "head"), "step sizes of a recurrence, after softplus and limits"),
    Tap("q_latent", LAYER, ("token", "hidden"), "compressed queries"),
    Tap("q_latent_norm", LAYER, ("token", "hidden"), "compressed queries after their norm"),
    Tap("q", LAYER, HEADS, "queries after projection and bias, before any norm and RoPE"),
    Tap("k", LAYER, KV_HEADS, "keys, likewise"),
    Tap("v", LAYER, KV_HEADS, "values, likewise"),
    Tap("attn_gate", LAYER, HIDDEN, "output gate of attention, before its sigmoid"),
    Tap("kv_latent", LAYER, ("token", "hidden"), "compressed keys and values, and the part of keys that rotates"),
    Tap("kv_latent_norm", LAYER, ("token", "hidden"), "compressed keys and values after their norm"),
    Tap("q_norm", LAYER, HEADS, "queries after their own norm, where there is one"),
    Tap("k_norm", LAYER, KV_HEADS, "keys, likewise"),
    Tap("v_norm", LAYER, KV_HEADS, "values after a norm of each head, which has no weight (Gemma 4)"),
    Tap("q_rope", LAYER, HEADS, "queries after RoPE; without RoPE equal to `q`"),
    Tap("k_rope", LAYER, KV_HEADS, "this pass's keys after RoPE; without RoPE equal to `k`"),
    Tap("q_scaled", LAYER, HEADS, "queries times the temperature of their position (Llama 4, Ministral 3)"),
    Tap("q_rope_norm", LAYER, HEADS, "queries after RoPE and a norm of each head (Llama 4, Hunyuan)"),
    Tap("k_rope_norm", LAYER, KV_HEADS, "keys, likewise"),
    Tap("k_cache", LAYER, CACHE, "the keys that attention reads, of every position so far"),
    Tap("v_cache", LAYER, CACHE, "the values that attention reads, likewise"),
    Tap("q_unit", LAYER, HIDDEN, "queries of linear attention after their L2 norm, before any scale, heads merged"),
    Tap("k_unit", LAYER, HIDDEN, "keys of linear attention after their L2 norm, heads merged"),
    Tap("beta", LAYER, ("token", "head"), "β of the gated delta rule (write strength, 0 to 1)"),
    Tap("decay", LAYER, ("token", "head"), "logarithms of the decay of the state of linear attention"),
    Tap("recurrent_state", LAYER, ("head", "head_dim", "state"), "recurrent state after the pass's last token"),
    Tap("k_expanded", LAYER, ("key", "head", "head_dim"), "keys of every position so far, expanded from latents"),
    Tap("v_expanded", LAYER, ("key", "head", "head_dim"), "values of every position so far, expanded from latents"),
    Tap("attn_scores", LAYER, SCORES, "scaled q·k, before ALiBi, mask and softmax"),
    Tap("attn_weights", LAYER, SCORES, "after mask and softmax"),
    Tap("attn_latent", LAYER, ("token", "head", "head_dim"), "weights · latents, before they are expanded to values"),
    Tap("attn_context", LAYER, HIDDEN, "weights · v, heads merged"),
    Tap("attn_gated", LAYER, HIDDEN, "weights · v times the sigmoid of the gate"),
    Tap("recurrent_out", LAYER, HIDDEN, "output of the recurrence with heads merged, before the gated norm"),
    Tap("recurrent_norm", LAYER, HIDDEN, "gated norm of the recurrence's output"),
    Tap("mixer_out", LAYER, HIDDEN, "output of a recurrence in parallel with attention, after its output projection"),
    Tap("conv_gated", LAYER, HIDDEN, "short convolution times the gate after it"),
    Tap("attn_sub_norm", LAYER, HIDDEN, "BitNet's norm before the output projection"),
    Tap("attn_out", LAYER, HIDDEN, "after the output projection and bias"),
    Tap("attn_post_norm", LAYER, HIDDEN, "Gemma's norm after attention, before the residual add"),
    Tap("attn_residual", LAYER, HIDDEN, "the residual stream after attention was added"),
    Tap("laurel_low", LAYER, HIDDEN, "first projection of a learned low-rank residual (LAuReL, Gemma 3n)"),
    Tap("laurel_high", LAYER, HIDDEN, "second projection of a learned low-rank residual"),
    Tap("laurel_norm", LAYER, HIDDEN, "norm of a learned low-rank residual"),
    Tap("laurel_out", LAYER, HIDDEN, "learned low-rank residual with its input added"),
    Tap("laurel_residual", LAYER, HIDDEN, "the residual stream plus the low-rank residual, divided by √2"),
    Tap("ffn_norm", LAYER, HIDDEN, "output of the norm before the feed-forward block"),
    Tap("router_norm", LAYER, HIDDEN, "input of the router after its own norm and factors (Gemma 4)"),
    Tap("router_logits", LAYER, ("token", "expert"), "logits of the experts, before any softmax"),
    Tap("expert_scores", LAYER, ("token", "expert"), "scores by which experts are chosen, before groups are left out"),
    Tap("experts", LAYER, CHOSEN, "numbers of the experts that each token has chosen, in any order"),
    Tap("expert_weights", LAYER, CHOSEN, "what their outputs are multiplied with, in the order of `experts`"),
    Tap("expert_norm", LAYER, HIDDEN, "output of the norm before experts (Gemma 4)"),
    Tap("expert_latent", LAYER, HIDDEN, "compressed inputs of experts (Nemotron-H)"),
    Tap("expert_in", LAYER, IN_EXPERTS, "inputs of the chosen experts, times their weights (Llama 4)"),
    Tap("expert_gate", LAYER, OF_EXPERTS, "their gate projections, likewise"),
    Tap("expert_up", LAYER, OF_EXPERTS, "their up projections"),
    Tap("expert_act", LAYER, OF_EXPERTS, "act(gate) * up of each"),
    Tap("expert_out", LAYER, IN_EXPERTS, "their outputs, before their weights"),
    Tap("routed_latent", LAYER, HIDDEN, "weighted sum over the chosen experts, before it is expanded (Nemotron-H)"),
    Tap("routed_out", LAYER, HIDDEN, "weighted sum over the chosen experts, before the shared expert is added"),
    Tap("routed_post_norm", LAYER, HIDDEN, "norm of the weighted sum over the chosen experts (Gemma 4)"),
    Tap("shared_gate", LAYER, FFN, "gate projection of the shared expert, before the activation"),
    Tap("shared_up", LAYER, FFN, "up projection of the shared expert"),
    Tap("shared_act", LAYER, FFN, "act(gate) * up of the shared expert"),
    Tap("shared_out", LAYER, HIDDEN, "output of the shared expert after the down projection, before its weight"),
    Tap("shared_post_norm", LAYER, HIDDEN, "norm of the shared expert's output (Gemma 4)"),
    Tap("shared_logit", LAYER, ("token",), "logit of the shared expert's weight"),
    Tap("shared_weight", LAYER, ("token",), "weight of the shared expert, after the sigmoid"),
    Tap("ffn_gate", LAYER, FFN, "gate projection, before the activation"),
    Tap("ffn_sparse", LAYER, FFN, "gate above the threshold of a sparse layer, before the activation (Gemma 3n)"),
    Tap("ffn_up", LAYER, FFN, "up projection"),
    Tap("ffn_act", LAYER, FFN, "act(gate) * up, or act(up)"),
    Tap("ffn_sub_norm", LAYER, FFN, "BitNet's norm before the down projection"),
    Tap("ffn_out", LAYER, HIDDEN, "after the down projection and bias"),
    Tap("ffn_post_norm", LAYER, HIDDEN, "Gemma's norm after the feed-forward block, before the residual add"),
    Tap("ffn_residual", LAYER, HIDDEN, "the residual stream after the feed-forward block was added (Gemma 4)"),
    Tap("correct_router", LAYER, HIDDEN, "AltUp's router of the corrections, after tanh"),
    Tap("correct_coefs", LAYER, HIDDEN, "coefficients of the corrections of AltUp's streams, before 1 is added"),
    Tap("altup_corrected", LAYER, HIDDEN, "corrected streams of AltUp, side by side"),
    Tap("altup_active", LAYER, HIDDEN, "AltUp's active stream times its factors, which gates the layer's embeddings"),
    Tap("layer_input", LAYER, FFN, "embeddings of the tokens for this layer (Gemma 4)"),
    Tap("layer_gate", LAYER, FFN, "gate of the layer's embeddings, before the activation"),
    Tap("layer_act", LAYER, FFN, "act(gate) times the layer's embeddings"),
    Tap("layer_out", LAYER, HIDDEN, "the layer's embeddings after their projection to the stream"),
    Tap("layer_post_norm", LAYER, HIDDEN, "norm of the layer's embeddings, before they are added"),
    Tap("block_out", LAYER, HIDDEN, "the layer's output, residual included"),
    Tap("altup_unembedded", PASS, HIDDEN, "projections of AltUp's other streams after the last layer"),
    Tap("altup_mean", PASS, HIDDEN, "mean of AltUp's streams, with the magnitude of the first"),
    Tap("final_norm", PASS, HIDDEN, "output of the last norm"),
    Tap("logits", PASS, VOCAB, "every position's logits"),
    Tap("last_logits", SEQUENCE, ("vocab",), "the row that the next token is chosen from"),
    Tap("argmax", SEQUENCE, (), "the greedy choice"),
    Tap("probs", SEQUENCE, ("vocab",), "softmax(last_logits / temperature)"),
    Tap("token_logprobs", PASS, ("token",), "natural log-probability of the token that follows each"),
    Tap("top_ids", PASS, ("token", "rank"), "ids of the likeliest tokens after each"),
    Tap("top_logprobs", PASS, ("token", "rank"), "their natural log-probabilities"),
)
TAPS = {tap.name: tap for tap in TABLE}

# Several taps in one array, as fused projections make them: what `Dump.tap` cuts apart.
FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("ffn_gate", "ffn_up")}

# What engines call some of them.
ALIASES = {
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "query": "q",
    "key": "k",
    "value": "v",
    "o_proj": "attn_out",
    "attention_output": "attn_out",
    "scores": "attn_scores",
    "attn_probs": "attn_weights",
    "input_layernorm": "attn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "mlp_out": "ffn_out",
    "down_proj": "ffn_out",
    "hidden_states": "block_out",
    "layer_out": "block_out",
    "embeddings": "embed",
    "lm_head": "logits",
    "qkv_proj": "qkv",
    "gate_up_proj": "gate_up",
}


def find(name: str) -> Tap:
    """The tap of that name."""
    if name not in TAPS:
        raise DumpError(unknown(name))
    return TAPS[name]


def unknown(name: str) -> str:
    """What to say of a name that no tap has."""
    if name == "generated":
        return "tap 'generated': tokens are no array of a pass, write dump.generated(ids) instead"
    near = ALIASES.get(name) or next(iter(difflib.get_close_matches(name, [*TAPS, *FUSED], n=1, cutoff=0.5)), None)
    if near:
        return f"there is no tap {name!r}: did you mean {near!r}? (xcheck.TAPS lists them all)"
    return f"there is no tap {name!r}: the taps are {', '.join([*TAPS, *FUSED])}"
