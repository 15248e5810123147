"""Wrong weights: another layer's, a sibling's, rearranged, or left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
class SeveralWeights(Change):
    """Other values of several parameters, such as a weight and its bias."""

    changes: tuple[WeightChange, ...] = ()

    @contextmanager
    def installed(self, run: Run) -> Iterator[None]:
        with ExitStack() as stack:
            for change in self.changes:
                stack.enter_context(change.installed(run))
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
    if is_bias:
        yield f"{path} is added twice", 2 * value
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
        yield f"{path} is not a part of the softmax", torch.full_like(value, -torch.inf)
    if value.dim() == 3 and value.shape[-1] <= KERNEL:
        yield f"{path} is reversed", value.flip(-1)
        yield f"{path} is read column by column", value.transpose(0, 2).contiguous().reshape(value.shape)
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
    for axis in [0] if value.dim() < 3 else [1, 2, 0]:
        along = f" along axis {axis}" if value.dim() > 2 else ""
        counts = heads if value.dim() < 3 else set()
        for what, order in orders(value.shape[axis], counts, value.dim() < 3):
            yield what.format(path=path, along=along), value.index_select(axis, order)
    if value.dim() == 3 and value.shape[0] <= FEW:
        for one, other in combinations(range(value.shape[0]), 2):
            experts = list(range(value.shape[0]))
            experts[one], experts[other] = other, one
            yield f"experts {one} and {other} of {path} are exchanged", value[experts]


def orders(length: int, heads: set[int], has_thirds: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields orders of the rows of a fused weight, and a phrase for each."""
    rows = torch.arange(length)
    if length % 2 == 0:
        yield "the halves{along} of {path} are exchanged", rows.roll(length // 2)
        yield "the halves{along} of {path} are read as interleaved", rows.view(2, -1).t().reshape(-1)
        yield "interleaved parts{along} of {path} are read as halves", rows.view(-1, 2).t().reshape(-1)
    for count in sorted(heads):
        if length % (2 * count) == 0:
            words = "the rows of {path} are in %s, expected %s of " + f"{count} heads"
            yield words % ("pairs", "halves"), rows.view(count, 2, -1).transpose(1, 2).reshape(-1)
            yield words % ("halves", "pairs"), rows.view(count, -1, 2).transpose(1, 2).reshape(-1)
    if length % 3 == 0 and has_thirds:
        parts = rows.chunk(3)
        for order in list(permutations(range(3)))[1:]:
            what = f"the thirds of {{path}} are read in the order {order}"
            yield what, torch.cat([parts[at] for at in order])


def together(trial: Trial, path: str, module: Any) -> Iterator[Change]:
    """Yields a weight and its bias, both with their parts in another order."""
    parameters = dict(module.named_parameters(recurse=False))
    for name, weight in parameters.items():
        bias_name = "bias" if name == "weight" else f"{name}_bias"
        bias = parameters.get(bias_name)
        axis = None if bias is None else output_axis(weight, bias.shape[-1])
        if bias is None or axis is None:
            continue
        whole = f"{path}.{name}" if path else name
        for what, order in orders(bias.shape[-1], heads_of(trial), True):
            told = message("weight", what.format(path=f"{whole} and of its bias", along=""), whole)
            values = {name: weight.index_select(axis, order), bias_name: bias.index_select(-1, order)}
            changes = tuple(changed(path, part, value, {}) for part, value in values.items())
            yield SeveralWeights(WEIGHT, told, is_local=True, changes=changes)


def output_axis(weight: torch.Tensor, length: int) -> int | None:
    """Returns the axis of a weight that its bias of this length belongs to."""
    if weight.dim() == 2 and weight.shape[0] == length:
        return 0
    return weight.dim() - 1 if weight.dim() > 1 and weight.shape[-1] == length else None


def changed(path: str, name: str, value: torch.Tensor, told: dict[str, Any]) -> WeightChange:
    """Returns the change of a parameter to a value."""
    return WeightChange(WEIGHT, told, is_local=True, module=path, name=name, value=value)


def causes(trial: Trial) -> Iterator[Change]:
    """Yields each exchanged weight that explains every value of the output."""
    mark_computed_buffers(trial.session.model)
    for path, module in list(own_modules(trial)):
        if trial.skips(path):
            continue
        for name, value in list(module.named_parameters(recurse=False)):
            whole = f"{path}.{name}" if path else name
            for what, other in alternatives(trial, whole, name, value):
                if not trial.has_time:
                    return
                if torch.equal(other, value):
                    continue
                change = changed(path, name, other, message("weight", what, whole))
                if explains(trial, change):
                    yield change
        for joint in together(trial, path, module):
            if trial.has_time and explains(trial, joint):
                yield joint
        for name, buffer in list(module.named_buffers(recurse=False)):
            if isinstance(buffer, Tracked):
                whole = f"{path}.{name}" if path else name
                for dtype, short in ((torch.bfloat16, "bf16"), (torch.float16, "f16")):
                    told = message("constant", f"{whole} is rounded to {short}", whole)
                    rounded = RoundedBuffer(WEIGHT, told, is_local=True, module=path, name=name, dtype=dtype)
                    if explains(trial, rounded):
                        yield rounded


def message(kind: str, what: str, key: str) -> dict[str, Any]:
    return {"kind": kind, "what": what, "key": key}
