"""Teacher forcing: each module's output is judged, and replaced by the candidate's value."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import _disable_current_modes
from transformers.cache_utils import Cache

from .call import Call
from .candidate import Dump, Row
from .constants import UNIT, rounding_sigma
from .model import ROOT
from .modules import ATTENTION
from .outputs import has_choices, recorded, replaced
from .rounding import Evaluation
from .ties import BY_EXPERT
from .tracked import Tracked, exact_of, fresh

NEARER = 0.5  # largest distance of a row that is taken out of order, relative to the distance of the call's own row
SAME = 1 / 64  # error of a rounded value, relative to the largest value of its array

OnSite = Callable[[Row, torch.Tensor], None]


class Forcing:
    """Hooks on all modules that the dump has values of, or on those within one module."""

    def __init__(self, model: Any, dump: Dump, evaluation: Evaluation, on_site: OnSite, within: str = ""):
        self.model = model
        self.within = within
        self.dump = dump
        self.evaluation = evaluation
        self.on_site = on_site
        self.on_missing: Callable[[Row, str], None] = lambda row, why: None
        self.on_choices: Callable[[str], list[Any]] = lambda path: []  # removes and returns the open choices
        self.on_open: Callable[[list[Any]], None] = lambda choices: None  # adds them again
        self.on_leave: Callable[[str], None] = lambda path: None
        self.calls: dict[str, int] = {}
        self.called: dict[tuple[str, int], int] = {}
        self.call_of: dict[tuple[str, int, int], int] = {}  # of a recorded output: the model's call of the module
        self.pass_number = 0
        self.taps_again: Callable[[], AbstractContextManager[None]] = nullcontext  # entered while a module runs again
        self.paused = False
        self.order_of_rows: torch.Tensor | None = None  # in the dump, of the judged output; None for the model's
        self.stack: list[str] = []
        self.given: dict[str, tuple[Any, Any]] = {}  # arguments of the modules that are running
        evaluation.stack = self.stack
        self.seen: set[tuple[str, int, int]] = set()
        self.handles: list[Any] = []
        self.autocast = ExitStack()
        self.calls_of: dict[tuple[str, int], list[Row]] = {}
        for row in dump.rows.values():
            self.calls_of.setdefault((row.module, row.pass_number), []).append(row)

    def __enter__(self) -> Forcing:
        if self.dump.autocast is not None:
            self.autocast.enter_context(torch.autocast("cpu", dtype=self.dump.autocast, cache_enabled=False))
        prefix = f"{self.within}." if self.within else ""
        for part, module in self.model.get_submodule(self.within).named_modules():
            name = f"{prefix}{part}" if part else self.within
            self.handles.append(module.register_forward_pre_hook(self.entering(name), with_kwargs=True))
            self.handles.append(module.register_forward_hook(self.leaving(name), with_kwargs=True))
        return self

    def __exit__(self, *error: object) -> None:
        self.autocast.close()
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def start(self, pass_number: int) -> None:
        """Begins a forward pass."""
        self.pass_number = pass_number
        self.calls.clear()
        self.stack.clear()

    def end(self) -> None:
        """Keeps the number of calls of a forward pass."""
        self.called.update({(name, self.pass_number): count for name, count in self.calls.items()})

    def entering(self, name: str) -> Callable[..., None]:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            if not self.paused:
                self.stack.append(name)
                self.given[name] = args, kwargs

        return hook

    def leaving(self, name: str) -> Callable[..., Any]:
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            if self.paused:
                return None
            call = self.calls.get(name, 0)
            self.calls[name] = call + 1
            for alias in ROOT if name == "" else (name,):
                row = self.row(alias, call, output)
                if row is not None:
                    self.call_of[row.site] = call
                    output = self.judged(module, args, kwargs, output, row)
            self.given.pop(name, None)
            self.on_leave(name)
            if self.stack and self.stack[-1] == name:
                self.stack.pop()
            return output

        return hook

    def row(self, name: str, call: int, output: Any) -> Row | None:
        """Returns the recorded row of a module's call.

        Some models call a module once per kind of layer, in the order of a Python set, which changes from process to
        process. A row is therefore taken out of order if it is much nearer than that of the call. Layers that run
        several times have similar values, so that a wrong row may be a little further away than a later one. Calls of
        experts are in order, unless another row agrees.
        """
        row = self.dump.rows.get((name, call, self.pass_number))
        value = recorded(output)
        if row is None or value is None:
            return row
        free = [other for other in self.calls_of[name, self.pass_number] if other.site not in self.seen]
        if row in free and (len(free) == 1 or self.agrees(row, value)):
            return row
        if not free:
            return row
        nearest = min(free, key=lambda other: (self.distance(other, value), other is not row))
        if row not in free or row.shape != tuple(value.shape) or self.agrees(nearest, value):
            return nearest
        is_nearer = self.distance(nearest, value) <= NEARER * self.distance(row, value)
        return nearest if is_nearer and not BY_EXPERT.search(name) else row

    def agrees(self, row: Row, value: torch.Tensor) -> bool:
        """Returns true if a recorded row is a rounded form of a value."""
        return self.distance(row, value) <= SAME

    def distance(self, row: Row, value: torch.Tensor) -> float:
        """Returns the largest error of a recorded row, relative to the largest value; infinity for another shape."""
        if tuple(value.shape) != row.shape or value.is_floating_point() != row.dtype.is_floating_point:
            return float("inf")
        with _disable_current_modes():
            exact = exact_of(value)
            if not exact.numel():
                return 0.0
            error = (self.dump.value(row).double() - exact).abs().max() / exact.abs().max().clamp(min=1e-300)
            return float(error.nan_to_num(nan=torch.inf))

    def judged(self, module: Any, args: Any, kwargs: Any, output: Any, row: Row) -> Any:
        """Reports the exact value of an output, and returns the output with the candidate's value."""
        value = recorded(output)
        self.seen.add(row.site)
        if value is None:
            self.on_missing(row, "the module returns no tensor")
            return output
        if tuple(value.shape) != row.shape:
            self.on_missing(row, f"shape {list(row.shape)}, expected {list(value.shape)}")
            return output
        choices = has_choices(output)
        made = self.on_choices(row.module) if choices else []
        if not self.is_router(row.module, value):
            self.on_open(made)
        order = self.order(row, value)
        if order is not None:
            value = value[order]
        self.order_of_rows = order
        with _disable_current_modes():
            self.on_site(row, value)
            forced = self.forced(row, value)
        if forced is None:
            return output
        if order is not None:
            forced = forced[order.argsort()]
        again = None
        if isinstance(forced, Tracked) and isinstance(value, Tracked) and choices and not self.has_recorded(row):
            again = self.chosen_again(module, args, kwargs, value, forced)
        if choices and again is None:
            self.on_open(made)  # the other outputs depend on them
        return replaced(output if again is None else again, forced)

    def order(self, row: Row, value: torch.Tensor) -> torch.Tensor | None:
        """Returns the order in which the dump has rows that are sorted by expert; None if it is the same.

        torch.sort keeps the order of an expert's tokens or not, depending on the processor, and some passes of
        `generate` do not sort.
        """
        if not BY_EXPERT.search(row.module) or value.dim() != 2 or self.agrees(row, value):
            return None
        with _disable_current_modes():
            exact = exact_of(value)
            distances = torch.cdist(self.dump.value(row).double(), exact).nan_to_num(torch.inf)
            nearest = torch.full((len(distances),), -1)
            taken: list[int] = []
            # Rows with a close match first. If the candidate chose another expert, a recorded row has no match and
            # would take that of another token.
            for at in distances.min(1).values.argsort().tolist():
                distances[at, taken] = torch.inf
                nearest[at] = int(distances[at].argmin())
                taken.append(int(nearest[at]))
            return nearest if len(set(taken)) == len(taken) else None

    def is_router(self, path: str, value: torch.Tensor) -> bool:
        """Returns true for a module whose recorded output does not depend on the choices that it makes."""
        name = type(self.model.get_submodule(path if path != "logits" else "")).__name__
        return value.is_floating_point() and not ATTENTION.search(name)

    def has_recorded(self, row: Row) -> bool:
        """Returns true if the dump has values inside a module: its choices are made with the candidate's values."""
        prefix = f"{row.module}."
        return any(name.startswith(prefix) for name, number in self.calls_of if number == row.pass_number)

    def forced(self, row: Row, value: torch.Tensor) -> torch.Tensor | None:
        """Returns the candidate's value as a module's output."""
        stored = self.dump.value(row)
        if not value.is_floating_point():
            return stored.to(value.dtype)
        exact = stored.double()
        exact = exact.clone() if exact is stored else exact
        narrow = UNIT.get(row.dtype, 0.0) > UNIT[value.dtype]
        result = fresh(exact, value.dtype, rounding_sigma(exact, row.dtype).square() if narrow else None)
        result.is_known = True
        return result

    def chosen_again(self, module: Any, args: Any, kwargs: Any, value: Tracked, forced: Tracked) -> Any:
        """Runs a module again, with the candidate's value in place of the operation's result that it returns.

        Returns None for a module that is given a cache: it has already added to the cache.
        """
        if any(isinstance(arg, Cache) for arg in (*args, *kwargs.values())):
            return None
        results: list[Any] = []
        place: list[int] = []

        def note(call: Call, result: Any) -> Any:
            result = old(call, result)
            results.append(result)
            return result

        def exchange(call: Call, result: Any) -> Any:
            result = old(call, result)
            place.append(0)
            return forced if len(place) - 1 == at else result

        evaluation = self.evaluation
        self.paused, old, on_tie = True, evaluation.after, evaluation.on_tie
        try:
            evaluation.after, evaluation.on_tie = note, lambda choice, count: None
            again = recorded(module.forward(*args, **kwargs))
            at = next((number for number, result in enumerate(results) if result is again), None)
            if at is None:
                return None
            evaluation.after, evaluation.on_tie = exchange, on_tie
            return module.forward(*args, **kwargs)
        finally:
            self.paused, evaluation.after, evaluation.on_tie = False, old, on_tie
