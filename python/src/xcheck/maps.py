"""Which module of a torch model has which tap's value: maps of tap names to places, in words.

    {"attn_norm": "output of model.layers.*.input_layernorm",
     "ffn_act": "input of model.layers.*.mlp.down_proj",
     "q_norm": "output of model.layers.*.self_attn.q_norm as batch head token head_dim",
     "qkv": "output of transformer.h.*.attn.c_attn as beside"}

A `*` stands for the number of the layer. What follows `as` are the value's axes, or the layout of a fused projection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import taps
from .errors import DumpError

PLACE = re.compile(r"(input|output|second output) of (\S+)(?: as (\S.*))?")


@dataclass(frozen=True)
class Port:
    """One side of modules, where a tap's value passes by."""

    tap: str
    side: str  # input, output, or the second of several outputs
    modules: str
    axes: tuple[str, ...] | None = None
    layout: str | None = None

    def find(self, model: Any) -> list[tuple[int | None, Any]]:
        """The modules, each with the number of its layer."""
        pattern = re.compile(re.escape(self.modules).replace(r"\*", r"(\d+)"))
        found = []
        for name, module in model.named_modules():
            match = pattern.fullmatch(name)
            if match:
                found.append((int(match[1]) if match.groups() else None, module))
        if not found:
            raise DumpError(f"{self.tap}: the model has no module {self.modules}; model.named_modules() lists them")
        return found


def read_map(places: Mapping[str, str]) -> list[Port]:
    """The ports that a map names."""
    return [read_place(tap, place) for tap, place in places.items()]


def read_place(tap: str, place: str) -> Port:
    """One entry of a map."""
    if tap not in taps.FUSED:
        taps.find(tap)
    match = PLACE.fullmatch(place)
    if not match:
        raise DumpError(f"{tap}: {place!r} is no place: write 'output of model.layers.*.input_layernorm' (or input)")
    side, modules, manner = match.groups()
    if modules.count("*") > 1:
        raise DumpError(f"{tap}: {modules} has more than one '*', which stands for the number of the layer")
    words = tuple((manner or "").replace(",", " ").split())
    if tap in taps.FUSED:
        return Port(tap, side, modules, layout=words[0] if words else None)
    return Port(tap, side, modules, axes=words or None)


# ---------------------------------------------------------------------------------------------------
# The names of transformers. Places are relative to a decoder layer; those that a layer lacks are left out.

LLAMA = {
    "attn_norm": "output of input_layernorm",
    "q": "output of self_attn.q_proj",
    "k": "output of self_attn.k_proj",
    "v": "output of self_attn.v_proj",
    "qkv": "output of self_attn.qkv_proj as beside",
    "q_norm": "output of self_attn.q_norm",
    "k_norm": "output of self_attn.k_norm",
    "attn_weights": "second output of self_attn",
    "attn_context": "input of self_attn.o_proj",
    "attn_out": "output of self_attn.o_proj",
    "attn_residual": "input of post_attention_layernorm",
    "ffn_norm": "output of post_attention_layernorm",
    "ffn_gate": "output of mlp.gate_proj",
    "ffn_up": "output of mlp.up_proj",
    "gate_up": "output of mlp.gate_up_proj as beside",
    "ffn_act": "input of mlp.down_proj",
    "ffn_out": "output of mlp.down_proj",
}
HEADS_FIRST = "as batch head token head_dim"
GEMMA3 = {
    **LLAMA,
    "q_norm": f"output of self_attn.q_norm {HEADS_FIRST}",
    "k_norm": f"output of self_attn.k_norm {HEADS_FIRST.replace('head token', 'kv_head token')}",
    "attn_post_norm": "output of post_attention_layernorm",
    "attn_residual": "input of pre_feedforward_layernorm",
    "ffn_norm": "output of pre_feedforward_layernorm",
    "ffn_post_norm": "output of post_feedforward_layernorm",
}
OLMO2 = {
    **{tap: place for tap, place in LLAMA.items() if tap not in ("attn_norm", "ffn_norm")},
    "attn_post_norm": "output of post_attention_layernorm",
    "attn_residual": "input of mlp",
    "ffn_post_norm": "output of post_feedforward_layernorm",
}
EXAONE4 = {**OLMO2, **{tap: GEMMA3[tap] for tap in ("q_norm", "k_norm")}}
BITNET = {
    **LLAMA,
    "attn_context": "input of self_attn.attn_sub_norm",
    "attn_sub_norm": "output of self_attn.attn_sub_norm",
    "ffn_act": "input of mlp.ffn_sub_norm",
    "ffn_sub_norm": "output of mlp.ffn_sub_norm",
}
GPT2 = {
    "attn_norm": "output of ln_1",
    "qkv": "output of attn.c_attn as beside",
    "attn_weights": "second output of attn",
    "attn_context": "input of attn.c_proj",
    "attn_out": "output of attn.c_proj",
    "attn_residual": "input of ln_2",
    "ffn_norm": "output of ln_2",
    "ffn_up": "output of mlp.c_fc",
    "ffn_act": "input of mlp.c_proj",
    "ffn_out": "output of mlp.c_proj",
}
# By modules that a layer has to have for it to be of the family. The first that fits is taken.
FAMILIES = (
    (("self_attn.attn_sub_norm", "mlp.ffn_sub_norm"), BITNET),
    (("input_layernorm", "self_attn.o_proj", "pre_feedforward_layernorm", "post_feedforward_layernorm"), GEMMA3),
    (("input_layernorm", "self_attn.o_proj", "post_attention_layernorm", "mlp.down_proj"), LLAMA),
    (("self_attn.q_norm", "self_attn.o_proj", "post_attention_layernorm", "post_feedforward_layernorm"), OLMO2),
    (("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"), GPT2),
)


