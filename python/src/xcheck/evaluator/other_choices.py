"""Other choices that rounding can make, and the outputs that follow from them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import combinations, islice
from typing import Any, Callable, Optional

import torch
from torch.utils._python_dispatch import _disable_current_modes
from transformers.cache_utils import Cache

from .bounds import over
from .candidate import Row
from .forcing import Forcing
from .outputs import recorded
from .ties import BY_EXPERT, Choice, is_within, token_axis
from .tracked import Tracked, exact_of, fresh

MOST = 6  # number of other choices that are tried for each token
SAME = 1e-12  # difference of equal values in f64, relative to the largest one
EXPERTS = re.compile(r"(.*?(?:^|\.)experts)\.")  # path of the experts module that contains a module

Judged = tuple[torch.Tensor, torch.Tensor]  # exact values and sigmas
Sigma = Callable[[torch.Tensor, torch.dtype], torch.Tensor]
RecordedExperts = Callable[[Choice, Forcing], Optional[torch.Tensor]]
Tied = dict[tuple[str, int], torch.Tensor]


class Outputs(dict[tuple[str, int, int], Judged]):
    """Outputs inside a module that ran again, by site. `whole` is the output of the module itself."""

    whole: Optional[torch.Tensor] = None


def another(choice: Choice, number: int) -> torch.Tensor | None:
    """Returns the indices, with each tied row's other choice `number`, from 0; None if no row has that many."""
    count = choice.indices.shape[-1]
    indices = choice.indices.reshape(-1, count).clone()
    must, may = (part.reshape(len(indices), -1) for part in (choice.must, choice.may))
    is_other = False
    for row in choice.tied.reshape(-1).nonzero().flatten().tolist():
        fixed = must[row].nonzero().flatten().tolist()
        options = combinations(may[row].nonzero().flatten().tolist(), count - len(fixed))
        others = (fixed + list(some) for some in options if set(fixed).union(some) != set(indices[row].tolist()))
        found = next(islice(others, number, None), None)
        if found is not None:
            indices[row], is_other = torch.tensor(found), True
    return indices.view_as(choice.indices) if is_other else None


