"""Wrong constants: numbers among the arguments of a module's operations, fitted in one dimension."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable

from ..call import Call
from ..tracked import Settings
from .change import ROUND_CONSTANT, UNROUND, BeforeEdit, CodeChange, Place, place, role_of
from .fit import Fitting
from .keys import EXACT
from .round_numbers import NARROW
from .trial import Exact, Trial

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
        "addmm",
        "baddbmm",
        "add_",
        "sub_",
        "mul_",
        "div_",
        "clamp_",
        "pow_",
        "masked_fill",
    ]
)
INTEGERS = frozenset(["pow", "mul", "div"])
CLAMPS = frozenset(["clamp", "clamp_", "clamp_min", "clamp_max", "clamp_min_", "clamp_max_", "hardtanh"])
ADDENDS = frozenset(["add", "native_layer_norm", "_fused_rms_norm", "native_group_norm"])
NAMES = {
    "mul": "factor",
    "div": "divisor",
    "add": "addend",
    "sub": "subtrahend",
    "pow": "exponent",
    "clamp": "limit",
    "clamp_min": "limit",
    "clamp_max": "limit",
    "native_layer_norm": "epsilon",
    "_fused_rms_norm": "epsilon",
    "native_group_norm": "epsilon",
}
OTHERS = 4  # further modules whose values narrow the range of a number


@dataclass(frozen=True)
class Constant:
    """A number at one line of the modelling code."""

    place: Place
    operation: str
    at: int  # place among the operands
    value: float
    is_shared: bool = False  # one number of the model in several lines, or a symmetric limit, such as a clamp to −x and x

    @property
    def words(self) -> str:
        name = NAMES.get(self.operation.rstrip("_"), f"number in {self.operation}")
        return f"the {name} in `{self.place.text}`"


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
            here = place()
            for at, value in numbers_of(call):
                found.setdefault(Constant(here, call.name, at, value))
        return None

    evaluation = Exact(Settings(0))
    evaluation.before = look
    trial.run(evaluation)
    constants = [constant for constant in found if constant.place.path]
    return constants + shared(constants)


def shared(constants: list[Constant]) -> list[Constant]:
    """Returns the numbers that several operations have in common, such as the factor of cosines and sines."""
    uses: dict[tuple[str, float], list[Constant]] = {}
    for constant in constants:
        uses.setdefault(family(constant.operation, constant.value), []).append(constant)
    return [
        Constant(first.place, first.operation, first.at, value, True)
        for (_, value), (first, *others) in uses.items()
        if others
    ]


def family(operation: str, value: float) -> tuple[str, float]:
    """Returns what operations with the same number have in common: a symmetric limit is one number."""
    return ("clamp", abs(value)) if operation in CLAMPS else (operation, value)


def exchange(constant: Constant, value: float) -> Callable[[Call], Any]:
    """Returns a change that computes with another number."""

    def change(call: Call) -> Any:
        found = [pair for pair in numbers_of(call) if is_meant(*pair, call.name)] if call.reals else []
        if not found or not (constant.is_shared or place() == constant.place):
            return None
        for at, number in found:
            call.leaves[at] = math.copysign(value, number) if constant.is_shared and call.name in CLAMPS else value
        call.rebuild()
        return None

    def is_meant(at: int, number: float, operation: str) -> bool:
        if constant.is_shared:
            return family(operation, number) == family(constant.operation, constant.value)
        return (at, number, operation) == (constant.at, constant.value, constant.operation)

    return change


def changed(constant: Constant, value: float) -> CodeChange:
    """Returns the change of a constant to a value."""
    return CodeChange(ROUND_CONSTANT, {}, make=lambda _: BeforeEdit(exchange(constant, value)))


def causes(trial: Trial) -> Iterator[CodeChange]:
    """Yields each constant that explains every value of the output."""
    for constant in constants_of(trial):
        if not trial.has_time:
            return
        fitting = Fitting(trial, lambda value, constant=constant: changed(constant, value))  # type: ignore[misc]
        limits = fitting.range(constant.value)
        is_addend = constant.operation.rstrip("_") in ADDENDS
        if limits is not None and not fitting.number(constant.value, limits, is_addend).is_round:
            limits = narrowed(trial, constant, limits)
        if limits is None:
            continue
        number = fitting.number(constant.value, limits, is_addend)
        value = number.value if number.value is not None else (number.low + number.high) / 2
        change = changed(constant, value)
        fit = trial.explains(change)
        if fit is None:
            continue
        expected = f"{constant.value:.6g}"
        change.trial, change.is_exact = trial, fit.error <= EXACT * trial.noise
        change.rank = ROUND_CONSTANT if number.is_round else UNROUND
        change.is_number = True
        change.is_vague = trial.is_short or not number.is_round
        change.message = {
            "kind": "constant",
            "what": f"{constant.words} is {number.phrase} (expected {expected})",
            "key": constant.operation,
            "expected": expected,
            "found": number.words,
            **constant.place.fields,
            "error_after": fit.error,
        }
        yield change


def narrowed(trial: Trial, constant: Constant, limits: tuple[float, float]) -> tuple[float, float] | None:
    """Returns the numbers that explain other wrong modules of the same class, too; None if there are none."""
    low, high = limits
    if high - low < NARROW * abs(high):
        return limits
    modules, role = dict(trial.session.model.named_modules()), role_of(trial.path)
    kind = type(trial.module) if trial.root == trial.name else None
    wrong = [site for site in sorted(trial.session.wrong) if site != trial.site]
    others = [site for site in wrong if role_of(site[0]) == role or type(modules.get(site[0])) is kind]
    for site in others[:: max(len(others) // OTHERS, 1)][:OTHERS]:
        if not trial.has_time:
            break
        other = Trial(trial.session, *site, trial.deadline - time.monotonic())
        fitting = Fitting(other, lambda value: changed(constant, value))
        found = fitting.range(constant.value)
        if found is not None:
            low, high = max(low, found[0]), min(high, found[1])
    return (low, high) if low <= high else None
