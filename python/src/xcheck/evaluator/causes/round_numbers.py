"""The number that a fit stands for: the roundest one in the range of numbers that explain every value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Callable

STEPS = 14  # halvings of each side of the range
DOUBLINGS = 40
NARROW = 1e-3  # width of a range, relative to its middle, that determines the number well enough
CERTAIN = 1e-4  # relative width in which an expression of the sizes is no accident
SHARE = 0.2  # width of a range, in steps of a decimal digit, in which a round number is no accident
MANY = 12  # more candidates of one length are not listed


@dataclass(frozen=True)
class Number:
    """A fitted number and its range. `value` is None if several numbers are equally likely."""

    low: float
    high: float
    value: float | None
    is_round: bool = False
    of: str = ""  # an expression with this value, such as 1/sqrt(64)

    @property
    def words(self) -> str:
        if self.value is None:
            return f"{shown(self.low, 3)} to {shown(self.high, 3)}"
        return shown(self.value, 6)

    @property
    def phrase(self) -> str:
        """The number in a sentence."""
        if self.value is None:
            return f"a number from {self.words}"
        return f"{self.words} = {self.of}" if self.of else self.words


def shown(value: float, digits: int) -> str:
    return f"{value:.{digits}g}"


def bounds(fits: Callable[[float], bool], value: float) -> tuple[float, float]:
    """Returns the smallest and the largest number around a value that fits."""
    return edge(fits, value, -1.0), edge(fits, value, 1.0)


def edge(fits: Callable[[float], bool], value: float, side: float) -> float:
    """Returns the last number that fits on one side of a value."""
    size = abs(value) or 1.0
    inside, step = value, 1e-8 * size
    for _ in range(DOUBLINGS):
        beyond = value + side * step
        if not fits(beyond):
            break
        inside, step = beyond, 2 * step
    else:
        return inside
    for _ in range(STEPS):
        middle = (inside + beyond) / 2
        if fits(middle):
            inside = middle
        else:
            beyond = middle
    return inside


def decimals(low: float, high: float, digits: int) -> tuple[list[float], float]:
    """Returns the numbers with so many significant digits within a range, and the distance between them."""
    size = max(abs(low), abs(high))
    if size == 0 or low <= 0 <= high:
        return [0.0], size
    exponent = math.floor(math.log10(size)) - digits + 1
    step = Decimal(1).scaleb(exponent)
    first, last = math.ceil(Decimal(low) / step), math.floor(Decimal(high) / step)
    found = [float(number * step) for number in range(first, min(last, first + MANY) + 1)]
    return found, float(step)


def chosen(low: float, high: float, forms: Iterable[tuple[str, float]], is_addend: bool) -> Number:
    """Returns the number that a range stands for. `forms` are expressions of the model's sizes with their values.

    A number with few digits is likely if it is the only one of its length, and the range is so narrow that it would
    hardly contain one by accident. Small addends, such as the epsilon of a norm, are numbers of one digit.
    """
    width, middle = high - low, (low + high) / 2
    special = {form: value for form, value in forms if low <= value <= high}
    relative = width / max(abs(middle), 1e-300)
    for digits in range(1, 17):
        found, step = decimals(low, high, digits)
        if not found:
            continue
        sure = len(found) == 1 and (width < SHARE * step or (digits == 1 and is_addend))
        others = [value for value in special.values() if abs(value - found[0]) > 1e-6 * abs(value)]
        if sure and digits <= 4 and (not others or digits == 1):
            return Number(low, high, found[0], True)
        break
    if relative < NARROW or width < 1e-12:
        if special and relative < CERTAIN:
            form, value = next(iter(special.items()))
            return Number(low, high, value, True, form)
        return Number(low, high, shortest(low, high), False)
    return Number(low, high, None)


def shortest(low: float, high: float) -> float:
    """Returns the number with the fewest digits in a range, near its middle."""
    middle = (low + high) / 2
    for digits in range(1, 17):
        short = float(f"{middle:.{digits}g}")
        if low <= short <= high:
            return short
    return middle