class OtherChoices:
    """Runs a block again with other choices: one run for each choice, which gives the outputs of all modules inside."""

    def __init__(self, forcing: Forcing, sigma: Sigma, recorded_experts: RecordedExperts):
        self.forcing = forcing
        self.sigma = sigma
        self.recorded_experts = recorded_experts
        self.path = ""  # module that ran again
        self.choices: list[Choice] = []
        self.runs: list[Outputs | None] = []  # by the number of the other choice; None if there is no such choice
        self.tied_path = ""  # experts module of the next two fields
        self.tied_choices: list[Choice] = []
        self.from_tied: Tied = {}

    def outputs(self, row: Row, choices: list[Choice]) -> Iterator[Judged]:
        """Yields a module's output for each other choice. Runs the smallest module that contains it and the routers."""
        path = around([row.module, *(choice.path for choice in choices)])
        if not path or not self.is_repeatable(path, path == row.module):
            return
        if path != self.path or not is_same(choices, self.choices):
            self.path, self.choices, self.runs = path, list(choices), []
        for number in range(MOST):
            if number == len(self.runs):
                self.runs.append(self.run(path, number))
            found = self.runs[number]
            if found is None:
                return
            made = found.get(row.site)
            if row.module == path and found.whole is not None and tuple(found.whole.shape) == row.shape:
                made = exact_of(found.whole), self.sigma(found.whole, row.dtype)
            if made is not None:
                yield made

    def is_the_same(self, row: Row, exact: torch.Tensor, choices: list[Choice]) -> bool:
        """Returns true if every other choice gives the same output, which therefore does not depend on the choice."""
        found = list(self.outputs(row, choices))
        is_complete = 0 < len(found) == len(self.runs) - 1 and self.runs[-1] is None
        limit = SAME * exact.abs().max() if exact.numel() else 0.0
        return is_complete and all(bool(((value - exact).abs() <= limit).all()) for value, _ in found)

    def is_repeatable(self, path: str, has_run: bool) -> bool:
        """Returns true if a module may run again: for its first call, and without a cache, which would grow twice."""
        given = self.forcing.given.get(path)
        calls = self.forcing.calls.get(path, 0) - has_run
        return given is not None and not calls and not any(is_cache(part) for part in (*given[0], *given[1].values()))

    def run(self, path: str, number: int) -> Outputs | None:
        """Runs a module with the other choice `number`; returns the outputs inside. None if no row has so many."""
        forcing, outputs, is_other = self.forcing, Outputs(), [False]
        args, kwargs = forcing.given[path]

        def choose(choice: Choice, _: int) -> torch.Tensor | None:
            stated = self.recorded_experts(choice, forcing)
            indices = another(choice, number)
            is_other[0] |= indices is not None
            return stated if indices is None else indices

        def look(row: Row, value: torch.Tensor) -> None:
            outputs[row.site] = exact_of(value), self.sigma(value, row.dtype)

        with repeating(forcing, path, look), forcing.evaluation:
            forcing.evaluation.on_tie = choose
            with suppress(RuntimeError, ValueError, IndexError, TypeError):  # a module that cannot run twice
                outputs.whole = recorded(forcing.model.get_submodule(path).forward(*args, **kwargs))
        return outputs if is_other[0] else None

    def undetermined(self, row: Row, choices: list[Choice], tokens: int) -> torch.Tensor | None:
        """Returns a mask of the values inside experts that depend on a tied choice; None if it cannot be determined."""
        found = EXPERTS.match(row.module)
        path = found.group(1) if found is not None else ""
        tied = tied_of(choices, tokens)
        if not path or tied is None or not self.is_repeatable(path, False):
            return None
        several = len(self.forcing.calls_of[row.module, row.pass_number]) > 1
        if several and not are_same_experts(self.forcing.model.get_submodule(path), choices):
            return None  # the same call number may mean different experts
        if path != self.tied_path or not is_same(choices, self.tied_choices):
            self.tied_path, self.tied_choices = path, list(choices)
            self.from_tied = marked(self.forcing, path, tied)
        mask = self.from_tied.get((row.module, self.forcing.calls.get(row.module, 0) - 1))
        if mask is None or tuple(mask.shape) != row.shape:
            return None
        return mask if self.forcing.order_of_rows is None else mask[self.forcing.order_of_rows]


def is_same(choices: list[Choice], others: list[Choice]) -> bool:
    return len(choices) == len(others) and all(one is other for one, other in zip(choices, others))


def tied_of(choices: list[Choice], tokens: int) -> torch.Tensor | None:
    """Returns a mask of the tokens whose choices rounding can decide; None if it is unknown."""
    rows = [choice.rows for choice in choices if choice.rows is not None and len(choice.rows) == tokens]
    return torch.stack(rows).any(0) if rows and len(rows) == len(choices) else None


def are_same_experts(module: Any, choices: list[Choice]) -> bool:
    """Returns true if all choices call the same experts: each expert that rounding can drop has an untied token."""
    count = getattr(module, "num_experts", None)

    def has_others(choice: Choice) -> bool:
        tied = choice.tied.unsqueeze(-1)
        sure = torch.zeros_like(choice.must).scatter_(-1, choice.indices, True) & ~tied | choice.must
        may = choice.may & tied
        return not bool((may.reshape(-1, count).any(0) & ~sure.reshape(-1, count).any(0)).any())

    return all(choice.must.shape[-1] == count and has_others(choice) for choice in choices)


