"""Other choices that rounding can make, and the outputs that follow from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations, islice
from typing import Any

import torch
from transformers.cache_utils import Cache

from .bounds import over
from .candidate import Row
from .forcing import Forcing
from .outputs import recorded
from .ties import Choice, is_within, token_axis

MOST = 6  # other choices of a token that are tried


class Reached(Exception):
    """Ends a run at the module in question."""


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


def outputs(forcing: Forcing, row: Row, choices: list[Choice]) -> Iterator[torch.Tensor]:
    """Yields a module's output for each other choice: the smallest module around it and the choosing ones runs again."""
    path = around([row.module, *(choice.path for choice in choices)])
    given = forcing.given.get(path)
    calls = forcing.calls.get(path, 0) - (path == row.module)
    if given is None or not path or calls or any(is_cache(part) for part in (*given[0], *given[1].values())):
        return  # a cache would be added to twice
    for number in range(MOST):
        found: list[bool] = []

        def choose(choice: Choice, _: int, number: int = number, found: list[bool] = found) -> torch.Tensor | None:
            indices = another(choice, number)
            found.append(indices is not None)
            return indices

        value = output_again(forcing, row, path, choose)
        if not any(found):
            return
        if value is not None and tuple(value.shape) == row.shape:
            yield value


def is_cache(part: Any) -> bool:
    """Returns true for a cache; those of some models have a class of their own."""
    return isinstance(part, Cache) or "Cache" in type(part).__name__


def around(paths: list[str]) -> str:
    """Returns the smallest module that is or contains all of these."""
    parts = paths[0].split(".")
    while parts and not all(is_within(path, ".".join(parts)) for path in paths):
        parts.pop()
    return ".".join(parts)


def output_again(forcing: Forcing, row: Row, path: str, choose: Any) -> torch.Tensor | None:
    """Runs a module again, with other choices, and returns the output in question."""
    args, kwargs = forcing.given[path]
    reached: list[torch.Tensor] = []

    def look(other: Row, value: torch.Tensor) -> None:
        if other.site == row.site:
            reached.append(value)
            raise Reached

    with repeating(forcing, path, look), forcing.evaluation:
        forcing.evaluation.on_tie = choose
        try:
            value = recorded(forcing.model.get_submodule(path).forward(*args, **kwargs))
        except Reached:
            return reached[0]
        except (RuntimeError, ValueError, IndexError, TypeError):
            return None  # a module that cannot run twice
    return value if path == row.module else None


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
        yield
    finally:
        vars(forcing).update(functions)
        forcing.evaluation.on_tie = on_tie
        forcing.calls, forcing.seen, forcing.given = calls, seen, given
        forcing.stack[:] = stack


def explained(
    row: Row,
    stored: torch.Tensor,
    judged: tuple[torch.Tensor, torch.Tensor],
    others: Iterator[tuple[torch.Tensor, torch.Tensor]],
    tokens: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the exact values and sigmas; where another choice explains a token's values, those of that choice."""
    exact, sigma = judged
    axis = token_axis(row.module, exact, tokens)
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
