"""Wrong inputs: a module that reads another recorded value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..call import is_real
from ..modules import layer_of
from ..tracked import fresh
from .trial import Trial


def inputs_of(trial: Trial) -> Iterator[tuple[Any, Any, torch.Tensor]]:
    """Yields the kind, the key and the value of each tensor among the module's inputs."""
    for at, value in enumerate(trial.args):
        if is_real(value):
            yield "args", at, value
    for name, value in trial.kwargs.items():
        if is_real(value):
            yield "kwargs", name, value


def with_input(trial: Trial, kind: Any, key: Any, value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = list(trial.args), dict(trial.kwargs)
    if kind == "args":
        args[key] = value
    else:
        kwargs[key] = value
    return tuple(args), kwargs


def near(trial: Trial, path: str) -> bool:
    """Returns true for a module of the same layer, the one before, or outside of the layers."""
    here, there = layer_of(trial.root), layer_of(path)
    if here is None or there is None:
        return True
    number = int(here[0].rsplit(".", 1)[-1]) - int(there[0].rsplit(".", 1)[-1])
    return number in (0, 1)


def causes(trial: Trial) -> Iterator[dict[str, Any]]:
    """Yields each recorded value that explains every value of the output as its input."""
    rows = [row for site, row in trial.session.dump.rows.items() if site[2] == trial.site[2] and near(trial, site[0])]
    for kind, key, value in inputs_of(trial):
        for row in rows:
            if not trial.has_time:
                return
            inside = row.module == trial.path or row.module.startswith(f"{trial.root}.")
            if inside or tuple(value.shape) != row.shape or not row.dtype.is_floating_point:
                continue
            stored = trial.session.dump.value(row).double()
            if torch.equal(stored, value.exact if hasattr(value, "exact") else value.double()):
                continue
            inputs = with_input(trial, kind, key, fresh(stored.clone(), value.dtype))
            found = trial.fit(inputs=inputs)
            if found is None or not found.is_possible:
                continue
            fit = trial.explains(inputs=inputs)
            if fit is not None:
                what = f"{trial.root or trial.path} reads the output of {row.module} in place of its input"
                yield {"kind": "input", "what": what, "key": row.module, "error_after": fit.error}
