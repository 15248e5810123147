"""Choices that rounding can decide, and the values that depend on them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from .modules import ATTENTION, NORM

BY_EXPERT = re.compile(r"(^|\.)experts\.")  # modules whose rows are not the tokens of a pass


@dataclass
class Choice:
    """One choice of some values of each row. `must` and `may` have the shape of the scores."""

    path: str  # module that makes the choice
    tied: torch.Tensor  # rows in which rounding can decide
    indices: torch.Tensor
    must: torch.Tensor  # chosen whatever the rounding
    may: torch.Tensor  # chosen or not, as rounding decides
    rows: torch.Tensor | None = None  # tied tokens; None for all that follow


def tied_tokens(tied: torch.Tensor, chosen_from: int, tokens: int) -> torch.Tensor | None:
    """Returns the tokens whose choices rounding can decide; None if the axis of the tokens is not known."""
    axes = [axis for axis, length in enumerate(tied.shape) if length == tokens]
    if len(axes) != 1 or chosen_from == tokens:
        return tied.reshape(-1) if tied.numel() == tokens and chosen_from != tokens else None
    others = [axis for axis in range(tied.dim()) if axis != axes[0]]
    return tied.any(others) if others else tied


def unknown_choice(path: str) -> Choice:
    """Returns a choice of which only the module is known."""
    nothing = torch.zeros(0, dtype=torch.bool)
    return Choice(path, nothing, nothing, nothing, nothing)


class Ties:
    """The choices that rounding can decide, from where they are made until their effect is known."""

    def __init__(self, model: Any):
        self.classes = {name: type(module).__name__ for name, module in model.named_modules()}
        self.open: list[Choice] = []

    def note(self, choice: Choice, chosen_from: int, tokens: int) -> None:
        """Adds a choice that a module makes in a pass of some tokens."""
        choice.rows = tied_tokens(choice.tied, chosen_from, tokens)
        self.open.append(choice)

    def add(self, choices: list[Choice]) -> None:
        """Adds choices again."""
        self.open += choices

    def take(self, module: str) -> list[Choice]:
        """Removes and returns the choices inside a module."""
        taken = [choice for choice in self.open if is_within(choice.path, module)]
        self.open = [choice for choice in self.open if not is_within(choice.path, module)]
        return taken

    def is_mixer(self, module: str) -> bool:
        """Returns true for a module that may pass values from one token to another."""
        name = self.classes.get(module, "")
        return bool(ATTENTION.search(name)) and not NORM.search(name)

    def left(self, module: str) -> None:
        """Notes that a module has run: after attention, all tokens depend on a choice."""
        if self.is_mixer(module):
            for choice in self.open:
                choice.rows = None

    def confused(self, module: str, value: torch.Tensor, tokens: int) -> None:
        """Notes values of another choice: if rows are sorted by expert, it is unknown whose they are."""
        if token_axis(module, value, tokens) is None:
            for choice in self.open:
                choice.rows = None

    def undetermined(self, module: str, value: torch.Tensor, tokens: int) -> torch.Tensor | None:
        """Returns true for the values of an output that depend on a tied choice; None if there are none."""
        if not self.open:
            return None
        axis, rows = token_axis(module, value, tokens), torch.zeros(tokens, dtype=torch.bool)
        for choice in self.open:
            if axis is None or choice.rows is None or len(choice.rows) != tokens:
                return torch.ones((), dtype=torch.bool)
            rows |= choice.rows
        assert axis is not None
        return rows.reshape(*([1] * axis), -1, *([1] * (value.dim() - axis - 1)))

    def chosen(self, stored: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        """Returns the exact indices. Rows that differ only in order or by rounding keep the recorded ones."""
        if not exact.dim() or stored.shape != exact.shape:
            return exact
        recorded = stored.to(exact.dtype)
        same = (recorded.sort(-1).values == exact.sort(-1).values).all(-1)
        for choice in self.open:
            if choice.indices.shape == exact.shape and torch.equal(choice.indices.to(exact.dtype), exact):
                same |= allowed(recorded.long(), choice)
        return torch.where(same.unsqueeze(-1), recorded, exact)


def token_axis(module: str, value: torch.Tensor, tokens: int) -> int | None:
    """Returns the axis of the tokens: [batch of one, token, ...] or [token, ...]."""
    shape = tuple(value.shape)
    if BY_EXPERT.search(module) or len(shape) < 2:
        return None
    if shape[0] == 1 and shape[1] == tokens:
        return 1
    return 0 if shape[0] == tokens else None


def allowed(recorded: torch.Tensor, choice: Choice) -> torch.Tensor:
    """Returns true for the rows whose recorded choice is one that rounding can make."""
    count = choice.must.shape[-1]
    inside = (recorded >= 0) & (recorded < count)
    taken = torch.zeros_like(choice.must)
    taken.scatter_(-1, recorded.clamp(0, count - 1), True)
    distinct = taken.sum(-1) == recorded.shape[-1]
    only = ~(taken & ~(choice.must | choice.may)).any(-1)
    return inside.all(-1) & distinct & only & (taken | ~choice.must).all(-1)


def is_within(path: str, module: str) -> bool:
    """Returns true if `module` is `path` or contains it."""
    return module in ("", "logits") or path == module or path.startswith(module + ".")
