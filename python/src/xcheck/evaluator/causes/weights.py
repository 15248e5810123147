"""Wrong weights: another layer's, a sibling's, transposed, or left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..modules import layer_of
from .trial import Trial


def own_parameters(trial: Trial) -> list[tuple[str, Any, str]]:
    """Returns path, owner and name of the parameters that the output depends on directly."""
    inside = {
        site[0]
        for site in trial.dump_without_site.rows
        if site[2] == trial.site[2]
        and site[0] != trial.root
        and (not trial.root or site[0].startswith(trial.root + "."))
    }
    found = []
    for path, module in trial.module.named_modules():
        whole = ".".join(part for part in (trial.root, path) if part)
        replaced = any(whole == other or whole.startswith(other + ".") for other in inside)
        if replaced and whole != trial.name:
            continue
        found += [
            (f"{whole}.{name}" if whole else name, module, name) for name, _ in module.named_parameters(recurse=False)
        ]
    return found


@contextmanager
def exchanged(owner: Any, name: str, value: torch.Tensor) -> Iterator[None]:
    """Sets a parameter for a while."""
    old = owner._parameters[name]
    owner._parameters[name] = torch.nn.Parameter(value.detach(), requires_grad=False)
    try:
        yield
    finally:
        owner._parameters[name] = old


def alternatives(trial: Trial, path: str, owner: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields other values of a parameter, and a phrase for each."""
    value = owner._parameters[name]
    place = layer_of(path)
    same_role, same_layer = [], []
    for other, parameter in trial.session.model.named_parameters():
        if other == path or parameter.shape != value.shape or parameter is value:
            continue
        other_place = layer_of(other)
        if place and other_place and other_place[1] == place[1]:
            same_role.append((other, parameter))
        elif place and other_place and other_place[0] == place[0] and value.dim() >= 2:
            same_layer.append((other, parameter))
    if value.dim() == 1:
        yield f"{path} is {'not added' if name.endswith('bias') else 'zero'}", torch.zeros_like(value)
    if value.dim() == 2 and value.shape[0] == value.shape[1]:
        yield f"{path} is transposed", value.t().contiguous()
    elif value.dim() == 2:
        yield f"{path} is read column by column", value.t().contiguous().reshape(value.shape)
    for other, parameter in same_layer + same_role:
        yield f"{other} is used in place of {path}", parameter
    if value.dim() == 1 and not name.endswith("bias"):
        yield f"{path} is not applied", torch.ones_like(value)
        yield f"one is added to {path}", value + 1
        yield f"one is subtracted from {path}", value - 1
    if value.dim() == 3 and value.shape[-1] <= 16:  # a convolution's kernel
        yield f"{path} is reversed", value.flip(-1)


def causes(trial: Trial) -> Iterator[dict[str, Any]]:
    """Yields each exchanged weight that explains every value of the output."""
    for path, owner, name in own_parameters(trial):
        for what, value in alternatives(trial, path, owner, name):
            if not trial.has_time:
                return
            if torch.equal(value, owner._parameters[name]):
                continue
            with exchanged(owner, name, value):
                found = trial.fit()
                if found is None or not found.is_possible:
                    continue
                fit = trial.explains()
            if fit is not None:
                yield {"kind": "weight", "what": what, "key": path, "error_after": fit.error}
