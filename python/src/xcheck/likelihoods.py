"""Log-probabilities: that readers know of which tokens they are."""

from __future__ import annotations

from typing import Any

from .errors import DumpError
from .passes import Pass
from .sequences import Sequence

BESIDE = {"top_ids": "top_logprobs", "top_logprobs": "top_ids"}


def check(rows: list[dict[str, Any]], passes: list[Pass], texts: list[Sequence]) -> None:
    """Whether each is of a token that is known in the end, and ids of likely tokens have theirs beside them."""
    rows = [row for row in rows if "tap" in row]
    tops = [(row["tap"], of_top(row)) for row in rows if row["tap"] in BESIDE]
    for tap, what in tops:
        if (BESIDE[tap], what) not in tops:
            raise DumpError(f"{tap} of pass {what[0]} needs {BESIDE[tap]} of the same shape and rows beside it")
    for row in rows:
        if row["tap"] == "token_logprobs":
            check_followers(row, passes[row["pass"]], texts)


def of_top(row: dict[str, Any]) -> tuple[int, list[int], list[int] | None]:
    """What both have in common."""
    return row["pass"], row["shape"], row.get("rows")


def check_followers(row: dict[str, Any], current: Pass, texts: list[Sequence]) -> None:
    """An entry is of the token after its own."""
    held = current.rows
    for index in row.get("rows", range(len(held.tokens))):
        owner, position = held.sequence[index], held.position[index] + 1
        if owner is not None and position >= texts[owner].known:
            raise DumpError(
                f"token_logprobs of pass {current.index}: entry {index} is of the token at position {position} of "
                f"sequence {owner}, and none is known there: give one entry less, or the continuation to generated()"
            )


def of_all_but_the_last(current: Pass, shape: tuple[int, ...]) -> range | None:
    """The rows of an array with an entry less than its pass has tokens of one sequence: nothing follows the last."""
    owners, entries = set(current.rows.sequence), len(current.rows.tokens) - 1
    is_less = len(owners) == 1 and shape in ((entries,), (1, entries))
    return range(entries) if is_less and entries else None
