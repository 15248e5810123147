"""Wrong numbers of a rotation: a key of the rotary embedding fitted to the recorded angles."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from ..model import mark_computed_buffers
from .change import FITTED_KEY, UNROUND, Change, Run
from .fit import Fitting
from .keys import changed, explains, key_change, read_entries
from .trial import Trial

GRID, SPAN = 161, 8.0  # angles repeat after a turn, so that the grid has to be fine
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs",
         "_forward_hooks_always_called")  # fmt: skip


@dataclass
class RemadeModule(Change):
    """A module made again from another configuration."""

    path: str = ""
    config: Any = None

    @contextmanager
    def installed(self, run: Run) -> Iterator[None]:
        module = run.model.get_submodule(self.path)
        with _disable_current_modes():
            made = type(module)(self.config)
            mark_computed_buffers(made)
        old = dict(module.__dict__)
        module.__dict__.update({name: value for name, value in made.__dict__.items() if name not in HOOKS})
        try:
            yield
        finally:
            module.__dict__.update({name: value for name, value in old.items() if name not in HOOKS})


def is_made_of_config(module: Any) -> bool:
    """Returns true for a module without weights that a configuration alone determines."""
    parameters = list(inspect.signature(type(module).__init__).parameters.values())[1:]
    needed = [
        part.name for part in parameters if part.default is part.empty and part.kind is part.POSITIONAL_OR_KEYWORD
    ]
    return needed == ["config"] and not list(module.parameters())


def causes(trial: Trial) -> Iterator[Change]:
    """Yields each numeric key of the rotary embedding that explains the angles."""
    if not is_made_of_config(trial.module):
        return
    config = trial.session.model.config
    for path, value in read_entries(trial.session):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value:
            continue
        if not trial.has_time:
            return

        def make(number: float, path: Any = path, value: Any = value) -> Change:
            typed = round(number) if isinstance(value, int) else number
            return RemadeModule(0, {}, path=trial.root, config=changed(config.get_text_config(), path, typed))

        fitting = Fitting(trial, make, GRID, SPAN)
        limits = fitting.range(float(value))
        if limits is None:
            continue
        number = fitting.number(float(value), limits)
        middle = number.value if number.value is not None else (number.low + number.high) / 2
        other = round(middle) if isinstance(value, int) else middle
        rank = FITTED_KEY if number.is_round else UNROUND
        change = key_change(trial, path, value, other, rank)
        if change is None or not explains(trial, change):
            continue
        key, expected = change.message["key"], change.message["expected"]
        change.is_number = True
        change.is_vague = trial.is_short or not number.is_round
        change.message["found"] = number.words
        change.message["what"] = f"the key {key} of config.json is read as {number.phrase} (expected {expected})"
        yield change
