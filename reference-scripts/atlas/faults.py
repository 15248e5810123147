"""Injects faults into a model: weights, constants, config keys, operations and positions, chosen from what the model has.

Every fault knows what a judge should name. `affected` computes where it shows: the modules whose result changes in f64
when the correct model is given the faulty run's module outputs.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from recorder import Run, Site, run
from torch import nn

LAYER = re.compile(r"\.(\d+)\.")
EPS = re.compile(r"eps(ilon)?$")
NO_CONSTANT = re.compile(r"drop|^p$|^training$|jitter|init|loss|momentum|^_")
NO_KEY = re.compile(
    r"token_id|drop|init|vocab|version|architectures|dtype|label|use_cache|tie_|output_|return_dict|loss|jitter|torch|"
    r"is_(decoder|encoder)|pruned|problem|chunk_size_feed|max_position|model_max|pretraining|add_cross|finetuning|"
    r"(hidden|intermediate|embedding|ffn)_(size|dim)$|num_(hidden_)?layers|^n_layers?$|transformers|_attn_impl"
)
# Integer keys that are no sizes of weights.
INT_KEY = re.compile(r"window|chunk|per_tok|top_?k|group|shared_layers|step$|interval|^moe_k$|floor|theta|span|stride")


class Fault(NamedTuple):
    """One fault: `make` returns the faulty copy of a model."""

    name: str
    kind: (
        str  # constant, config, weight, operation, input; scale: a small change of weights, which has no cause to name
    )
    target: str  # the config key, attribute, parameter or module a judge should name
    expected: str
    found: str
    make: Callable[[Any], Any]


def faults_of(model: Any, seed: int) -> list[Fault]:
    """Lists faults of every kind in turn, in a seeded order."""
    shuffle = random.Random(seed)
    groups = [
        list(kind(model)) for kind in (config_faults, weight_faults, operation_faults, constant_faults, slice_faults)
    ]
    groups.append(list(position_faults(model)))
    for group in groups:
        shuffle.shuffle(group)
    groups += [groups[0][1::2]]  # two config keys in each turn
    groups[0] = groups[0][::2]
    return [fault for row in zip_longest(*groups) for fault in row if fault is not None]


def affected(model64: Any, faulty: Run) -> list[tuple[Site, float]]:
    """Lists the sites that a fault changes, in order of execution, each with its largest change relative to a value and its row's RMS."""
    replay = run(model64, faulty.given, 0, faulty.values).values
    changes = []
    for site, exact in replay.items():
        value = faulty.values.get(site)
        if value is None or value.shape != exact.shape or not exact.is_floating_point() or torch.equal(value, exact):
            continue
        scale = exact.square().mean(-1, keepdim=True).sqrt() if exact.dim() else exact.abs()
        change = (value - exact).abs() / (scale + exact.abs()).clamp_min(1e-300)
        changes.append((site, float(change.max())))
    return changes


def edit(change: Callable[[Any], None]) -> Callable[[Any], Any]:
    """Makes a copy of the model and changes it."""

    def make(model: Any) -> Any:
        faulty = copy.deepcopy(model)
        with torch.no_grad():
            change(faulty)
        return faulty

    return make


# --- config keys ---


def config_faults(model: Any) -> Iterator[Fault]:
    """Yields one fault for each config key that can be read wrongly without changing a weight's shape."""
    whole = model.config
    inner = whole.get_text_config()
    defaults = type(inner)().to_dict()
    for path, value in leaves(inner.to_dict()):
        if NO_KEY.search(path[-1] if len(path) == 1 else path[0]):
            continue
        wrong = wrong_value(path, value, defaults)
        if wrong is None:
            continue
        key = ".".join(str(part) for part in path)
        yield Fault(f"config {key} {short(value)} -> {short(wrong)}", "config", key, short(value), short(wrong),
                    lambda model, path=path, wrong=wrong: rebuilt(model, path, wrong))  # fmt: skip


