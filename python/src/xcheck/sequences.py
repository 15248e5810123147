"""What each sequence has read, was asked to read, and has chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arrays import token_ids
from .errors import DumpError


@dataclass
class Sequence:
    """One text: its prompt, what follows it, and what has been read of both."""

    index: int
    prompt: str | None = None
    tokens: list[int] | None = None  # the prompt's; without them, what the first pass reads
    after: list[int] = field(default_factory=list)  # given to be read after the prompt
    forced: bool = False
    generated: list[int] | None = None
    read: list[int] = field(default_factory=list)
    found: bool = False  # the prompt was not given, but is what the first pass has read

    def extend(self, tokens: list[int]) -> None:
        """Reads tokens in a pass; without a prompt they are it."""
        if self.tokens is None:
            self.tokens, self.found = tokens, True
        self.read += tokens

    def forget(self, count: int) -> None:
        """The latest `count` tokens were read in vain."""
        self.read = self.read[: len(self.read) - count]
        if self.found and self.tokens is not None:
            self.tokens = self.tokens[: len(self.read)]

    def force(self, tokens: list[int] | None) -> None:
        """The tokens after the prompt are given."""
        self.forced = True
        self.after = tokens if tokens is not None else self.after
        self.check(self.read, 0)

    def choose(self, tokens: list[int]) -> None:
        """The greedy continuation."""
        self.generated = tokens
        self.check(self.read, 0)

    def check(self, tokens: list[int], position: int) -> None:
        """Whether tokens, read from `position` on, are those that they have to be."""
        prompt = self.tokens if self.tokens is not None else tokens
        then, whence = self.after, "the token that was given to forced()"
        if not self.forced:
            then, whence = self.generated or [], "what generated() says (if the tokens were given, call forced())"
        for place, token in enumerate(tokens, position):
            behind = place - len(prompt)
            wanted = prompt[place] if behind < 0 else then[behind] if behind < len(then) else token
            if token != wanted:
                why = "the prompt's token" if behind < 0 else whence
                raise DumpError(
                    f"sequence {self.index} reads token {token} at position {place}, where {wanted} is {why}"
                )

    @property
    def known(self) -> int:
        """From position 0 on, how many tokens the manifest tells."""
        return max(len(self.read), len(self.tokens or []) + len(self.generated or []))

    @property
    def row(self) -> dict[str, Any]:
        """What the manifest says of it."""
        prompt = {} if self.prompt is None else {"prompt": self.prompt}
        row: dict[str, Any] = {**prompt, "tokens": self.tokens or []}
        if self.forced:
            row["decode"] = "forced"
        if self.generated is not None:
            row["generated"] = self.generated
        return row


def ids(tokens: Any) -> list[int]:
    """Token ids in one row; a batch of one is one."""
    array = token_ids(tokens)
    if array.ndim == 2 and len(array) == 1:
        array = array[0]
    if array.ndim > 1:
        raise DumpError(f"token ids of one sequence have one axis, not the shape {list(array.shape)}")
    found: list[int] = array.reshape(-1).tolist()
    return found


def prompts(tokens: Any, prompt: Any) -> list[Sequence]:
    """The sequences whose prompts were given: as ids, one list or a list of lists, and as text likewise."""
    several = isinstance(tokens, (list, tuple)) and tokens and np.ndim(tokens[0]) > 0
    rows = [] if tokens is None else [ids(row) for row in tokens] if several else [ids(tokens)]
    texts = [prompt] if prompt is None or isinstance(prompt, str) else list(prompt)
    if len(texts) > 1 and rows and len(rows) != len(texts):
        raise DumpError(f"{len(texts)} prompts, but tokens of {len(rows)}")
    if len(texts) == 1:
        texts += [None] * (len(rows) - 1)
    if not rows and texts == [None]:
        return []
    given: list[list[int] | None] = [*rows] if rows else [None] * len(texts)
    return [Sequence(index, text, row) for index, (text, row) in enumerate(zip(texts, given))]
