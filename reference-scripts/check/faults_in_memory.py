"""Faults that are injected into a torch model in memory, chosen from what the model has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

Change = Callable[[Any], None]
EPS, NORMS = r"eps|variance_epsilon", r"norm|ln_"
SCALING = r"scaling|inv_norm_factor|scale_attn"
FACTOR = r"routed_scaling_factor"
CORRECTION = re.compile(r"(e_score_correction_bias|expert_bias)$")
POSITIONS = re.compile(r"(^|\.)(rotary_emb|pos_emb|wpe|embed_positions)$")
LAYER = re.compile(r"\.(layers|h|blocks)\.(\d+)\.")
# The projection into the feed-forward block, or into a state-space layer where no two layers have the former.
INTO = (r"(\.|_)(up_proj|c_fc|fc_in|fc1|dense_h_to_4h|input_linear|w3)(\.weight)?$", r"\.in_proj\.weight$")
FUSED = ("gate_up", "input_linear")
BIAS = r"(q_proj|c_attn|query_key_value)\.bias$"
ATTENTION = r"attn|attention|mixer"


def faults_of(model: Any) -> dict[str, Change]:
    """Returns the faults that can be injected into a model, by name. Each one changes the model it is given."""
    groups = (norms_and_positions(model), weights_of(model), state_space(model), scales(model), experts_of(model))
    return {name: change for group in groups for name, change in group}


def norms_and_positions(model: Any) -> Iterator[tuple[str, Change]]:
    text = model.config.get_text_config()
    if has_attributes(model, EPS, NORMS):
        yield "norm eps", scale_attributes(EPS, 1000, NORMS)
    if any("inv_freq" in name for name, _ in model.named_buffers()):
        yield "rope_theta", double_theta
    if has_attributes(model, SCALING, ATTENTION):
        yield "attention scale", scale_attributes(SCALING, 0.9, ATTENTION)
    if getattr(text, "sliding_window", None) and uses_window(model):
        yield "window off by one", add_to_window
    if getattr(text, "attn_logit_softcapping", None):
        yield "soft cap dropped", set_attributes("attn_logit_softcapping", None)
    if getattr(text, "final_logit_softcapping", None):
        yield "logit soft cap dropped", drop_last_cap
    if any(POSITIONS.search(name) for name, _ in model.named_modules()):
        yield "decoding position", shift_positions


def weights_of(model: Any) -> Iterator[tuple[str, Change]]:
    """Yields biases that are missing, and weights that are exchanged."""
    weights = {name: weight for name, weight in model.named_parameters() if "vision" not in name}
    bias = next((name for name in weights if LAYER.search(name) and re.search(BIAS, name)), None)
    if bias:
        yield "missing bias", lambda model: model.get_parameter(bias).zero_()
    pair = next(filter(None, (twins(weights, pattern) for pattern in INTO)), None)
    if pair:
        yield "layers exchanged", lambda model: exchange(model, *pair)
    into = next((name for name in weights if LAYER.search(name) and re.search(INTO[0], name)), "")
    gate = into.replace("up_proj", "gate_proj").replace("w3", "w1")
    if any(word in into for word in FUSED):
        yield "gate and up exchanged", lambda model: exchange_halves(model.get_parameter(into))
    elif gate != into and gate in weights:
        yield "gate and up exchanged", lambda model: exchange(model, into, gate)
    sinks = next((name for name in weights if name.endswith(".sinks")), None)
    if sinks:
        yield "sinks of 0", lambda model: model.get_parameter(sinks).zero_()


def state_space(model: Any) -> Iterator[tuple[str, Change]]:
    """Yields wrong kernels and decays of layers without attention."""
    weights = dict(model.named_parameters())
    kernel = next((name for name, weight in weights.items() if "conv" in name and LAYER.search(name) and weight.dim() == 3), None)
    if kernel:
        yield "kernels reversed", lambda model: model.get_parameter(kernel).copy_(model.get_parameter(kernel).flip(-1))
    decay = next((name for name in weights if name.endswith(".A_log")), None)
    if decay:
        yield "decay", lambda model: model.get_parameter(decay).mul_(0.9)
    steps = next((name for name in weights if name.endswith(".dt_bias")), None)
    if steps:
        yield "no bias of steps", lambda model: model.get_parameter(steps).zero_()


def scales(model: Any) -> Iterator[tuple[str, Change]]:
    """Yields activation functions that are exchanged, and values that are multiplied."""
    if any(True for _ in activations(model)):
        yield "activation function", exchange_activation
    if any("residual_multiplier" in vars(module) for module in model.modules()):
        yield "residual scale", set_attributes("residual_multiplier", 1.0)
    else:
        branch = branch_of(dict(model.named_modules()))
        yield "residual scale", lambda model: multiply(model.get_submodule(branch), 0.9)
    yield "embedding scale", scale_embeddings
    yield "logit scale", lambda model: multiply(model.get_output_embeddings(), 1.1)


def experts_of(model: Any) -> Iterator[tuple[str, Change]]:
    """Yields wrong weights of experts, and experts that are exchanged."""
    if any("norm_topk_prob" in vars(module) for module in model.modules()):
        yield "expert weights normalised", flip("norm_topk_prob")
    if has_attributes(model, FACTOR, ""):
        yield "factor of experts", scale_attributes(FACTOR, 0.9, "")
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    bias = next((name for name, value in tensors.items() if CORRECTION.search(name) and value.any()), None)
    if bias:
        yield "no correction bias", lambda model: tensor_of(model, bias).zero_()
    experts = next((name for name in tensors if name.endswith(("experts.down_proj", "output_linear.weight"))
                    and tensors[name].dim() == 3), None)  # fmt: skip
    if experts:
        yield "experts exchanged", lambda model: exchange_rows(model.get_parameter(experts))


def twins(weights: dict[str, Any], pattern: str) -> tuple[str, str] | None:
    """Returns the first weight with a name like this, and the same weight of the next layer that has it."""
    found = [name for name in weights if LAYER.search(name) and re.search(pattern, name)]
    for name in found:
        same = [other for other in found if LAYER.sub(".*.", other) == LAYER.sub(".*.", name) and other != name]
        if same and weights[same[0]].shape == weights[name].shape:
            return name, same[0]
    return None


def tensor_of(model: Any, name: str) -> torch.Tensor:
    """Returns a parameter or a buffer."""
    module, _, last = name.rpartition(".")
    return getattr(model.get_submodule(module), last)


def has_attributes(model: Any, pattern: str, modules: str) -> bool:
    """Returns true if modules of these names have such an attribute that is a float."""
    return any(
        re.fullmatch(pattern, name) and isinstance(value, float)
        for module in modules_like(model, modules)
        for name, value in vars(module).items()
    )


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
    vars(model.config.get_text_config())["final_logit_softcapping"] = None  # some configs refuse the assignment


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


def activations(model: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yields the activation functions that are modules, with the modules that have them."""
    for module in model.modules():
        for name in ("act_fn", "activation_fn", "activation", "act", "gelu_impl"):
            function = getattr(module, name, None)
            if isinstance(function, torch.nn.Module):
                yield module, name, function


def exchange_activation(model: Any) -> None:
    """Puts GELU in place of SiLU, and SiLU in place of another function."""
    for module, name, old in list(activations(model)):
        setattr(module, name, torch.nn.GELU() if "SiLU" in type(old).__name__ else torch.nn.SiLU())


def branch_of(names: dict[str, Any]) -> str:
    """Returns the path of the module whose output is added to the residual stream first, in layer 0."""
    layer = next(name for name in names if re.search(r"\.(layers|h|blocks)\.0$", name) and "vision" not in name)
    if f"{layer}.post_feedforward_layernorm" in names:
        return f"{layer}.post_attention_layernorm"
    branches = ("post_self_attn_layernorm", "self_attn", "attn", "attention", "self_attention", "linear_attn", "mamba")
    return next(path for path in (f"{layer}.{branch}" for branch in (*branches, "mixer", "conv")) if path in names)


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
        if POSITIONS.search(name):
            module.register_forward_hook(hook, with_kwargs=True)
