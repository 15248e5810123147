"""Modules that a trial need not run: the dump has their output, which replaces what they compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..candidate import Row
from ..forcing import Forcing
from ..outputs import recorded

MISSING: Any = object()


@dataclass
class BypassedCall:
    """The only call of a module in a pass. The module returns one tensor, which the dump has."""

    row: Row
    like: torch.Tensor
    others: tuple[None, ...] | None  # further outputs, all of them None; None if the output is the tensor itself
    calls: dict[str, int]  # calls of modules inside of the call


class Bypass:
    """The modules whose recorded output is returned without running them."""

    def __init__(self, pass_number: int, kept: set[str]):
        self.pass_number = pass_number
        self.kept = kept  # modules that always run
        self.calls: dict[str, BypassedCall] = {}

    @contextmanager
    def noted(self, forcing: Forcing) -> Iterator[None]:
        """Notes which modules of a run can be bypassed. The hooks of the forcing must be registered already."""
        handles = []
        for path, module in forcing.model.named_modules():
            rows = forcing.calls_of.get((path, self.pass_number), [])
            if len(rows) == 1 and path not in self.kept:
                before: list[dict[str, int]] = []
                handles.append(module.register_forward_pre_hook(self.entering(forcing, before)))
                handles.append(module.register_forward_hook(self.leaving(forcing, path, rows[0], before)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def entering(self, forcing: Forcing, before: list[dict[str, int]]) -> Callable[..., None]:
        def hook(module: Any, args: Any) -> None:
            if not forcing.paused and forcing.pass_number == self.pass_number:
                before.append(dict(forcing.calls))

        return hook

    def leaving(self, forcing: Forcing, path: str, row: Row, before: list[dict[str, int]]) -> Callable[..., None]:
        def hook(module: Any, args: Any, output: Any) -> None:
            if forcing.paused or forcing.pass_number != self.pass_number:
                return
            self.calls.pop(path, None)
            value = recorded(output)
            others = tuple(output[1:]) if type(output) is tuple else None
            is_plain = output is value or (others is not None and all(part is None for part in others))
            if value is None or len(before) != 1 or not is_plain or not getattr(value, "is_known", False):
                return
            inside = {name: count - before[0].get(name, 0) for name, count in forcing.calls.items()}
            calls = {name: count for name, count in inside.items() if count and name != path}
            self.calls[path] = BypassedCall(row, value, others, calls)

        return hook

    @contextmanager
    def installed(self, model: Any, forcing: Forcing) -> Iterator[None]:
        """Replaces the forward functions for the length of a run."""
        old: list[tuple[Any, Any]] = []
        modules = dict(model.named_modules())
        try:
            for path, call in self.calls.items():
                if path in modules:
                    module = modules[path]
                    old.append((module, module.__dict__.get("forward", MISSING)))
                    module.__dict__["forward"] = self.stub(forcing, module.forward, call)
            yield
        finally:
            for module, forward in old:
                if forward is MISSING:
                    del module.__dict__["forward"]
                else:
                    module.__dict__["forward"] = forward

    def stub(self, forcing: Forcing, forward: Any, call: BypassedCall) -> Callable[..., Any]:
        def stubbed(*args: Any, **kwargs: Any) -> Any:
            if forcing.paused or forcing.pass_number != self.pass_number:
                return forward(*args, **kwargs)
            for name, count in call.calls.items():
                forcing.calls[name] = forcing.calls.get(name, 0) + count
            with _disable_current_modes():
                value = forcing.forced(call.row, call.like)
            return value if call.others is None else (value, *call.others)

        return stubbed
