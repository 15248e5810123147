"""Wrong inputs: a module that reads another recorded value, or other positions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..call import is_real
from ..modules import layer_of
from ..tracked import exact_of, fresh
from .change import INPUT, LAYER_NUMBER, WEIGHT, Change, Run
from .keys import explains
from .trial import Trial

SHIFTS = (1, -1, 2, -2)


@dataclass
class OtherInput(Change, ABC):
    """A module that is given another value. `value` computes it from the present one."""

    name: Any = None  # number or name of the argument

    @abstractmethod
    def value(self, run: Run, path: str, present: torch.Tensor) -> torch.Tensor | None:
        """Returns the value in place of the present one; None to leave it."""

    @contextmanager
    def installed(self, run: Run) -> Iterator[None]:
        def make(path: str, module: Any) -> Any:
            def hook(_: Any, args: Any, kwargs: Any) -> Any:
                present = args[self.name] if isinstance(self.name, int) else kwargs.get(self.name)
                value = self.value(run, path, present) if isinstance(present, torch.Tensor) else None
                return None if value is None else with_input(args, kwargs, self.name, value)

            return module.register_forward_pre_hook(hook, with_kwargs=True)

        with run.hooks(make):
            yield


@dataclass
class Recorded(OtherInput):
    """The recorded output of another module, as a module's input."""

    source: tuple[str, int] = ("", 0)  # module and call

    def value(self, run: Run, path: str, present: torch.Tensor) -> torch.Tensor | None:
        dump, (module, call) = self.trial.session.dump, self.source
        row = dump.rows.get((moved(module, self.trial.root, path), call, run.forcing.pass_number))
        if row is None or row.shape != tuple(present.shape):
            return None
        with _disable_current_modes():
            return fresh(dump.value(row).double().clone(), present.dtype)


@dataclass
class Shifted(OtherInput):
    """Positions that are too large or too small by a number."""

    shift: int = 0
    first: int = 0  # the first pass in which they are

    def value(self, run: Run, path: str, present: torch.Tensor) -> torch.Tensor | None:
        return present + self.shift if run.forcing.pass_number >= self.first else None


def with_input(args: Any, kwargs: Any, name: Any, value: Any) -> tuple[Any, Any]:
    if isinstance(name, int):
        return (*args[:name], value, *args[name + 1 :]), kwargs
    return args, {**kwargs, name: value}


def number_of(path: str) -> int | None:
    place = layer_of(path)
    return None if place is None else int(place[0].rsplit(".", 1)[-1])


def moved(module: str, root: str, path: str) -> str:
    """Returns the counterpart of `module` for `path`: the same name, the same number of layers away from it."""
    here, there, source = number_of(root), number_of(path), number_of(module)
    if here is None or there is None or source is None:
        return module
    return LAYER_NUMBER.sub(f".{source + there - here}", module, count=1)


def near(trial: Trial, path: str) -> bool:
    """Returns true for a module of the same layer, the one before, or outside of the layers."""
    here, there = number_of(trial.root), number_of(path)
    return here is None or there is None or here - there in (0, 1)


def named_inputs(trial: Trial) -> list[tuple[Any, torch.Tensor]]:
    """Returns number or name and value of each tensor among the module's inputs."""
    found = [*enumerate(trial.args), *trial.kwargs.items()]
    return [(name, value) for name, value in found if isinstance(value, torch.Tensor)]


def causes(trial: Trial) -> Iterator[Change]:
    """Yields other inputs that explain every value of the output."""
    yield from shifted(trial)
    yield from exchanged(trial)


def shifted(trial: Trial) -> Iterator[Change]:
    """Yields shifts of the module's integers: positions, or numbers of tokens."""
    for name, value in named_inputs(trial):
        if is_real(value) or value.dtype == torch.bool or value.dtype not in (torch.int32, torch.int64):
            continue
        for shift in SHIFTS:
            if not trial.has_time:
                return
            first = 0 if trial.site[2] == 0 else 1
            kind = "positions" if is_position(trial, name) else "integers"
            where = f"the {kind} that {trial.root} reads" + (" after the first pass" if first else "")
            size = "large" if shift > 0 else "small"
            what = {"kind": "input", "what": f"{where} are too {size} by {abs(shift)}", "key": trial.root}
            change = Shifted(WEIGHT, what, name=name, shift=shift, first=first)
            if explains(trial, change):
                yield change


def is_position(trial: Trial, name: Any) -> bool:
    return "position" in str(name) or "rotary" in trial.root or "pos" in trial.root or "wpe" in trial.root


def exchanged(trial: Trial) -> Iterator[Change]:
    """Yields each recorded value that explains every value of the output as the module's input."""
    rows = [row for site, row in trial.session.dump.rows.items() if site[2] == trial.site[2] and near(trial, site[0])]
    for name, value in named_inputs(trial):
        if not is_real(value):
            continue
        for row in rows:
            if not trial.has_time:
                return
            inside = row.module == trial.path or row.module.startswith(f"{trial.root}.")
            if inside or tuple(value.shape) != row.shape or not row.dtype.is_floating_point:
                continue
            stored = trial.session.dump.value(row).double()
            if torch.equal(stored, exact_of(value)):
                continue
            what = f"{trial.root or trial.path} reads the output of {row.module} in place of its input"
            told = {"kind": "input", "what": what, "key": row.module}
            change = Recorded(INPUT, told, trial=trial, name=name, source=(row.module, row.call))
            if explains(trial, change):
                yield change
