"""Modules of a model: their layers, their kinds and their order of execution."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch

LAYER = re.compile(r"^(.*?\b(?:layers|h|blocks|layer|block)\.\d+)(?:\.(.*))?$")
LAYER_NUMBER = re.compile(r"\.\d+(?=\.|$)")
ATTENTION = re.compile(r"attn|attention|mixer|mamba|conv|delta|ssm|mla|recurrent|temporal|rwkv|lstm|time_mix", re.I)
NORM = re.compile(r"norm|ln_|layernorm|_ln", re.I)
ROTARY = re.compile(r"rotary|rope", re.I)


def layer_of(path: str) -> tuple[str, str] | None:
    """Returns the path of the decoder layer and the path within the layer."""
    found = LAYER.match(path)
    return None if found is None else (found.group(1), found.group(2) or "")


def layers(model: Any) -> list[str]:
    """Returns the paths of all layers."""
    paths: dict[str, None] = {}
    for name, _ in model.named_modules():
        found = layer_of(name)
        if found is not None and found[1] == "":
            paths[name] = None
    return list(paths)


def executed(model: Any, tokens: list[int], inputs: dict[str, torch.Tensor]) -> list[str]:
    """Returns the paths of the modules that a short run calls, in the order in which they finish.

    If the run fails, these are all modules in the order of definition.
    """
    order: dict[str, None] = {}
    handles = [
        module.register_forward_hook(lambda _m, _i, _o, name=name: order.setdefault(name))
        for name, module in model.named_modules()
    ]
    try:
        with torch.no_grad():
            call(model, tokens if inputs else tokens[:8], inputs)
    except Exception:
        return [name for name, _ in model.named_modules()]
    finally:
        for handle in handles:
            handle.remove()
    return list(order)


def call(model: Any, tokens: list[int], inputs: dict[str, torch.Tensor], **options: Any) -> Any:
    """Calls a model with tokens, other arrays, and those options that its class accepts."""
    accepted = inspect.signature(model.forward).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    given = {name: value for name, value in {"use_cache": False, **options}.items() if name in accepted}
    if open_ended and "use_cache" not in given:
        given["use_cache"] = options.get("use_cache", False)
    inputs = nested(inputs)
    if tokens and "input" in accepted and "input_ids" not in accepted and "input" not in inputs:
        ids = torch.tensor([tokens])
        given["input"] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    elif tokens and "input_ids" not in inputs:
        given["input_ids"] = torch.tensor([tokens])
    return model(**inputs, **given)


def nested(inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Returns arguments with dictionaries in place of dotted names: `input.input_ids` is a value of `input`."""
    found: dict[str, Any] = {}
    for name, value in inputs.items():
        *outer, last = name.split(".")
        place = found
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
    return found


def described(model: Any, tokens: list[int], inputs: dict[str, torch.Tensor]) -> list[dict[str, str]]:
    """Returns path and class of each module, in the order of execution."""
    classes = {name: type(module).__name__ for name, module in model.named_modules()}
    return [{"path": path, "class": classes[path]} for path in executed(model, tokens, inputs) if path]
