"""Rearranged outputs: the candidate's values are those of the model in another order, or are all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..bounds import over
from ..outputs import recorded, replaced
from ..rounding import as_tracked
from ..tracked import Settings, exact_of, fresh
from .change import OPERATION, WEIGHT, Change, Run
from .keys import explains
from .trial import Exact, Trial

LARGEST = 2048  # channels of which an order is sought
SHOWN = 16  # channels whose order is listed


@dataclass
class Rearranged(Change):
    """An output that is computed from the module's own one."""

    inside: str = ""  # path of the module within the one that is run
    function: Callable[[torch.Tensor], torch.Tensor] = torch.clone
    is_order: bool = True  # True if the function moves values; False if it makes others

    @contextmanager
    def installed(self, run: Run) -> Iterator[None]:
        def hook(module: Any, args: Any, output: Any) -> Any:
            value = recorded(output)
            if run.forcing.paused or value is None:
                return None
            with _disable_current_modes():
                tracked = as_tracked(value)
                variance = tracked.variance()
                moved = None if variance is None or not self.is_order else self.function(variance)
                return replaced(output, fresh(self.function(tracked.exact).clone(), tracked.dtype, moved))

        def make(path: str, module: Any) -> Any:
            target = run.part(module, self.inside)
            if target is None:
                return module.register_forward_hook(lambda *_: None)
            return target.register_forward_hook(hook, prepend=True)

        with run.hooks(make):
            yield


def causes(trial: Trial) -> Iterator[Change]:
    """Yields an order of the output's channels, or one number, that explains every value."""
    output = trial.run(Exact(Settings(0)))
    if output is None or output.dim() < 2 or trial.name == "" or trial.sigma is None:
        return
    inside = trial.name[len(trial.root) :].lstrip(".") if trial.root else trial.name
    key = f"{trial.name}.weight" if hasattr(trial.module_of_site, "weight") else trial.name
    exact = exact_of(output)
    order = channel_order(trial, exact)
    if order is not None:
        what = {"kind": "weight", "what": f"the rows of {key} are in another order: {shown(order)}", "key": key}
        index = torch.tensor(order)
        change = Rearranged(WEIGHT, what, True, inside=inside, function=lambda value: value[..., index])
        if explains(trial, change):
            yield change
    first = float(trial.want.reshape(-1)[0])
    if bool((trial.want == first).all()) and trial.want.numel() > 1 and not bool((exact == first).all()):
        text = f"{trial.path} is left out: every value of its output is {first:g}"
        constant = Rearranged(OPERATION, {"kind": "operation", "what": text, "key": trial.path}, inside=inside,
                              function=lambda value: torch.full_like(value, first), is_order=False)  # fmt: skip
        if explains(trial, constant):
            yield constant


def channel_order(trial: Trial, exact: torch.Tensor) -> list[int] | None:
    """Returns the model's channel for each channel of the candidate; None if they do not correspond one to one."""
    width = exact.shape[-1]
    rows = exact.numel() // width
    if not 1 < width <= LARGEST or rows < 2 or trial.sigma is None:
        return None
    want, own = trial.stored.reshape(rows, width), exact.reshape(rows, width)
    sigma = trial.sigma.reshape(rows, width)
    order: list[int] = []
    for channel in range(width):
        fits = ~over(want[:, channel : channel + 1].expand(rows, width), own, sigma).any(0)
        places = fits.nonzero().flatten().tolist()
        if len(places) != 1:
            return None
        order += places
    is_order = sorted(order) == list(range(width)) and order != list(range(width))
    return order if is_order else None


def shown(order: list[int]) -> str:
    """Describes an order: by the axes that are exchanged, if there are such axes."""
    count = len(order)
    for one in divisors(count):
        for two in divisors(count // one):
            sizes = [one, two, count // one // two]
            for axes in list(permutations(range(3)))[1:]:
                made = torch.arange(count).view(sizes).permute(axes).reshape(-1).tolist()
                if made == order:
                    kept = [(size, axis) for size, axis in zip(sizes, range(3)) if size > 1]
                    names = " x ".join(str(size) for size, _ in kept)
                    numbers = {axis: at for at, (_, axis) in enumerate(kept)}
                    to = ", ".join(str(numbers[axis]) for axis in axes if axis in numbers)
                    return f"as {names} with the axes in the order {to}"
    few = ", ".join(map(str, order[:SHOWN]))
    return few + (", ..." if count > SHOWN else "")


def divisors(count: int) -> list[int]:
    return [number for number in range(1, count + 1) if count % number == 0]
