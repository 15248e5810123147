"""Wrong weights: another layer's, a sibling's, rearranged, or left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..model import mark_computed_buffers
from ..modules import layer_of
from ..rounding import as_tracked
from ..ties import is_within
from ..tracked import Tracked, fresh
from .change import WEIGHT, Change, Run
from .keys import explains
from .trial import Trial, ancestors

FEW = 8  # experts of which two may be exchanged
KERNEL = 16  # longest convolution


@contextmanager
def exchanged(table: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """Puts another value in a table, and the old one back."""
    old = table[name]
    table[name] = value
    try:
        yield
    finally:
        table[name] = old


@dataclass
class WeightChange(Change):
    """Another value of a parameter."""

    module: str = ""
    name: str = ""
    value: Any = None

    @contextmanager
    def installed(self, run: Run) -> Iterator[None]:
        value = torch.nn.Parameter(self.value.detach(), requires_grad=False)
        with exchanged(run.model.get_submodule(self.module)._parameters, self.name, value):
            yield


@dataclass
class RoundedBuffer(Change):
    """A computed constant, such as the frequencies of a rotation, rounded to a shorter type."""

    module: str = ""
    name: str = ""
    dtype: Any = None

    @contextmanager
    def installed(self, run: Run) -> Iterator[None]:
        buffers = run.model.get_submodule(self.module)._buffers
        old = buffers[self.name]
        with _disable_current_modes():
            value = fresh(as_tracked(old).exact.to(self.dtype).double(), old.dtype)
        with exchanged(buffers, self.name, value):
            yield


def own_modules(trial: Trial) -> Iterator[tuple[str, Any]]:
    """Yields the modules that the output depends on directly: no recorded output lies between."""
    number = trial.site[2]
    recorded = {site[0] for site in trial.dump_without_site.rows if site[2] == number}
    inside = {path for path in recorded - set(ancestors(trial.name)) if is_within(path, trial.root)}
    for path, module in trial.module.named_modules():
        whole = ".".join(part for part in (trial.root, path) if part)
        is_replaced = any(is_within(whole, other) for other in inside)
        if not is_replaced or whole == trial.name:
            yield whole, module


def alternatives(trial: Trial, path: str, name: str, value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields other values of a parameter, and a phrase for each."""
    is_bias = "bias" in name
    if value.dim() == 1 or is_bias:
        yield f"{path} is {'not added' if is_bias else 'zero'}", torch.zeros_like(value)
    if value.dim() == 2 and value.shape[0] == value.shape[1]:
        yield f"{path} is transposed", value.t().contiguous()
    elif value.dim() == 2:
        yield f"{path} is read column by column", value.t().contiguous().reshape(value.shape)
    for other, parameter in siblings(trial, path, value):
        yield f"{other} is used in place of {path}", parameter
    if value.dim() == 1 and not is_bias:
        yield f"{path} is not applied", torch.ones_like(value)
        yield f"one is added to {path}", value + 1
        yield f"one is subtracted from {path}", value - 1
    if value.dim() == 3 and value.shape[-1] <= KERNEL:
        yield f"{path} is reversed", value.flip(-1)
        return
    yield from arrangements(path, value, heads_of(trial))


def siblings(trial: Trial, path: str, value: torch.Tensor) -> list[tuple[str, Any]]:
    """Returns other parameters of the same shape: those of the same layer, and the same one of other layers."""
    same_role, same_layer = [], []
    place = layer_of(path)
    for other, parameter in trial.session.model.named_parameters():
        if other == path or parameter.shape != value.shape or parameter is value:
            continue
        other_place = layer_of(other)
        if place and other_place and other_place[1] == place[1]:
            same_role.append((other, parameter))
        elif place and other_place and other_place[0] == place[0]:
            same_layer.append((other, parameter))
    return same_layer + same_role


def heads_of(trial: Trial) -> set[int]:
    config = trial.session.model.config.get_text_config()
    counts = {getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads")}
    return {count for count in counts if isinstance(count, int) and count > 0}


def arrangements(path: str, value: torch.Tensor, heads: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the parts of a fused weight in another order."""
    axes = [0] if value.dim() < 3 else [1, 2, 0]
    for axis in axes:
        length = value.shape[axis]
        what = "halves" if value.dim() < 3 else f"halves along axis {axis}"
        if length % 2 == 0:
            first, second = value.chunk(2, axis)
            yield f"the {what} of {path} are exchanged", torch.cat([second, first], axis)
            pairs = torch.stack([first, second], axis + 1).flatten(axis, axis + 1)
            yield f"the {what} of {path} are read as interleaved", pairs
            shape = (*value.shape[:axis], length // 2, 2, *value.shape[axis + 1 :])
            even, odd = value.reshape(shape).unbind(axis + 1)
            yield f"interleaved parts of {path} are read as halves", torch.cat([even, odd], axis)
    if value.dim() == 3 and value.shape[0] <= FEW:
        for one, other in combinations(range(value.shape[0]), 2):
            order = list(range(value.shape[0]))
            order[one], order[other] = other, one
            yield f"experts {one} and {other} of {path} are exchanged", value[order]
    if value.dim() > 2:
        return
    for count in sorted(heads):
        if value.shape[0] % (2 * count) == 0:
            yield from rotated_heads(path, value, count)
    if value.shape[0] % 3 == 0:
        parts = value.chunk(3, 0)
        for order3 in list(permutations(range(3)))[1:]:
            yield f"the thirds of {path} are read in the order {order3}", torch.cat([parts[at] for at in order3], 0)


def rotated_heads(path: str, value: torch.Tensor, count: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the rows of each head as pairs in place of halves, and the other way round."""
    rest = value.shape[1:]
    half = value.shape[0] // count // 2
    pairs = value.reshape(count, 2, half, *rest).transpose(1, 2).reshape(value.shape)
    halves = value.reshape(count, half, 2, *rest).transpose(1, 2).reshape(value.shape)
    yield f"the rows of {path} are in pairs, expected halves of {count} heads", pairs
    yield f"the rows of {path} are in halves, expected pairs of {count} heads", halves


def causes(trial: Trial) -> Iterator[Change]:
    """Yields each exchanged weight that explains every value of the output."""
    mark_computed_buffers(trial.session.model)
    for path, module in list(own_modules(trial)):
        for name, value in list(module.named_parameters(recurse=False)):
            whole = f"{path}.{name}" if path else name
            for what, other in alternatives(trial, whole, name, value):
                if not trial.has_time:
                    return
                if torch.equal(other, value):
                    continue
                change = WeightChange(WEIGHT, message("weight", what, whole), True, path, name, other)
                if explains(trial, change):
                    yield change
        for name, buffer in list(module.named_buffers(recurse=False)):
            if isinstance(buffer, Tracked):
                whole = f"{path}.{name}" if path else name
                for dtype, short in ((torch.bfloat16, "bf16"), (torch.float16, "f16")):
                    told = message("constant", f"{whole} is rounded to {short}", whole)
                    rounded = RoundedBuffer(WEIGHT, told, True, path, name, dtype)
                    if explains(trial, rounded):
                        yield rounded


def message(kind: str, what: str, key: str) -> dict[str, Any]:
    return {"kind": kind, "what": what, "key": key}
