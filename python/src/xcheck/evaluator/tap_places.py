"""Places of taps in a torch model: the output or the input of a module, or a value of its attention function."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from xcheck.guess import guess_attention, guess_feed_forward, guess_norms
from xcheck.heads import Heads, read_config
from xcheck.maps import FAMILIES, decoder_layers, final_norm, is_norm, unplaced
from xcheck.taps import FUSED, TAPS

from .modules import layers

# Modules with several results, by the names that transformers gives them. Places are relative to a decoder layer.
FEED_FORWARD = r"(mlp|feed_forward|block_sparse_moe|moe|mixer)"
SHARED = FEED_FORWARD + r"\.(shared_experts?|shared_mlp)"
ROUTER = FEED_FORWARD + r"\.gate|(mlp|block_sparse_moe|moe)\.router"
MIXTURE = (
    ("router_logits", "second output", r"feed_forward\.router"),  # Llama 4
    ("router_logits", "output", ROUTER),
    ("expert_weights", "second output", ROUTER),
    ("experts", "third output", ROUTER),
    ("routed_out", "output", FEED_FORWARD + r"\.experts"),
    ("shared_gate", "output", SHARED + r"\.gate_proj"),
    ("shared_up", "output", SHARED + r"\.up_proj"),
    ("shared_act", "input", SHARED + r"\.down_proj"),
    ("shared_out", "output", SHARED),
    ("shared_logit", "output", FEED_FORWARD + r"\.shared_expert_gate"),
    ("ffn_out", "output", FEED_FORWARD),
)
LATENT = (  # multi-head latent attention
    ("q", "output", r"(self_attn|attention)\.q_b_proj"),
    ("q_latent", "output", r"(self_attn|attention)\.q_a_proj"),
    ("q_latent_norm", "output", r"(self_attn|attention)\.q_a_layernorm"),
    ("kv_latent", "output", r"(self_attn|attention)\.kv_a_proj_with_mqa"),
    ("kv_latent_norm", "output", r"(self_attn|attention)\.kv_a_layernorm"),
)
COMPRESSED = (  # experts with compressed inputs (Nemotron-H)
    ("expert_latent", "output", r"mixer\.fc1_latent_proj"),
    ("routed_latent", "output", r"mixer\.experts"),
    ("routed_out", "output", r"mixer\.fc2_latent_proj"),
)
RECURRENT = (  # layers with a convolution or a recurrence in place of attention
    ("mixer_in", "output", r"(mamba|conv|mixer)\.in_proj"),
    ("conv_gated", "input", r"conv\.out_proj"),
    ("recurrent_out", "input", r"(mamba|mixer)\.norm"),
    ("recurrent_norm", "input", r"(mamba|mixer|linear_attn)\.out_proj"),
    ("attn_out", "output", r"(mamba|conv|mixer|linear_attn)\.out_proj"),
    ("mixer_out", "output", r"mamba\.out_proj"),  # in parallel with attention
)
MIXER = (  # attention or a feed-forward block as the only half of a layer (Nemotron-H)
    ("q", "output", r"mixer\.q_proj"),
    ("k", "output", r"mixer\.k_proj"),
    ("v", "output", r"mixer\.v_proj"),
    ("attn_context", "input", r"mixer\.o_proj"),
    ("attn_out", "output", r"mixer\.o_proj"),
    ("ffn_up", "output", r"mixer\.up_proj"),
    ("ffn_act", "input", r"mixer\.down_proj"),
    ("ffn_out", "output", r"mixer\.down_proj"),
)
EMBEDDINGS = (  # norms of values, and embeddings of each layer (Gemma 4)
    ("v_norm", "output", r"self_attn\.v_norm"),
    ("ffn_residual", "input", "per_layer_input_gate"),
    ("layer_gate", "output", "per_layer_input_gate"),
    ("layer_act", "input", "per_layer_projection"),
    ("layer_out", "output", "per_layer_projection"),
    ("layer_post_norm", "output", "post_per_layer_input_norm"),
)
STREAMS = (  # AltUp, low-rank residuals and sparse gates (Gemma 3n)
    ("predict_router", "input", r"altup\.prediction_coefs"),
    ("predict_coefs", "output", r"altup\.prediction_coefs"),
    ("correct_router", "input", r"altup\.correction_coefs"),
    ("correct_coefs", "output", r"altup\.correction_coefs"),
    ("laurel_low", "output", r"laurel\.linear_left"),
    ("laurel_high", "output", r"laurel\.linear_right"),
    ("laurel_norm", "output", r"laurel\.post_laurel_norm"),
    ("laurel_out", "output", "laurel"),
    ("laurel_residual", "input", "pre_feedforward_layernorm"),
    ("ffn_sparse", "input", r"mlp\.act_fn"),
    ("altup_active", "input", "per_layer_input_gate"),
)
BRANCHES = (  # experts and a feed-forward block that read the stream through norms of their own (Gemma 4)
    ("router_norm", "input", "router.proj"),
    ("router_logits", "output", "router.proj"),
    ("expert_weights", "second output", "router"),
    ("experts", "third output", "router"),
    ("expert_norm", "output", "pre_feedforward_layernorm_2"),
    ("routed_out", "output", "experts"),
    ("routed_post_norm", "output", "post_feedforward_layernorm_2"),
    ("shared_post_norm", "output", "post_feedforward_layernorm_1"),
    ("ffn_out", "input", "post_feedforward_layernorm"),
)
# Values of a layer's attention function, with the axes of transformers.
QUERIES, KEYS = ("batch", "head", "token", "head_dim"), ("batch", "kv_head", "token", "head_dim")
CACHE = ("batch", "kv_head", "key", "head_dim")
SCORES = ("batch", "head", "token", "key")
ATTENTION = {"q_rope": QUERIES, "k_rope": KEYS, "k_cache": CACHE, "v_cache": CACHE,
             "attn_scores": SCORES, "attn_weights": SCORES}  # fmt: skip
LOGITS = ("logits", "last_logits", "argmax", "probs")


@dataclass(frozen=True)
class Place:
    """One side of a module. `axes` and `layout` are those of a map; None if unstated."""

    module: str
    side: str  # input, output, second output, third output, attention, logits
    axes: tuple[str, ...] | None = None
    layout: str | None = None
    fused: str | None = None  # name of the fused projection that the tap is a part of


class Places:
    """The places of a model's taps, layer by layer."""

    def __init__(self, model: Any):
        self.model = model
        self.heads = read_config(getattr(model, "config", None)).heads
        self.path = decoder_layers(model) or hybrid_layers(model)
        self.of_layer: dict[int, dict[str, Place]] = {}

    def find(self, tap: str, layer: int | None) -> Place | str:
        """Returns the place of a tap, or the reason why there is none."""
        if tap not in TAPS:
            return "unknown tap"
        if tap in LOGITS:
            return Place("", "logits")
        if self.path is None:
            return "the model has no list of layers with attention; record outputs of modules"
        if layer is None:
            return self.outside(tap)
        blocks = self.model.get_submodule(self.path)
        if layer >= len(blocks):
            return f"the model has {len(blocks)} layers"
        if layer not in self.of_layer:
            self.of_layer[layer] = within(blocks[layer], f"{self.path}.{layer}", self.heads)
        found = self.of_layer[layer].get(tap)
        return found if found is not None else self.why_not(tap, blocks[layer])

    def outside(self, tap: str) -> Place | str:
        """Returns the place of a tap that exists once in a pass."""
        assert self.path is not None
        parent, _, _ = self.path.rpartition(".")
        if hasattr(self.model.get_submodule(parent), "altup_projections"):
            streams = {
                "embed": Place(f"{parent}.embed_tokens".lstrip("."), "output"),
                "altup_streams": Place(f"{self.path}.0", "input"),
                "altup_mean": Place(f"{parent}.norm".lstrip("."), "input"),
            }
            if tap in streams:
                return streams[tap]
        if tap == "embed":
            return Place(f"{self.path}.0", "input")
        norm = (final_norm(self.model, self.path) or self.only_norm()) if tap == "final_norm" else None
        if norm is not None:
            return Place(norm, "output")
        names = [name for name, _ in self.model.named_children()]
        return f"no module has this value; the model has the modules {', '.join(names)}; record outputs of modules"

    def only_norm(self) -> str | None:
        """Returns the only norm next to the layers, whatever its name, with a weight or not."""
        parent = (self.path or "").rpartition(".")[0]
        children = self.model.get_submodule(parent).named_children()
        names = [name for name, module in children if is_norm(name, module) or "norm" in name]
        return f"{parent}.{names[0]}".lstrip(".") if len(names) == 1 else None

    def layer_around(self, module: str) -> str:
        """Returns the path of the layer that contains a module."""
        found = re.match(rf"{re.escape(self.path or '')}\.\d+", module)
        return found.group() if found else ""

    def why_not(self, tap: str, block: Any) -> str:
        parts = [name for name, module in block.named_modules() if name and not list(module.children())]
        return f"no module has this value; the layer has the modules {', '.join(parts)}; record outputs of modules"


