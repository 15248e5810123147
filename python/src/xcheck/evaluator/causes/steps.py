"""Wrong operations: one that is left out, or whose operand counts twice; a module that returns its input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..call import Call, is_real
from ..outputs import recorded, replaced
from ..rounding import Evaluation, as_tracked
from ..tracked import Settings, Tracked, fresh
from .change import OPERATION, BeforeEdit, Change, CodeChange, CodeSite, Edit, Run, code_site
from .keys import explains
from .trial import Exact, Trial
from .weights import own_modules

SKIPPED = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "rsqrt",
        "sqrt",
        "exp",
        "tanh",
        "sigmoid",
        "silu",
        "gelu",
        "relu",
        "softplus",
        "pow",
        "square",
        "_softmax",
        "clamp",
        "clamp_min",
        "clamp_max",
        "neg",
        "rsub",
        "native_layer_norm",
        "masked_fill",
        "where",
        "cumsum",
        "erf",
        "log",
        "mm",
        "bmm",
    ]
)


@dataclass(frozen=True)
class Step:
    """An operation of the modelling code, and the operand that takes the place of its result."""

    site: CodeSite
    operand: int
    twice: bool = False

    @property
    def words(self) -> str:
        operation = self.site.operation.strip("_")
        if self.twice:
            return f"an operand of {operation} in `{self.site.place.text}` is added twice"
        return f"{operation} in `{self.site.place.text}` is left out"


@dataclass
class ReturnsInput(Change):
    """A module that returns its first input."""

    inside: str = ""  # path of the module within the one that is run

    @contextmanager
    def installed(self, run: Run) -> Iterator[None]:
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            value = recorded(output)
            given = next((part for part in (*args, *kwargs.values()) if is_real(part)), None)
            if run.forcing.paused or value is None or given is None or given.shape != value.shape:
                return None
            return replaced(output, given.to(value.dtype).clone())

        def make(path: str, module: Any) -> Any:
            target = run.part(module, self.inside)
            if target is None:
                return module.register_forward_hook(lambda *_: None)
            return target.register_forward_hook(hook, prepend=True, with_kwargs=True)

        with run.hooks(make):
            yield


def steps_of(trial: Trial) -> list[Step]:
    """Returns the operations that can be left out: an operand has the shape of the result."""
    found: dict[Step, None] = {}
    evaluation = Exact(Settings(0))

    def look(call: Call, result: Any) -> Any:
        if call.name not in SKIPPED or not call.reals or not isinstance(result, torch.Tensor):
            return result
        site = code_site(call, evaluation)
        if site is None or trial.skips(site.role):
            return result
        numbers = [leaf for leaf in call.leaves if isinstance(leaf, float)]
        for at, leaf in enumerate(call.leaves):
            if is_real(leaf) and leaf.shape == result.shape and not (numbers and call.name in ("mul", "add", "div")):
                found.setdefault(Step(site, at))
                if call.name == "add":
                    found.setdefault(Step(site, at, twice=True))
        return result

    evaluation.after = look
    trial.run(evaluation)
    return list(found)


def leave_out(step: Step, evaluation: Evaluation) -> Edit:
    """Returns an edit that leaves an operation out."""

    def change(call: Call) -> Any:
        if not call.reals or not step.site.is_of(call, evaluation):
            return None
        operand = as_tracked(call.leaves[step.operand])
        dtype = call.dtype()
        if step.twice:
            others = [as_tracked(leaf).exact for leaf in call.leaves if is_real(leaf)]
            return fresh(sum(others[1:], others[0]) + operand.exact, dtype, pending=True)
        return Tracked(operand.exact, dtype, operand.errors)

    return BeforeEdit(change)


def causes(trial: Trial) -> Iterator[Change]:
    """Yields each left-out operation or module that explains every value of the output."""
    for path, _ in list(own_modules(trial)):
        if not trial.has_time:
            return
        if trial.skips(path):
            continue
        inside = path[len(trial.root) :].lstrip(".") if trial.root else path
        what = {"kind": "operation", "what": f"{path or 'the model'} is left out: its output is its input", "key": path}
        skipped = ReturnsInput(OPERATION, what, inside=inside)
        if explains(trial, skipped):
            yield skipped
    for step in steps_of(trial):
        if not trial.has_time:
            return
        what = {"kind": "operation", "what": step.words, "key": step.site.operation, **step.site.place.fields}
        change = CodeChange(OPERATION, what, make=lambda run, step=step: leave_out(step, run))  # type: ignore[misc]
        if explains(trial, change):
            yield change
