"""A map for a model whose modules have names of their own: by what modules are usually called, and by their shapes."""

from __future__ import annotations

import re
from typing import Any

from .errors import DumpError
from .heads import Heads, read_config
from .maps import decoder_layers, is_norm, known_map, unplaced, whole_map, with_weights

# The last part of a module's name, inside attention and inside the feed-forward block.
ATTENTION = (
    ("qkv", r"qkv|qkv_proj|w_?qkv|c_attn|query_key_value|in_proj|to_qkv|attn_qkv"),
    ("q", r"q|wq|q_proj|query|to_q|q_lin|linear_q|query_proj"),
    ("k", r"k|wk|k_proj|key|to_k|k_lin|linear_k|key_proj"),
    ("v", r"v|wv|v_proj|value|to_v|v_lin|linear_v|value_proj"),
    ("q_norm", r"q_norm|q_layernorm|q_ln|query_norm|norm_q"),
    ("k_norm", r"k_norm|k_layernorm|k_ln|key_norm|norm_k"),
    ("attn_out", r"o|wo|o_proj|out_proj|c_proj|dense|proj|out|to_out|out_lin|output"),
)
GATED = (
    ("gate_up", r"gate_up|gate_up_proj|w13|w1_w3|fc1_gate_up"),
    ("ffn_gate", r"gate|gate_proj|w1|wg|w_gate|linear_v"),
    ("ffn_up", r"up|up_proj|w3|wu|w_up|linear_1"),
    ("ffn_out", r"down|down_proj|w2|wd|w_down|c_proj|fc2"),
)
PLAIN = (
    ("ffn_up", r"up|up_proj|fc1|c_fc|fc_in|dense_h_to_4h|w1|lin1|wi|fc|linear_?1|dense_in|0"),
    ("ffn_out", r"down|down_proj|fc2|c_proj|fc_out|dense_4h_to_h|w2|lin2|wo|proj|linear_?2|dense_out|2"),
)
BEHIND = (("ffn_post_norm", r"post_(mlp|feed_?forward|ffn|ffw)"), ("attn_post_norm", r"post_self_attn"))
# Norms of queries, keys or values alone, of a layer's embeddings, or of one of two branches (Gemma 4).
OF_ONE = re.compile(r"[qkv]_|.*per_layer|(pre|post)_feedforward_layernorm_\d")
BEFORE_FEED_FORWARD = re.compile(r"mlp|ffn|feed_?forward|post_att|ln_2")
NORMS = {  # by how many there are
    1: ("attn_norm",),
    2: ("attn_norm", "ffn_norm"),
    3: ("attn_norm", "attn_post_norm", "ffn_norm"),
    4: ("attn_norm", "attn_post_norm", "ffn_norm", "ffn_post_norm"),
}
HEAD = r"lm_head|head|output|embed_out|unembed|logits"


class Map(dict[str, str]):
    """A map for `hook`, and the modules with weights for which there was no tap."""

    unplaced: list[str]

    def __init__(self, places: dict[str, str], unplaced: list[str]):
        super().__init__(places)
        self.unplaced = unplaced

    def __str__(self) -> str:
        lines = [f"{tap:14} {place}" for tap, place in self.items()]
        return "\n".join([*lines, *(f"{'(no tap)':14} {name}" for name in self.unplaced)])


def guess_map(model: Any, config: Any = None) -> Map:
    """A map for `hook(model, out, map=...)`. Print it, and correct it: names can mislead."""
    known = known_map(model)
    if known is not None:
        return Map(known, [])
    path = decoder_layers(model)
    if path is None:
        raise DumpError("no list of layers with attention was found: write the map by hand, as xcheck.maps explains")
    block = model.get_submodule(path)[0]
    heads = read_config(config if config is not None else getattr(model, "config", None)).heads
    relative = {**guess_norms(block), **guess_attention(block, heads), **guess_feed_forward(block)}
    places = whole_map(model, path, relative)
    head = next((name for name, _ in model.named_children() if re.fullmatch(HEAD, name)), None)
    # The logits of a transformers model are in what it returns: some are scaled or capped after the head.
    if head and not hasattr(model, "get_output_embeddings"):
        places["logits"] = f"output of {head}"
    return Map(places, [f"{path}.*.{name}" for name in unplaced(block, relative)])


def guess_norms(block: Any) -> dict[str, str]:
    """The norms that stand in a layer itself: those behind a part by their names, the others by their order."""
    names = [name for name, module in block.named_children() if is_norm(name, module) and not OF_ONE.match(name)]
    names.sort(key=lambda name: not name.startswith("input"))  # Falcon lists the second norm first
    found = {}
    for tap, pattern in BEHIND:
        fits = [name for name in names if re.search(pattern, name)]
        if len(fits) == 1:
            found[tap] = fits[0]
            names.remove(fits[0])
    if "ffn_post_norm" in found and len(names) == 1 and re.search("post_attention", names[0]):
        found["attn_post_norm"] = names.pop()  # what Llama calls so stands before the feed-forward block
    alone = len(names) == 1 and BEFORE_FEED_FORWARD.search(names[0])
    order = ("ffn_norm",) if alone else NORMS.get(len(names), ())
    found.update((tap, name) for tap, name in zip(order, names))
    relative = {tap: f"output of {name}" for tap, name in found.items()}
    if "ffn_norm" in found:
        relative["attn_residual"] = f"input of {found['ffn_norm']}"
    return relative


def guess_attention(block: Any, heads: Heads) -> dict[str, str]:
    """The projections of attention, and what enters the last of them."""
    relative = guess_by_name(block, r"(.*\.)?\w*(attn|attention)\w*", ATTENTION)
    for name, module in with_weights(block):
        if "qkv" in relative or "q" in relative or not re.search(r"attn|attention", name) or not heads.known:
            continue
        n_heads, n_kv_heads, head_dim = heads.n_heads or 0, heads.n_kv_heads or 0, heads.head_dim or 0
        weight = getattr(module, "weight", None)
        if weight is not None and weight.ndim == 2 and (n_heads + 2 * n_kv_heads) * head_dim in weight.shape:
            relative["qkv"] = f"output of {name}"
    if "attn_out" in relative:
        relative["attn_context"] = relative["attn_out"].replace("output", "input", 1)
    return relative


def guess_feed_forward(block: Any) -> dict[str, str]:
    """The projections of the feed-forward block, and what enters the last of them; at least what leaves the block."""
    container = r"(.*\.)?(mlp|ffn|ff|feed_?forward)\w*"
    relative = guess_by_name(block, container, GATED)
    if not {"gate_up", "ffn_gate"} & set(relative) or not {"gate_up", "ffn_up"} & set(relative):
        relative = guess_by_name(block, f"({container})?", PLAIN)  # or in the layer itself
    if "ffn_out" in relative:
        relative["ffn_act"] = relative["ffn_out"].replace("output", "input", 1)
        return relative
    whole = next((name for name, _ in block.named_children() if re.fullmatch(container, name)), None)
    return {"ffn_out": f"output of {whole}"} if whole else {}


def guess_by_name(block: Any, container: str, rules: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """For each rule the one module in a container whose name's last part fits."""
    relative = {}
    for tap, names in rules:
        fits = [
            name
            for name, _ in with_weights(block)
            if re.fullmatch(container, name.rpartition(".")[0]) and re.fullmatch(names, name.rpartition(".")[2].lower())
        ]
        if len(fits) == 1:
            relative[tap] = f"output of {fits[0]}"
    return relative