def hybrid_layers(model: Any) -> str | None:
    """Returns the path of the longest list of layers, for a model whose first layer has no attention."""
    lists = [path.rpartition(".")[0] for path in layers(model)]
    return max(lists, key=lists.count, default=None)


def within(block: Any, path: str, heads: Heads) -> dict[str, Place]:
    """Returns the places of the taps inside a layer."""
    found: dict[str, Place] = {"block_out": Place(path, "output")}
    # Falcon-H1 has an identity in place of a norm, and does not call it.
    names = [name for name, module in block.named_modules() if name and type(module).__name__ != "Identity"]
    for tap, words in relative_map(block, heads).items():
        side, _, rest = words.partition(" of ")
        module, *manner = rest.replace(" as ", " ").replace(",", " ").split()
        if tap in FUSED:
            layout = manner[0] if manner else None
            found.update(
                (part, Place(f"{path}.{module}", side, None, layout, tap)) for part in FUSED[tap] if part not in found
            )
        else:
            found[tap] = Place(f"{path}.{module}", side, tuple(manner) or None)
    if has_latents(block):  # one projection of them is no fused one
        found = {tap: place for tap, place in found.items() if place.fused != "qkv"}
    if any(getattr(module, "clip_qkv", None) is not None for module in block.modules()):
        found = {tap: place for tap, place in found.items() if tap not in FUSED["qkv"]}  # outputs are not limited
    if gates_attention(block, path, found):
        found["attn_gated"] = found.pop("attn_context")
        del found["q"]  # heads of queries and gates in turn
    if {"mixer.up_proj", "mixer.experts"} & set(names) and "attn_norm" in found:
        found["ffn_norm"] = found.pop("attn_norm")
    if "router.proj" in names:
        found = beside_experts(path, found)
    streams = STREAMS if "altup" in names else ()
    for tap, side, pattern in (*COMPRESSED, *MIXTURE, *LATENT, *RECURRENT, *MIXER, *EMBEDDINGS, *streams):
        fits = [name for name in names if re.fullmatch(pattern, name)]
        if len(fits) == 1 and tap not in found:
            found[tap] = Place(f"{path}.{fits[0]}", side)
    if "shared_mlp.output_linear" in names:
        found = {tap: place for tap, place in found.items() if not tap.startswith("ffn_") or tap == "ffn_norm"}
        found.update(granite_feed_forward(path, "block_sparse_moe.experts" in names))
    if "altup" in names:  # modules between which Gemma 4 has them read other values
        found = {tap: place for tap, place in found.items() if tap not in ("attn_residual", "ffn_residual")}
    last = after_rope(block, names)
    found.update((last.get(tap, tap), Place(path, "attention", axes)) for tap, axes in ATTENTION.items())
    if has_latents(block):  # the taps are latents, attention reads whole heads
        for tap in ("q_rope", "k_rope", "k_cache", "v_cache"):
            del found[tap]
    return found