def leaves(config: dict[str, Any], above: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for key, value in config.items():
        if isinstance(value, dict) and "config" not in str(key):
            yield from leaves(value, (*above, key))
        elif isinstance(value, (bool, int, float, str, list)):
            yield (*above, key), value


def wrong_value(path: tuple[Any, ...], value: Any, defaults: dict[str, Any]) -> Any:
    """Returns the class default if it differs from the value (the key was not read), else a near wrong value."""
    default: Any = defaults
    for part in path:
        default = default.get(part) if isinstance(default, dict) else None
    key = str(path[-1])
    if isinstance(value, str):
        return {"silu": "gelu", "gelu": "gelu_pytorch_tanh", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu", "relu": "gelu",
                "relu2": "relu", "gelu_fast": "gelu", "xielu": None}.get(value)  # fmt: skip
    if isinstance(value, bool):
        return not value
    if (
        default is not None
        and default != value
        and isinstance(default, type(value))
        and not isinstance(value, (list, str))
    ):
        if not isinstance(value, int) or INT_KEY.search(key):
            return default
    if isinstance(value, list):
        if value and all(isinstance(item, str) for item in value) and len(set(value)) > 1:
            return value[1:] + value[:1]
        return [value[0] * 0.9, *value[1:]] if value and isinstance(value[0], float) else None
    if isinstance(value, int):
        return value + 1 if INT_KEY.search(key) else None
    if isinstance(value, float):
        return value * 10 if EPS.search(key) else value * 1.1 or 0.1
    return None


def rebuilt(model: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    """Builds the model from a changed config, with the same weights; raises if their shapes differ."""
    config = copy.deepcopy(model.config)
    inner = config.get_text_config()
    if len(path) == 1:
        setattr(inner, path[0], wrong)
    else:
        values = copy.deepcopy(getattr(inner, path[0]))
        place = values
        for part in path[1:-1]:
            place = place[part]
        place[path[-1]] = wrong
        setattr(inner, path[0], values)
    attention = model.config._attn_implementation
    faulty = type(model)._from_config(config, dtype=model.dtype, attn_implementation=attention)
    for weight, like in zip(faulty.parameters(), model.parameters()):  # some modules keep f32
        weight.data = weight.data.to(like.dtype)
    faulty.load_state_dict(model.state_dict(), strict=True)
    return faulty.eval()


# --- constants: attributes of modules that are numbers ---


def constant_faults(model: Any) -> Iterator[Fault]:
    """Yields one fault for each numeric attribute of each class of module."""
    seen = set()
    for _, module in model.named_modules():
        for attribute, value in vars(module).items():
            which = (type(module), attribute, value) if isinstance(value, float) else None
            if which is None or which in seen or NO_CONSTANT.search(attribute) or value in (0.0, float("inf")):
                continue
            seen.add(which)
            wrong = value * (10 if EPS.search(attribute) else 0.9)
            name = f"{type(module).__name__}.{attribute} {value:g} -> {wrong:g}"
            yield Fault(name, "constant", attribute, f"{value:.9g}", f"{wrong:.9g}", edit(set_everywhere(which, wrong)))


def set_everywhere(which: tuple[Any, str, float], wrong: float) -> Callable[[Any], None]:
    cls, attribute, value = which

    def change(model: Any) -> None:
        for module in model.modules():
            if type(module) is cls and vars(module).get(attribute) == value:
                setattr(module, attribute, wrong)

    return change


# --- weights ---


def parameters_by_kind(model: Any) -> dict[str, list[str]]:
    """Groups the names of weights that differ in the layer only."""
    kinds: dict[str, list[str]] = {}
    for name, weight in model.state_dict().items():
        if weight.is_floating_point() and weight.numel() > 1:
            kinds.setdefault(LAYER.sub(".*.", name, count=1), []).append(name)
    return kinds


def weight_faults(model: Any) -> Iterator[Fault]:
    """Yields weights that are zero, exchanged with another layer's, with a sibling's, or between experts."""
    state = model.state_dict()
    for kind, names in parameters_by_kind(model).items():
        name = names[len(names) // 2]
        last = name.rsplit(".", 1)[-1]
        if "bias" in last or last in ("sinks", "D", "layer_scalar"):
            yield weight_fault(f"{name} missing", name, lambda w: w.zero_())
        same = [other for other in names if other != name and state[other].shape == state[name].shape]
        if same and "*" in kind:
            yield exchange_fault(name, same[-1])
        for one, two in (
            ("q_proj", "k_proj"),
            ("gate_proj", "up_proj"),
            ("w1", "w3"),
            ("query", "key"),
            ("q_norm", "k_norm"),
        ):
            other = re.sub(rf"\b{one}\b", two, name)
            if other != name and other in state and state[other].shape == state[name].shape:
                yield exchange_fault(name, other)
        if "conv" in name and state[name].dim() == 3:
            yield weight_fault(f"{name} flipped", name, lambda w: w.copy_(w.flip(-1)))
        if "gate_up" in name and state[name].dim() >= 2:
            yield weight_fault(f"{name} halves exchanged", name, exchange_halves)
        if "experts" in name and state[name].dim() == 3:
            yield weight_fault(f"{name} experts 0 and 1 exchanged", name, exchange_rows)


def exchange_halves(weight: torch.Tensor) -> None:
    axis = max(range(weight.dim()), key=lambda i: weight.shape[i]) if weight.dim() == 3 else 0
    one, two = weight.chunk(2, axis)
    weight.copy_(torch.cat([two, one], axis))


def exchange_rows(weight: torch.Tensor) -> None:
    weight[:2] = weight[:2].flip(0)


def weight_fault(name: str, weight: str, change: Callable[[torch.Tensor], Any]) -> Fault:
    return Fault(name, "weight", weight, "as in the checkpoint", name.removeprefix(weight).strip(),
                 edit(lambda model: change(model.state_dict()[weight])))  # fmt: skip


def exchange_fault(one: str, two: str) -> Fault:
    def change(model: Any) -> None:
        state = model.state_dict()
        kept = state[one].clone()
        state[one].copy_(state[two])
        state[two].copy_(kept)

    return Fault(f"{one} exchanged with {two}", "weight", one, one, two, edit(change))


def slice_faults(model: Any) -> Iterator[Fault]:
    """Yields weights of which one quarter (one head of four) is larger by a thousandth."""

    def scale(weight: torch.Tensor) -> None:
        count = max(weight.shape[0] // 4, 1)
        weight[:count] = weight[:count] * 1.001

    for names in parameters_by_kind(model).values():
        yield weight_fault(f"{names[-1]} first quarter x 1.001", names[-1], scale)._replace(kind="scale")


# --- operations ---


def operation_faults(model: Any) -> Iterator[Fault]:
    """Yields operations left out: a norm, a residual, the shared expert, an activation function exchanged."""
    seen = set()
    for name, module in model.named_modules():
        kind, cls = LAYER.sub(".*.", name, count=1), type(module).__name__
        if kind in seen or not name:
            continue
        seen.add(kind)
        if "norm" in cls.lower() and not list(module.children()):
            yield operation_fault(f"{name} skipped", name, skip)
        if re.search(r"shared_(expert|mlp)s?$", name):
            yield operation_fault(f"{name} not added", name, discard)
        if cls.endswith(("DecoderLayer", "Block")) and re.search(r"\.\d+$", name):
            yield operation_fault(f"{name} without residual", name, without_input)
        if re.search(r"act(ivation)?(_fn)?$", name) and not list(module.parameters()):
            yield operation_fault(f"{name} replaced by the identity", name, skip)


def operation_fault(name: str, module: str, change: Callable[[nn.Module], Any]) -> Fault:
    return Fault(name, "operation", module, "computed", "left out",
                 edit(lambda model: change(model.get_submodule(module))))  # fmt: skip


def skip(module: nn.Module) -> None:
    def first(args: Any, kwargs: Any) -> Any:
        return args[0] if args else next(iter(kwargs.values()))

    module.register_forward_hook(
        lambda _, args, kwargs, output: first(args, kwargs) if isinstance(output, torch.Tensor) else None,
        with_kwargs=True,
    )


def discard(module: nn.Module) -> None:
    """Records the module's output as computed, and continues with zeros."""
    module.continue_with = torch.zeros_like  # type: ignore[assignment]


def without_input(layer: nn.Module) -> None:
    """Lets a layer return what its last module computes, without the residual stream."""
    last: list[torch.Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        value = output if isinstance(output, torch.Tensor) else output[0]
        last[:] = [value]

    def hook(_: Any, __: Any, output: Any) -> Any:
        value = output if isinstance(output, torch.Tensor) else output[0]
        if not last or last[0].shape != value.shape:
            return None
        return last[0] if isinstance(output, torch.Tensor) else (last[0], *output[1:])

    for child in layer.children():
        if not isinstance(child, nn.ModuleList):
            child.register_forward_hook(keep)
    layer.register_forward_hook(hook)


# --- positions ---


def position_faults(model: Any) -> Iterator[Fault]:
    """Yields the positions of decoding steps shifted by one, at the first module that is given them."""
    name = next(
        (n for n, _ in model.named_modules() if re.search(r"(rotary_emb|wpe|embed_positions|position_embeddings)$", n)),
        None,
    )
    if name is not None:
        yield Fault("positions after the prompt + 1", "input", name, "position", "position + 1",
                    edit(lambda model: shift(model.get_submodule(name))))  # fmt: skip


def shift(module: nn.Module) -> None:
    def moved(value: Any) -> Any:
        is_position = isinstance(value, torch.Tensor) and not value.is_floating_point() and value.shape[-1] == 1
        return value + 1 if is_position else value

    module.register_forward_pre_hook(
        lambda _, args, kwargs: (tuple(map(moved, args)), {k: moved(v) for k, v in kwargs.items()}), with_kwargs=True
    )


def short(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)[:80]
