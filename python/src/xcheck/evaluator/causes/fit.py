"""Fits of one number: the value with the least error, and the range of values that explain an output."""

from __future__ import annotations

import math
from typing import Callable

import torch

from ..tracked import Settings, exact_of
from .change import Change
from .round_numbers import Number, bounds, chosen
from .trial import Exact, Fit, Trial

STEPS = 48
SPAN = 12.0
GRID = 36
REFINED = 1e-4  # relative distance in which a better number is sought


class Fitting:
    """The error of a module's output as a function of one number."""

    def __init__(self, trial: Trial, make: Callable[[float], Change], grid: int = GRID, span: float = SPAN):
        self.trial = trial
        self.make = make
        self.grid = grid
        self.span = span
        self.found: float | None = None  # the first value that explains the output

    def fit(self, value: float) -> Fit:
        try:
            found = self.trial.fit(self.make(value))
        except Exception:  # the modelling code refuses the number
            found = None
        if found is None or math.isnan(found.error):
            return Fit(float("inf"), 1)
        if found.is_close and self.found is None:
            self.found = value
        return found

    def error(self, value: float) -> float:
        return self.fit(value).error

    def range(self, start: float) -> tuple[float, float] | None:
        """Returns the smallest and the largest number that explain every value; None if there are none."""
        best = self.least(start)
        if best is None:
            return None
        value = self.found if self.found is not None else best
        if self.trial.explains(self.make(value)) is None:
            value = self.refined(value)
            if self.trial.explains(self.make(value)) is None:
                return None
        sigma = self.trial.last_sigma
        assert sigma is not None
        low, high = bounds(lambda other: self.fits(other, sigma), value)
        return None if low <= start <= high else (low, high)

    def number(self, start: float, limits: tuple[float, float], is_addend: bool = False) -> Number:
        """Returns the number that a range stands for."""
        low, high = limits
        number = chosen(low, high, forms(self.trial, start), is_addend)
        if number.is_round:
            return number
        ends = low / start, high / start
        ratio = chosen(min(ends), max(ends), [], False)
        if ratio.value is None or not ratio.is_round:
            return number
        return Number(low, high, ratio.value * start, True, f"{ratio.words} times the expected one")

    def fits(self, value: float, sigma: torch.Tensor) -> bool:
        """Returns true if a number explains every value, with the error bounds of a number near it."""
        try:
            output = self.trial.run(Exact(Settings(0)), self.make(value))
        except Exception:
            return False
        return output is not None and self.trial.count(exact_of(output), sigma) == 0

    def least(self, start: float) -> float | None:
        """Returns the value with the least error; None if the time is over, or no value changes the output."""
        probes = [start, 1.5 * start, 0.5 * start]
        errors = [self.error(value) for value in probes]
        finite = [error for error in errors if math.isfinite(error)]
        if not finite or max(finite) - min(finite) <= 1e-12 * max(finite):
            return None  # the output does not depend on this number
        special = [1.0, -start, start**2, start**0.5 if start > 0 else 1.0, 1 / start, 0.0]
        tried = [(self.error(value), value) for value in dict.fromkeys(special)]
        grid = [-self.span + 2 * self.span * step / (self.grid - 1) for step in range(self.grid)]
        errors = []
        for step in grid:
            if not self.trial.has_time:
                return None
            errors.append(self.error(start * math.exp(step)))
        best = min(range(self.grid), key=lambda at: errors[at])
        if math.isfinite(errors[best]):
            low, high = grid[max(best - 1, 0)], grid[min(best + 1, self.grid - 1)]
            step, error = self.golden(lambda at: self.error(start * math.exp(at)), low, high)
            tried.append((error, start * math.exp(step)))
        return min(tried)[1]

    def refined(self, value: float) -> float:
        """Returns the number with the least error near one that explains the values almost."""
        width = REFINED * abs(value)
        return self.golden(self.error, value - width, value + width, until_found=False)[0]

    def golden(
        self, function: Callable[[float], float], low: float, high: float, until_found: bool = True
    ) -> tuple[float, float]:
        """Returns the place and the value of a minimum."""
        ratio = (math.sqrt(5) - 1) / 2
        first, second = high - ratio * (high - low), low + ratio * (high - low)
        of_first, of_second = function(first), function(second)
        for _ in range(STEPS):
            is_found = until_found and self.found is not None
            if not self.trial.has_time or is_found or high - low < 1e-9 * max(1.0, abs(high)):
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


def forms(trial: Trial, start: float) -> list[tuple[str, float]]:
    """Returns numbers that models derive from the present one, or from the sizes of their configuration."""
    found = [("1", 1.0), ("the expected value squared", start**2), ("1 / the expected value", 1 / start)]
    if start > 0:
        found.append(("the root of the expected value", start**0.5))
    for size in sizes(trial.session.model.config.get_text_config().to_dict()):
        found += [(f"1/sqrt({size})", size**-0.5), (f"sqrt({size})", size**0.5), (f"1/{size}", 1 / size)]
    return [(form, value) for form, value in found if abs(value - start) > 1e-6 * abs(start)]


def sizes(config: dict) -> list[int]:  # type: ignore[type-arg]
    """Returns the sizes of a configuration, and those of its heads."""
    found = {value for value in config.values() if isinstance(value, int) and not isinstance(value, bool) and value > 1}
    heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    if isinstance(heads, int) and isinstance(width, int) and heads and width % heads == 0:
        found.add(width // heads)
    return sorted(found)