def beside_experts(path: str, found: dict[str, Place]) -> dict[str, Place]:
    """Returns the places in Gemma 4's layers, whose feed-forward block is a shared expert next to the others."""
    parts = {f"ffn_{part}": f"shared_{part}" for part in ("gate", "up", "act", "out")}
    own = {parts.get(tap, tap): place for tap, place in found.items()}
    return {**own, **{tap: Place(f"{path}.{module}", side) for tap, side, module in BRANCHES}}


def granite_feed_forward(path: str, has_experts: bool) -> dict[str, Place]:
    """Returns the places in Granite 4's feed-forward block, next to experts or not: no module returns their sum."""
    gate_up = Place(f"{path}.shared_mlp.input_linear", "output", None, "beside", "gate_up")
    act, out = Place(f"{path}.shared_mlp.output_linear", "input"), Place(f"{path}.shared_mlp", "output")
    if has_experts:
        return {"routed_out": Place(f"{path}.block_sparse_moe", "output"), "shared_act": act, "shared_out": out}
    return {"ffn_gate": gate_up, "ffn_up": gate_up, "ffn_act": act, "ffn_out": out}


def has_latents(module: Any) -> bool:
    """Returns true for multi-head latent attention, whose keys and values are expanded from latents."""
    return any(name.endswith("kv_a_proj_with_mqa") for name, _ in module.named_modules())


def after_rope(block: Any, names: list[str]) -> dict[str, str]:
    """Returns the taps that attention reads in Llama 4, Ministral 3 and Hunyuan, by the tap that others read."""
    if any(name.endswith((".qk_norm", ".query_layernorm")) for name in names):
        return {"q_rope": "q_rope_norm", "k_rope": "k_rope_norm"}
    attention = getattr(block, "self_attn", None)
    rope = getattr(getattr(attention, "config", None), "rope_parameters", None) or {}
    is_of_llama4 = getattr(attention, "attn_temperature_tuning", False) and not getattr(attention, "use_rope", True)
    is_scaled = is_of_llama4 or "llama_4_scaling_beta" in rope
    return {"q_rope": "q_scaled"} if is_scaled else {}


def gates_attention(block: Any, path: str, found: dict[str, Place]) -> bool:
    """Returns true if the projection of queries also makes a gate for each value of attention's output."""
    if not {"q", "attn_context"} <= found.keys() or found["q"].fused is not None:
        return False
    modules = [block.get_submodule(found[tap].module.removeprefix(f"{path}.")) for tap in ("q", "attn_context")]
    shapes = [getattr(getattr(module, "weight", None), "shape", ()) for module in modules]
    return [len(shape) for shape in shapes] == [2, 2] and shapes[0][0] == 2 * shapes[1][1]


def relative_map(block: Any, heads: Heads) -> dict[str, str]:
    """Returns the map of one layer: that of a known family, or a guess by names."""
    names = {name for name, _ in block.named_modules() if name}
    for needed, family in FAMILIES:
        if all(name in names for name in needed):
            relative = {tap: place for tap, place in family.items() if place.split(" of ")[1].split()[0] in names}
            if not unplaced(block, relative):
                return {tap: place for tap, place in relative.items() if tap != "attn_weights"}
    return {**guess_norms(block), **guess_attention(block, heads), **guess_feed_forward(block)}
