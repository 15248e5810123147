"""Compares a wrong tap of our engine with a wrong module of torch, by the order in which a model computes both."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "dump"))
from dump_transformers import Port, Recorder, family_of, instrument, run_passes  # noqa: E402

LAYER = re.compile(r"\.(layers|h|blocks)\.(\d+)(?=\.|$)")
HOW = ("same place", "same operation", "next module")
# Taps that are recorded when their module ends, and the tap before which they are computed.
LATE = {
    **dict.fromkeys(("conv_in", "conv_out", "conv_act", "step_size", "recurrent_state"), "recurrent_out|conv_gated|recurrent_norm"),
    "recurrent_out": "recurrent_norm",
    **dict.fromkeys(("q_rope", "k_rope", "k_cache", "v_cache", "attn_scores", "attn_weights"), "attn_context"),
}
# Modules that do a step of a tap's operation, or have the same inputs and are wrong together with its module.
PARTS = (
    (r"embed", r"embed_tokens|embeddings"),
    (r"ffn_(gate|up)", r"gate_proj|up_proj|w1|w3"),  # some models compute the latter first
    (r"\w+_act", r"act_fn|activation_fn|activation|act|gelu_impl"),
    (r"router_logits|expert_weights|experts", r"gate|router"),
    (r"expert_(gate|up)", r"act_fn|experts"),
    (r"expert_\w+|routed_out", r"experts"),
)


class Value(NamedTuple):
    """A recorded tap, or the output of a module."""

    name: str
    layer: int | None
    is_tap: bool
    module: str | None = None  # that returns the tap


class OrderRecorder(Recorder):
    """Lists taps and outputs of modules in the order of execution."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.order: list[Value] = []

    def keep(self, tap: str, layer: int | None, value: torch.Tensor) -> None:
        super().keep(tap, layer, value)
        self.order.append(Value(tap, layer, True))

    def keep_port(self, tap: str, layer: int, port: Port, value: torch.Tensor) -> None:
        super().keep_port(tap, layer, port, value)
        if not port.is_input:
            self.order[-1] = self.order[-1]._replace(module=port.module)


def order_of(model: Any, tokens: list[int]) -> list[Value]:
    """Runs a model, and returns its taps and outputs of modules in the order of execution. The model is changed."""
    order: list[Value] = []
    modules = [(name, module) for name, module in model.named_modules() if name]
    handles = [module.register_forward_hook(lambda *_, name=name: order.append(output(name))) for name, module in modules]
    recorder = instrument(model, family_of(model.config), OrderRecorder)
    recorder.order = order
    next(run_passes(model, tokens, 0))
    for handle in handles:
        handle.remove()
    return [*in_time(order), *(Value(tap, None, True, "lm_head") for tap in ("logits", "last_logits", "argmax", "probs"))]


def in_time(order: list[Value]) -> list[Value]:
    """Moves taps that are recorded late to the place where they are computed."""
    moved = list(order)
    for value in order:
        readers = LATE.get(value.name, "") if value.is_tap else ""
        at = moved.index(value)
        first = next((at for at, other in enumerate(moved) if other.layer == value.layer and other.is_tap
                      and re.fullmatch(readers, other.name)), at)  # fmt: skip
        if first < at:
            while not moved[first - 1].is_tap:  # modules that read what the tap is
                first -= 1
            moved.insert(first, moved.pop(at))
    return moved


def output(path: str) -> Value:
    """Returns the output of a module, by its path with a star for the layer."""
    layer = LAYER.search(path)
    return Value(LAYER.sub(r".\1.*", path, count=1), int(layer[2]) if layer else None, False)


def agreement(native: dict[str, Any], other: dict[str, Any], order: list[Value]) -> str | None:
    """Returns how two results agree: same verdict without a site, same place, or neighbours; None if they differ."""
    if native["verdict"] != other["verdict"] or native["verdict"] == "error":
        return None
    if "tap" not in native and "tap" not in other:
        return "same verdict"
    if native.get("pass") != other.get("pass") or "tap" not in native or "tap" not in other:
        return None
    if native["tap"] in ("logits", "last_logits") and other["tap"] == "logits":
        return "same place"
    if "rope" in native["tap"] and other["tap"].endswith(("rotary_emb", "pos_emb")):
        return "same operation"  # angles are computed once for all layers
    if other["tap"].endswith("per_layer_projection_norm") and is_wrong(native, "layer_input"):
        return "same place"  # our engine lists this tap in the layers that read it
    taps = [at for at, value in enumerate(order) if value[:3] == (native["tap"], native["layer"], True)]
    modules = [at for at, value in enumerate(order) if value[:3] == (other["tap"], other["layer"], False)]
    found = {relation(order, tap, module) for tap in taps for module in modules} - {None}
    if found:
        return min(found, key=HOW.index)
    last = other["tap"].rpartition(".")[2]
    if native["layer"] == other["layer"]:
        for tap, parts in PARTS:
            if re.fullmatch(tap, native["tap"]) and re.fullmatch(parts, last):
                return "same operation"
    if native["tap"] == "block_out" and re.search(r"\.\*\.\w+$", other["tap"]) and native["layer"] == other["layer"]:
        return "same operation"  # a parallel block adds the outputs of its modules
    is_hidden = native["tap"] == "embed" and other["tap"].endswith("layernorm") and other["layer"] == 0
    return "next module" if is_hidden else None  # a norm hides a factor


def is_wrong(judged: dict[str, Any], tap: str) -> bool:
    """Returns true if values of a tap in the first layer are above their bound."""
    rows = [row for row in judged.get("results", ()) if (row["tap"], row["layer"], row["pass"]) == (tap, 0, 0)]
    return any((row["bound_ratio"] or 0) > 1 for row in rows)


def is_tied(native: dict[str, Any], other: dict[str, Any]) -> bool:
    """Returns true if torch could not judge values in the layer of our first wrong tap: rounding can decide a choice there."""
    why = [other.get("why", "")]
    if "tap" in native:
        place = (native["layer"], native["pass"])
        rows = [row for row in other.get("results", ()) if (row["layer"], row["pass"]) == place]
        why += [row["reason"] or "" for row in rows if row["verdict"] == "inconclusive"]
    return any("rounding can decide" in reason for reason in why)


def relation(order: list[Value], tap: int, module: int) -> str | None:
    """Returns how a tap and the output of a module in the order relate, if nothing that could be wrong is between them."""
    if is_of(order[tap], order[module]):
        return "same place"
    between = order[min(tap, module) + 1 : max(tap, module)]
    if module < tap:
        return None if any(value.is_tap for value in between) else "same operation"
    return "next module" if all(value.is_tap for value in between) else None


def is_of(tap: Value, module: Value) -> bool:
    """Returns true if a module returns a tap."""
    return tap.module is not None and tap.layer == module.layer and module.name.endswith(tap.module)


def ratio_there(native: dict[str, Any], other: dict[str, Any], order: list[Value]) -> float | None:
    """Returns torch's largest bound ratio at the module of our engine's first wrong tap, or at the next module."""
    at = next((at for at, value in enumerate(order) if value[:3] == (native.get("tap"), native.get("layer"), True)), None)
    if at is None:
        return None
    module = next((value for value in order if not value.is_tap and is_of(order[at], value)), None)
    module = module or next((value for value in order[at:] if not value.is_tap), None)
    if module is None:
        return None
    place = (module.name, module.layer, native["pass"])
    found = [row for row in other.get("results", ()) if (row["tap"], row["layer"], row["pass"]) == place]
    return max((row["bound_ratio"] for row in found if row["bound_ratio"] is not None), default=None)
