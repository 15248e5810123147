"""Faults that are injected into a torch model in memory, chosen from what the model has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

Change = Callable[[Any], None]
FIRST = re.compile(r"\.(layers|h)\.0\.")


def faults_of(model: Any) -> dict[str, Change]:
    """Returns the faults that can be injected into a model, by name. Each one changes the model it is given."""
    return dict(found(model))


def found(model: Any) -> Iterator[tuple[str, Change]]:
    names = dict(model.named_modules())
    weights = {name: weight for name, weight in model.named_parameters() if "vision" not in name}
    yield "norm eps", scale_attributes(r"eps|variance_epsilon", 1000, r"norm|ln_")
    if any("inv_freq" in name for name, _ in model.named_buffers()):
        yield "rope_theta", double_theta
    yield "attention scale", scale_attributes(r"scaling", 0.9, r"attn")
    bias = next((name for name in weights if FIRST.search(name) and re.search(r"(q_proj|c_attn)\.bias$", name)), None)
    if bias:
        yield "missing bias", lambda model: model.get_parameter(bias).zero_()
    up = next(name for name in weights if FIRST.search(name) and re.search(r"(up_proj|c_fc)(\.weight)?$", name))
    yield "layers exchanged", lambda model: exchange(model, up, FIRST.sub(r".\1.1.", up))
    if getattr(model.config.get_text_config(), "sliding_window", None) and uses_window(model):
        yield "window off by one", add_to_window
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        yield "soft cap dropped", set_attributes("attn_logit_softcapping", None)
    if getattr(model.config.get_text_config(), "final_logit_softcapping", None):
        yield "logit soft cap dropped", drop_last_cap
    if "gate_up" in up:
        yield "gate and up exchanged", lambda model: exchange_halves(model.get_parameter(up))
    elif "c_fc" not in up:
        yield "gate and up exchanged", lambda model: exchange(model, up, up.replace("up_proj", "gate_proj"))
    yield "activation function", exchange_activation
    branch = branch_of(names)
    if any("residual_multiplier" in vars(module) for module in names.values()):
        yield "residual scale", set_attributes("residual_multiplier", 1.0)
    else:
        yield "residual scale", lambda model: multiply(model.get_submodule(branch), 0.9)
    yield "embedding scale", scale_embeddings
    yield "logit scale", lambda model: multiply(model.get_submodule("lm_head"), 1.1)
    yield "decoding position", shift_positions
    if any(hasattr(module, "norm_topk_prob") for module in names.values()):
        yield "expert weights normalised", flip("norm_topk_prob")
    experts = next((name for name in weights if FIRST.search(name) and name.endswith("experts.down_proj")), None)
    if experts:
        yield "experts exchanged", lambda model: exchange_rows(model.get_parameter(experts))


def modules_like(model: Any, pattern: str) -> Iterator[Any]:
    return (module for name, module in model.named_modules() if re.search(pattern, name.rpartition(".")[2]))


def scale_attributes(pattern: str, factor: float, modules: str) -> Change:
    def change(model: Any) -> None:
        count = 0
        for module in modules_like(model, modules):
            for name, value in list(vars(module).items()):
                if re.fullmatch(pattern, name) and isinstance(value, float):
                    setattr(module, name, value * factor)
                    count += 1
        assert count, pattern

    return change


def set_attributes(name: str, value: Any) -> Change:
    def change(model: Any) -> None:
        for module in model.modules():
            if name in vars(module):
                setattr(module, name, value)

    return change


def flip(name: str) -> Change:
    def change(model: Any) -> None:
        for module in model.modules():
            if name in vars(module):
                setattr(module, name, not getattr(module, name))

    return change


def double_theta(model: Any) -> None:
    """Gives RoPE the frequencies of a base that is twice as large."""
    stated = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    if stated.get("rope_type") == "longrope":  # the model computes its frequencies in each pass
        stated["rope_theta"] *= 2
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq"):
            share = torch.arange(buffer.numel(), dtype=torch.float32) / buffer.numel()
            buffer.mul_(2.0**-share)


def uses_window(model: Any) -> bool:
    kinds = getattr(model.config.get_text_config(), "layer_types", None)
    return kinds is None or "sliding_attention" in kinds


def add_to_window(model: Any) -> None:
    model.config.get_text_config().sliding_window += 1
    set_attributes("sliding_window", model.config.get_text_config().sliding_window)(model)


def drop_last_cap(model: Any) -> None:
    model.config.get_text_config().final_logit_softcapping = None


def exchange(model: Any, one: str, two: str) -> None:
    first, second = model.get_parameter(one), model.get_parameter(two)
    kept = first.clone()
    first.copy_(second)
    second.copy_(kept)


def exchange_halves(weight: torch.Tensor) -> None:
    axis = 1 if weight.dim() == 3 else 0
    one, two = weight.clone().chunk(2, axis)
    weight.copy_(torch.cat([two, one], axis))


def exchange_rows(weight: torch.Tensor) -> None:
    weight[:2] = weight[:2].flip(0)


def exchange_activation(model: Any) -> None:
    """Puts GELU in place of SiLU, and SiLU in place of another function."""
    for module in model.modules():
        for name in ("act_fn", "activation_fn", "act"):
            old = getattr(module, name, None)
            if isinstance(old, torch.nn.Module):
                setattr(module, name, torch.nn.GELU() if "SiLU" in type(old).__name__ else torch.nn.SiLU())


def branch_of(names: dict[str, Any]) -> str:
    """Returns the path of the module whose output is added to the residual stream after attention, in layer 0."""
    layer = next(name for name in names if re.search(r"\.(layers|h)\.0$", name) and "vision" not in name)
    has_post_norm = f"{layer}.post_feedforward_layernorm" in names
    if has_post_norm:
        return f"{layer}.post_attention_layernorm"
    return f"{layer}.self_attn" if f"{layer}.self_attn" in names else f"{layer}.attn"


def multiply(module: Any, factor: float) -> None:
    """Multiplies the output of a module."""

    def hook(_: Any, __: Any, output: Any) -> Any:
        return output * factor if isinstance(output, torch.Tensor) else (output[0] * factor, *output[1:])

    module.register_forward_hook(hook)


def scale_embeddings(model: Any) -> None:
    for module in model.modules():
        if "embedding_multiplier" in vars(module):
            module.embedding_multiplier *= 1.1
            return
    multiply(model.get_input_embeddings(), 1.1)


def shift_positions(model: Any) -> None:
    """Shifts the positions of single tokens by one, where they are turned into angles or embeddings."""

    def moved(value: Any) -> Any:
        is_position = isinstance(value, torch.Tensor) and not value.is_floating_point() and value.shape[-1] == 1
        return value + 1 if is_position else value

    def hook(module: Any, args: Any, kwargs: Any, _: Any) -> Any:
        return module.forward(*map(moved, args), **{name: moved(value) for name, value in kwargs.items()})

    for name, module in model.named_modules():
        if re.search(r"(^|\.)(rotary_emb|wpe)$", name):
            module.register_forward_hook(hook, with_kwargs=True)