def marked(forcing: Forcing, path: str, tied: torch.Tensor) -> Tied:
    """Returns masks of the values inside an experts module that depend on tied tokens, by module and call.

    The module runs again with NaN in the rows of these tokens.
    """
    found: Tied = {}
    calls: dict[str, int] = {}
    tokens = len(tied)

    def with_nan(part: Any) -> Any:
        axis = token_axis(path, part, tokens) if isinstance(part, Tracked) else None
        if axis is None:
            return part
        with _disable_current_modes():
            exact = part.exact.clone()
            exact[(slice(None),) * axis + (tied,)] = torch.nan
            return fresh(exact, part.dtype)

    def keep(name: str) -> Callable[..., None]:
        def hook(module: Any, args: Any, output: Any) -> None:
            value, call = recorded(output), calls.get(name, 0)
            calls[name] = call + 1
            if isinstance(value, Tracked):
                with _disable_current_modes():
                    found[name, call] = value.exact.isnan()

        return hook

    module, on_tie = forcing.model.get_submodule(path), forcing.evaluation.on_tie
    handles = [part.register_forward_hook(keep(f"{path}.{name}")) for name, part in module.named_modules() if name]
    args, kwargs = forcing.given[path]
    forcing.paused, forcing.evaluation.on_tie = True, lambda choice, count: None
    try:
        with forcing.evaluation:
            output = recorded(module.forward(*map(with_nan, args), **{k: with_nan(v) for k, v in kwargs.items()}))
    except (RuntimeError, ValueError, IndexError, TypeError):  # a module that cannot run twice
        return {}
    finally:
        forcing.paused, forcing.evaluation.on_tie = False, on_tie
        for handle in handles:
            handle.remove()
    axis = token_axis(path, output, tokens) if isinstance(output, Tracked) else None
    if axis is None or not bool(exact_of(output).isnan().movedim(axis, 0)[tied].all()):
        return {}  # the module does not pass NaN on
    return found


def is_cache(part: Any) -> bool:
    """Returns true for a cache; those of some models have a class of their own."""
    return isinstance(part, Cache) or "Cache" in type(part).__name__


def around(paths: list[str]) -> str:
    """Returns the smallest module that is or contains all of these."""
    parts = paths[0].split(".")
    while parts and not all(is_within(path, ".".join(parts)) for path in paths):
        parts.pop()
    return ".".join(parts)


@contextmanager
def repeating(forcing: Forcing, path: str, look: Any) -> Iterator[None]:
    """Keeps the state of the run while a module runs again; `look` gets the outputs inside of it."""
    functions = {
        name: getattr(forcing, name) for name in ("on_site", "on_missing", "on_choices", "on_open", "on_leave")
    }
    calls, seen, stack, given = dict(forcing.calls), forcing.seen, list(forcing.stack), dict(forcing.given)
    on_tie = forcing.evaluation.on_tie
    forcing.on_site, forcing.on_leave = look, lambda path: None
    forcing.on_missing, forcing.on_choices, forcing.on_open = (
        lambda row, why: None,
        lambda path: [],
        lambda choices: None,
    )
    for name in [name for name in calls if name.startswith(f"{path}.")]:
        del forcing.calls[name]
    forcing.seen = {site for site in seen if not site[0].startswith(f"{path}.") or site[2] != forcing.pass_number}
    try:
        with forcing.taps_again():
            yield
    finally:
        vars(forcing).update(functions)
        forcing.evaluation.on_tie = on_tie
        forcing.calls, forcing.seen, forcing.given = calls, seen, given
        forcing.stack[:] = stack


def explained(
    row: Row,
    stored: torch.Tensor,
    judged: Judged,
    others: Iterator[Judged],
    tokens: int,
) -> Judged:
    """Returns the exact values and sigmas; where another choice explains a token's values, those of that choice."""
    exact, sigma = judged
    axis = 0 if BY_EXPERT.search(row.module) and exact.dim() == 2 else token_axis(row.module, exact, tokens)
    axes = [at for at in range(exact.dim()) if at != axis]

    def wrong(values: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
        above = over(stored, values, spread)
        return above.any(axes, keepdim=True) if axes else above  # type: ignore[call-overload]

    for value, spread in others:
        taken = wrong(exact, sigma) & ~wrong(value, spread)
        exact, sigma = torch.where(taken, value, exact), torch.where(taken, spread, sigma)
        if not bool(wrong(exact, sigma).any()):
            break
    return exact, sigma
