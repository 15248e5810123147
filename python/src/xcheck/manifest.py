"""The manifest, in the lowest version of the contract that can say what the dump holds."""

from __future__ import annotations

from typing import Any

from .arrays import SHORT
from .passes import Pass
from .sequences import Sequence

BEYOND_VERSION_1 = ("of", "rows", "scale", "computed")  # what a row may say in version 2 alone


def build(
    head: dict[str, Any], sequences: list[Sequence], passes: list[Pass], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """All of it; `head` is what Dump was told of producer and model."""
    one = len(sequences) == 1 and all(current.plain for current in passes)
    version = 1 if one and not any(map(is_beyond, rows)) else 2
    manifest = {"format": "xcheck-dump", "version": version, **head}
    if one:
        told = sequences[0].row
        generated = told.pop("generated", None)
        manifest["input"] = {"decode": "greedy", **told}
        manifest["passes"] = [current.row(plain=True) for current in passes]
        if generated is not None:
            manifest["generated"] = generated
    else:
        manifest["input"] = {"sequences": [sequence.row for sequence in sequences]}
        manifest["passes"] = [current.row(plain=False) for current in passes]
    manifest["tensors"] = rows
    return manifest


def is_beyond(row: dict[str, Any]) -> bool:
    """Whether a row of a tensor says what version 1 cannot."""
    return any(key in row for key in BEYOND_VERSION_1) or row["dtype"] in SHORT or "#" in row["file"]
