"""The manifest, in the lowest version of the contract that can say what the dump holds."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from .arrays import SHORT
from .errors import DumpError
from .passes import Pass
from .sequences import Sequence

BEYOND_VERSION_1 = ("of", "rows", "scale", "computed", "step")  # what a row may say in version 2 alone


def plain(name: str, told: Any) -> Any:
    """What was told, as the manifest will have it: looked at before the run, and not after it."""
    try:
        text = json.dumps(told, allow_nan=False, ensure_ascii=False, default=number)
        text.encode()
    except (TypeError, ValueError) as error:  # of UTF-8, too
        raise DumpError(f"{name}: {told!r} cannot stand in the manifest: {error}") from None
    return json.loads(text)


def number(value: Any) -> Any:
    """One of NumPy's as Python's."""
    if isinstance(value, np.generic) and not isinstance(value.item(), np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} is neither text, number, list nor dictionary")


def build(
    head: dict[str, Any],
    sequences: list[Sequence],
    passes: list[Pass],
    rows: list[dict[str, Any]],
    inputs: dict[str, list[dict[str, Any]]],
) -> dict[str, Any]:
    """All of it; `head` is what Dump was told of producer and model, `inputs` the arrays that a model was given."""
    one = len(sequences) <= 1 and all(current.plain for current in passes)
    version = 1 if one and not any(map(is_beyond, rows)) else 2
    manifest = {"format": "xcheck-dump", "version": version, **head}
    if one:
        told = sequences[0].row if sequences else {"tokens": []}
        generated = told.pop("generated", None)
        manifest["input"] = {"decode": "greedy", **told}
        manifest["passes"] = [current.row(plain=True) for current in passes]
        if generated is not None:
            manifest["generated"] = generated
    else:
        manifest["input"] = {"sequences": [sequence.row for sequence in sequences]}
        manifest["passes"] = [current.row(plain=False) for current in passes]
    if inputs:
        manifest["inputs"] = {name: entries[0] if len(entries) == 1 else entries for name, entries in inputs.items()}
    manifest["tensors"] = rows
    return manifest


def is_beyond(row: dict[str, Any]) -> bool:
    """Whether a row of a tensor says what version 1 cannot."""
    return any(key in row for key in BEYOND_VERSION_1) or row["dtype"] in SHORT or "#" in row["file"]
