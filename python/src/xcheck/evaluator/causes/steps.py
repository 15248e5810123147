"""Wrong operations: one that is left out, or whose operand counts twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable

import torch

from ..call import Call, is_real
from ..rounding import as_tracked
from ..tracked import Settings, Tracked, fresh
from .trial import Exact, Trial, changing, place

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
    """One operation of the modelling code, and the operand that takes the place of its result."""

    file: str
    line: int
    operation: str
    ordinal: int  # number of the operation within its line
    operand: int
    twice: bool = False

    @property
    def words(self) -> str:
        operation = self.operation.strip("_")
        if self.twice:
            return f"an operand of {operation} in {self.file}:{self.line} is added twice"
        return f"{operation} in {self.file}:{self.line} is left out"


class Lines:
    """Counts the operations of each line, in each execution of the line."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, int, str], int] = {}

    def next(self, call: Call) -> tuple[str, int, int]:
        file, line = place()
        key = (file, line, call.name)
        self.counts[key] = self.counts.get(key, -1) + 1
        return file, line, self.counts[key]


def steps_of(trial: Trial) -> list[Step]:
    """Returns the operations that can be left out: an operand has the shape of the result."""
    found: dict[Step, None] = {}
    lines = Lines()

    def look(call: Call, result: Any) -> Any:
        if call.name not in SKIPPED or not call.reals or not isinstance(result, torch.Tensor):
            return result
        file, line, ordinal = lines.next(call)
        if not file or ordinal > 8:
            return result
        numbers = [leaf for leaf in call.leaves if isinstance(leaf, float)]
        for at, leaf in enumerate(call.leaves):
            if is_real(leaf) and leaf.shape == result.shape and not (numbers and call.name in ("mul", "add", "div")):
                found.setdefault(Step(file, line, call.name, ordinal, at))
                if call.name == "add":
                    found.setdefault(Step(file, line, call.name, ordinal, at, twice=True))
        return result

    evaluation = Exact(Settings(0))
    evaluation.after = look
    trial.run(evaluation)
    return list(found)


def leave_out(step: Step) -> Callable[[Call], Any]:
    """Returns a change that leaves an operation out."""
    lines = Lines()

    def change(call: Call) -> Any:
        if call.name != step.operation or not call.reals:
            return None
        file, line, ordinal = lines.next(call)
        if (file, line, ordinal) != (step.file, step.line, step.ordinal):
            return None
        operand = as_tracked(call.leaves[step.operand])
        dtype = call.dtype()
        if step.twice:
            others = [as_tracked(leaf).exact for leaf in call.leaves if is_real(leaf)]
            return fresh(sum(others[1:], others[0]) + operand.exact, dtype, pending=True)
        return Tracked(operand.exact, dtype, operand.errors)

    return change


def causes(trial: Trial) -> Iterator[dict[str, Any]]:
    """Yields each left-out operation that explains every value of the output."""
    for step in steps_of(trial):
        if not trial.has_time:
            return
        evaluation = Exact(Settings(0))
        evaluation.before = leave_out(step)
        try:
            found = trial.fit(evaluation)
            if found is None or not found.is_possible:
                continue
            fit = trial.explains(changing(leave_out(step)))
        except (RuntimeError, ValueError, IndexError):
            continue  # later operations need the result's type or shape
        if fit is not None:
            yield {
                "kind": "operation",
                "what": step.words,
                "key": step.operation,
                "file": step.file,
                "line": step.line,
                "error_after": fit.error,
            }
