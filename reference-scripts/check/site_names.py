"""Compares a wrong tap of our engine with a wrong module of torch."""

from __future__ import annotations

import re
from typing import Any

# Taps that no module returns, and the last parts of modules whose results depend on them.
NEXT = {
    "embed": r"embed_tokens|wte|wpe|drop|input_layernorm|post_attention_layernorm",  # a norm hides a factor
    "q_rope": r"rotary_emb",
    "k_rope": r"rotary_emb",
    "ffn_act": r"act_fn|activation_fn|act",
    "attn_residual": r"self_attn|attn",
    "logits": r"lm_head|logits",
    "last_logits": r"lm_head|logits",
}
CACHED = ("q_rope", "k_rope", "k_cache", "v_cache", "attn_scores", "attn_weights")  # computed inside attention


def agreement(native: dict[str, Any], torch: dict[str, Any], places: dict[str, str]) -> str | None:
    """Returns how two results agree: both pass, the same place, or neighbours; None if they do not."""
    if native["verdict"] != torch["verdict"] or native["verdict"] == "error":
        return None
    if "tap" not in native and "tap" not in torch:
        return "same verdict"
    if native.get("pass") != torch.get("pass") or "tap" not in native or "tap" not in torch:
        return None
    tap, module = native["tap"], torch["tap"]
    place = place_of(tap, places)
    if place == module and native["layer"] == torch["layer"]:
        return "same place"
    last = module.rpartition(".")[2]
    if native["layer"] != torch["layer"] and not re.fullmatch(NEXT.get(tap, ""), last):
        return None
    if re.fullmatch(NEXT.get(tap, ""), last):
        return "same operation"
    if place is not None and (module.startswith(place + ".") or place.startswith(module + ".")):
        return "same operation"
    return "next module" if tap in CACHED and module == place_of("attn_context", places) else None


def place_of(tap: str, places: dict[str, str]) -> str | None:
    """Returns the path of a tap's module; a fused projection has the place of its parts."""
    fused = {"q": "qkv", "k": "qkv", "v": "qkv", "ffn_gate": "gate_up", "ffn_up": "gate_up"}
    place = places.get(tap) or places.get(fused.get(tap, ""))
    if place is None:
        return "lm_head" if tap in ("logits", "last_logits") else None
    return place.split(" of ")[1].split()[0]


def ratio_there(native: dict[str, Any], torch: dict[str, Any], places: dict[str, str]) -> float | None:
    """Returns torch's largest bound ratio at the module of our engine's first wrong tap."""
    if "tap" not in native:
        return None
    module = place_of(native["tap"], places)
    at = (module, native["layer"] if module and "*" in module else None, native["pass"])
    found = [row for row in torch.get("results", ()) if (row["tap"], row["layer"], row["pass"]) == at]
    return max((row["bound_ratio"] for row in found if row["bound_ratio"] is not None), default=None)
