"""Wrong constants: numbers among the arguments of a module's operations, fitted in one dimension."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable

import torch

from ..call import Call
from ..tracked import Settings
from .trial import Exact, Fit, Trial, changing, place

ARITHMETIC = frozenset(
    [
        "add",
        "sub",
        "rsub",
        "mul",
        "div",
        "pow",
        "clamp",
        "clamp_min",
        "clamp_max",
        "leaky_relu",
        "softplus",
        "elu",
        "celu",
        "hardtanh",
        "threshold",
        "native_layer_norm",
        "_fused_rms_norm",
        "native_group_norm",
        "addcmul",
        "lerp",
        "logit",
        "true_divide",
        "add_",
        "sub_",
        "mul_",
        "div_",
        "clamp_",
        "pow_",
        "masked_fill",
    ]
)
SHORT = frozenset([torch.bfloat16, torch.float16])
INTEGERS = frozenset(["pow", "mul", "div"])
CLAMPS = frozenset(["clamp", "clamp_", "clamp_min", "clamp_max", "clamp_min_", "clamp_max_", "hardtanh"])
GRID = 36
STEPS = 48
SPAN = 12.0
ROUND = 2  # digits of a round number


@dataclass(frozen=True)
class Constant:
    """A number at one line of the modelling code."""

    file: str
    line: int
    operation: str
    at: int  # place among the operands
    value: float
    both_signs: bool = False  # a limit to both sides, which one number of the model sets

    @property
    def words(self) -> str:
        names = {"mul": "factor", "div": "divisor", "add": "addend", "sub": "subtrahend", "pow": "exponent"}
        names.update({"clamp": "limit", "clamp_min": "limit", "clamp_max": "limit"})
        return names.get(self.operation.rstrip("_"), f"number in {self.operation}")


def numbers_of(call: Call) -> Iterator[tuple[int, float]]:
    """Yields the numbers among the operands."""
    if call.name not in ARITHMETIC:
        return
    for at, leaf in enumerate(call.leaves):
        if isinstance(leaf, bool) or not isinstance(leaf, (int, float)):
            continue
        if isinstance(leaf, int) and call.name not in INTEGERS:
            continue
        if leaf == 0 or not math.isfinite(leaf) or abs(leaf) > 1e30:
            continue
        yield at, float(leaf)


def constants_of(trial: Trial) -> list[Constant]:
    """Returns all constants of the module, in the order of execution."""
    found: dict[Constant, None] = {}

    def look(call: Call) -> Any:
        if call.reals:
            for at, value in numbers_of(call):
                file, line = place()
                found.setdefault(Constant(file, line, call.name, at, value))
        return None

    evaluation = Exact(Settings(0))
    evaluation.before = look
    trial.run(evaluation)
    constants = [constant for constant in found if constant.file]
    return constants + limits(constants)


def limits(constants: list[Constant]) -> list[Constant]:
    """Returns the limits that several operations or both sides have in common."""
    sizes = [abs(constant.value) for constant in constants if constant.operation in CLAMPS]
    result: dict[float, Constant] = {}
    for constant in constants:
        size = abs(constant.value)
        if constant.operation in CLAMPS and sizes.count(size) > 1 and size not in result:
            result[size] = Constant(constant.file, constant.line, constant.operation, constant.at, size, True)
    return list(result.values())


def exchange(constant: Constant, value: float) -> Callable[[Call], Any]:
    """Returns a change that computes with another number."""

    def change(call: Call) -> Any:
        if constant.both_signs and call.name in CLAMPS and call.reals:
            for at, number in numbers_of(call):
                if abs(number) == constant.value:
                    call.leaves[at] = math.copysign(value, number)
            call.rebuild()
            return None
        if call.name != constant.operation or not call.reals:
            return None
        if (constant.at, constant.value) not in list(numbers_of(call)) or place() != (constant.file, constant.line):
            return None
        call.leaves[constant.at] = value
        call.rebuild()
        return None

    return change


def fit_with(trial: Trial, constant: Constant, value: float) -> Fit:
    evaluation = Exact(Settings(0))
    evaluation.before = exchange(constant, value)
    found = trial.fit(evaluation)
    return Fit(float("inf"), 1) if found is None or math.isnan(found.error) else found


def error_with(trial: Trial, constant: Constant, value: float) -> float:
    return fit_with(trial, constant, value).error


def fitted(trial: Trial, constant: Constant, before: float) -> tuple[float, float] | None:
    """Returns the value with the least error, and the error."""
    special = [1.0, -constant.value, constant.value**2, constant.value**0.5 if constant.value > 0 else 1.0,
               1 / constant.value, 0.0]  # fmt: skip
    tried = [(error_with(trial, constant, value), value) for value in dict.fromkeys(special)]
    grid = [-SPAN + 2 * SPAN * step / (GRID - 1) for step in range(GRID)]
    errors = []
    for step in grid:
        if not trial.has_time:
            return None
        errors.append(error_with(trial, constant, constant.value * math.exp(step)))
    best = min(range(GRID), key=lambda at: errors[at])
    if not math.isfinite(errors[best]) or max(errors) - min(errors) < 1e-12 * before:
        return min(tried)[1], min(tried)[0]
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, GRID - 1)]
    step, error = golden(lambda at: error_with(trial, constant, constant.value * math.exp(at)), low, high, trial)
    tried.append((error, constant.value * math.exp(step)))
    error, value = min(tried)
    return value, error


def golden(function: Callable[[float], float], low: float, high: float, trial: Trial) -> tuple[float, float]:
    """Returns the place and the value of a minimum."""
    ratio = (math.sqrt(5) - 1) / 2
    first, second = high - ratio * (high - low), low + ratio * (high - low)
    of_first, of_second = function(first), function(second)
    for _ in range(STEPS):
        if not trial.has_time or high - low < 1e-9:
            break
        if of_first < of_second:
            high, second, of_second = second, first, of_first
            first = high - ratio * (high - low)
            of_first = function(first)
        else:
            low, first, of_first = first, second, of_second
            second = low + ratio * (high - low)
            of_second = function(second)
    return min((first, of_first), (second, of_second), key=lambda pair: pair[1])


def rounded(trial: Trial, constant: Constant, value: float) -> float | None:
    """Returns the shortest decimal number near a fitted value that explains every value, or None."""
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if abs(short - value) > 0.02 * abs(value):
            continue
        possible = short != constant.value and fit_with(trial, constant, short).is_possible
        if possible and trial.explains(changing(exchange(constant, short))) is not None:
            return short
    return value if trial.explains(changing(exchange(constant, value))) is not None else None


def is_round(value: float) -> bool:
    """Returns true if a number has few digits."""
    return value == 0 or f"{value:.{ROUND}g}" == f"{value:.6g}" or float(f"{value:.{ROUND}g}") == value


def is_plausible(constant: Constant, value: float, stored: torch.dtype) -> bool:
    """Returns true if a fitted number is evidence: in a short type, many numbers explain a module equally well."""
    return stored not in SHORT or is_round(value) or is_round(value / constant.value)


def causes(trial: Trial) -> Iterator[dict[str, Any]]:
    """Yields each constant that explains every value of the output."""
    before = trial.before.error if trial.before is not None else 0.0
    for constant in constants_of(trial):
        if not trial.has_time:
            return
        found = fitted(trial, constant, before)
        if found is None or found[1] >= before:
            continue
        if not fit_with(trial, constant, found[0]).is_possible:
            continue
        value = rounded(trial, constant, found[0])
        if value is None or not is_plausible(constant, value, trial.row.dtype):
            continue
        fit = trial.explains(changing(exchange(constant, value)))
        if fit is None:
            continue
        expected, actual = f"{constant.value:.6g}", f"{value:.6g}"
        yield {
            "kind": "constant",
            "what": f"the {constant.words} is {actual} (expected {expected})",
            "key": constant.operation,
            "expected": expected,
            "found": actual,
            "file": constant.file,
            "line": constant.line,
            "error_after": fit.error,
        }