def known_map(model: Any) -> dict[str, str] | None:
    """The map of a model whose modules are named as in one of transformers' families, and which has no others."""
    path = decoder_layers(model)
    if path is None:
        return None
    block = model.get_submodule(path)[0]
    names = {name for name, _ in block.named_modules() if name}
    for needed, family in FAMILIES:
        if all(name in names for name in needed):
            if family is OLMO2 and norms_heads(block):
                family = EXAONE4
            relative = {tap: place for tap, place in family.items() if place.split(" of ")[1].split()[0] in names}
            return None if unplaced(block, relative) else whole_map(model, path, relative)
    return None


def norms_heads(block: Any) -> bool:
    """Whether queries are normalised head by head, after they were split into heads."""
    norm, projection = block.get_submodule("self_attn.q_norm"), block.get_submodule("self_attn.q_proj")
    return norm.weight.shape[0] != projection.weight.shape[0]


def whole_map(model: Any, path: str, relative: Mapping[str, str]) -> dict[str, str]:
    """The map of the whole model: the layers' own places, and what is outside of them."""
    places = {"embed": f"input of {path}.0"}
    places.update((tap, place.replace(" of ", f" of {path}.*.", 1)) for tap, place in relative.items())
    places["block_out"] = f"output of {path}.*"
    norm = final_norm(model, path)
    return {**places, "final_norm": f"output of {norm}"} if norm else places


def decoder_layers(model: Any) -> str | None:
    """The path of the list of decoder layers: the longest whose members have attention."""
    best: tuple[int, str] | None = None
    for name, module in model.named_modules():
        if type(module).__name__ != "ModuleList" or not len(module) or "vision" in name or "audio" in name:
            continue
        attends = any("attn" in child or "attention" in child for child, _ in module[0].named_children())
        if attends and (best is None or len(module) > best[0]):
            best = (len(module), name)
    return best[1] if best else None


def final_norm(model: Any, layers: str) -> str | None:
    """The path of the norm that stands beside the list of layers."""
    parent = layers.rpartition(".")[0]
    owner = model.get_submodule(parent)
    norms = [name for name, child in owner.named_children() if is_norm(name, child)]
    names = [name for name in norms if not re.search("emb|per_layer", name)]  # norms of embeddings, of all or of layers
    return f"{parent}.{names[-1]}".lstrip(".") if names else None


def is_norm(name: str, module: Any) -> bool:
    """Whether a module is a norm: by its name and its one-dimensional weight."""
    weight = getattr(module, "weight", None)
    named = re.search(r"norm|ln", name.lower()) or "Norm" in type(module).__name__
    return bool(named) and weight is not None and weight.ndim == 1


def with_weights(block: Any) -> Iterator[tuple[str, Any]]:
    """The modules of a layer that have weights of their own."""
    for name, module in block.named_modules():
        if name and any(True for _ in module.parameters(recurse=False)):
            yield name, module


def unplaced(block: Any, relative: Mapping[str, str]) -> list[str]:
    """The modules of a layer that compute something and are in no place of the map."""
    placed = {place.split(" of ")[1].split()[0] for place in relative.values()}
    # A LoRA layer or a quantized one is a linear layer whose weights are those of modules inside it.
    linear = tuple(f"{name}." for name in placed if is_linear(block.get_submodule(name)))
    return [name for name, _ in with_weights(block) if name not in placed and not name.startswith(linear)]


def is_linear(module: Any) -> bool:
    """Whether a module is a linear layer, of torch or of a library that replaces it (peft, hqq, bitsandbytes)."""
    return hasattr(module, "in_features") and hasattr(module, "out_features")
