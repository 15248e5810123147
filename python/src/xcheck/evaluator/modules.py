"""Modules of a model: their order of execution and the checkpoint that each belongs to."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch

LAYER = re.compile(r"^(.*?\b(?:layers|h|blocks|layer|block)\.\d+)(?:\.(.*))?$")
ATTENTION = re.compile(r"attn|attention|mixer|mamba|conv|delta|ssm|mla|recurrent|temporal|rwkv|lstm|time_mix", re.I)
NORM = re.compile(r"norm|ln_|layernorm|_ln", re.I)
PROJECTION_OUT = re.compile(r"(^|\.)(o_proj|out_proj|c_proj|dense|wo|out_lin|out|output|proj)(\.|$)", re.I)
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
    """Returns the paths of all modules in the order in which they finish, found by a short run."""
    order: dict[str, None] = {}
    handles = [
        module.register_forward_hook(lambda _m, _i, _o, name=name: order.setdefault(name))
        for name, module in model.named_modules()
    ]
    try:
        with torch.no_grad():
            call(model, tokens if inputs else tokens[:8], inputs)
    except Exception:
        pass  # the order of definition is the next best
    finally:
        for handle in handles:
            handle.remove()
    for name, _ in model.named_modules():
        order.setdefault(name)
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
    """Returns path, class and checkpoint of each module."""
    order = executed(model, tokens, inputs)
    classes = {name: type(module).__name__ for name, module in model.named_modules()}
    checkpoints = assigned(order, classes)
    return [{"path": path, "class": classes[path], "checkpoint": checkpoints[path]} for path in order if path]


def assigned(order: list[str], classes: dict[str, str]) -> dict[str, str]:
    """Returns the checkpoint of each module by its place in the layer."""
    result: dict[str, str] = {}
    inside = [at for at, path in enumerate(order) if layer_of(path)]
    first, last = (inside[0], inside[-1]) if inside else (len(order), len(order))
    members: dict[str, list[str]] = {}
    for at, path in enumerate(order):
        found = layer_of(path)
        if found is None:
            outside = "rope" if ROTARY.search(classes[path]) else "input" if at < first else "logits"
            result[path] = outside if at <= last or outside == "logits" or ROTARY.search(classes[path]) else "logits"
        else:
            members.setdefault(found[0], []).append(path)
    for layer, paths in members.items():
        result.update(within_layer(layer, paths, classes))
    return result


def within_layer(layer: str, paths: list[str], classes: dict[str, str]) -> dict[str, str]:
    """Returns the checkpoints of one layer's modules."""
    children = {path: path[len(layer) + 1 :].split(".")[0] for path in paths if path != layer}
    mixers = [path for path in paths if path != layer and is_mixer(path, layer, classes)]
    mixed = max((paths.index(path) for path in mixers), default=-1)
    later = [at for at, path in enumerate(paths) if at > mixed and path != layer and not is_norm(path, classes)]
    fed = later[0] if later else len(paths)
    result = {}
    for at, path in enumerate(paths):
        inside = path[len(layer) + 1 :]
        if path == layer:
            result[path] = "block_out"
        elif any(path.startswith(mixer + ".") for mixer in mixers):
            result[path] = within_mixer(inside, classes[path])
        elif path in mixers:
            result[path] = "attn_out"
        elif is_norm(path, classes) and at < mixed:
            result[path] = "norm"
        elif is_norm(path, classes) and mixed < at < fed and ffn_norms(paths, mixed, fed, classes) > 1:
            result[path] = "attn_out" if at == mixed + 1 else "ffn_out"
        else:
            result[path] = "ffn_out" if at > mixed or mixed < 0 else "norm" if ROTARY.search(inside) is None else "rope"
        del inside
    del children
    return result


def ffn_norms(paths: list[str], mixed: int, fed: int, classes: dict[str, str]) -> int:
    return sum(is_norm(path, classes) for path in paths[mixed + 1 : fed])


def is_norm(path: str, classes: dict[str, str]) -> bool:
    return bool(NORM.search(classes[path]))


def is_mixer(path: str, layer: str, classes: dict[str, str]) -> bool:
    """Returns true for the outermost module of a layer that mixes tokens."""
    rest = path[len(layer) + 1 :]
    return "." not in rest and bool(ATTENTION.search(classes[path])) and not is_norm(path, classes)


def within_mixer(inside: str, class_name: str) -> str:
    if ROTARY.search(class_name):
        return "rope"
    last = inside.rsplit(".", 1)[-1]
    return "attn_out" if PROJECTION_OUT.search(last) else "qkv"
