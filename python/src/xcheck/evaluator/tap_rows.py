"""Recorded taps of a dump, and their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch

from .errors import EvaluatorError

ReadFile = Callable[[str], torch.Tensor]


@dataclass
class TapRow:
    """One recorded tap. `whole`, `start` and `end` cut it from an array that holds several taps."""

    tap: str
    layer: int | None
    pass_number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    file: str
    axes: tuple[str, ...] | None
    tokens: tuple[int, ...] | None  # the rows of the pass that are recorded; None for all
    whole: tuple[int, ...] | None
    start: tuple[int, ...]
    end: tuple[int, ...]
    scale: float | str
    problem: str | None  # reason why the values cannot be judged

    @property
    def site(self) -> tuple[str, int | None, int]:
        return self.tap, self.layer, self.pass_number

    @property
    def name(self) -> dict[str, Any]:
        """The fields of a message that name the tap."""
        layer = {} if self.layer is None else {"layer": self.layer}
        return {"tap": self.tap, **layer, "pass": self.pass_number}

    @property
    def is_plain(self) -> bool:
        """True if the stored array has just the values of the tap, of all tokens."""
        return self.tokens is None and self.whole is None and self.scale == 1.0

    def value(self, read_file: ReadFile) -> torch.Tensor:
        """Reads the values in their stored type; scaled ones in f64."""
        values = read_file(self.file)
        if values.dtype != self.dtype and values.element_size() == self.dtype.itemsize:
            values = values.view(self.dtype)
        count = torch.Size(self.whole or self.shape).numel()
        if values.numel() != count:
            text = f"{self.file}: {values.numel()} values, expected the shape {list(self.whole or self.shape)}"
            raise EvaluatorError("dump", f"{text}; record the dump again")
        if self.whole is not None:
            values = values.reshape(self.whole)[tuple(slice(*ends) for ends in zip(self.start, self.end))]
        values = values.reshape(self.shape)
        if self.scale != 1.0:
            factor = read_file(self.scale).double() if isinstance(self.scale, str) else self.scale
            values = values.double() * factor
        return values


def read_tap(entry: dict[str, Any], types: dict[str, torch.dtype]) -> TapRow:
    """Reads one row of the manifest. Types that torch cannot hold make the row unusable, not the dump."""
    part = entry.get("of") or {}
    problem = None if entry["dtype"] in types else f"values of type {entry['dtype']}, expected {', '.join(types)}"
    if entry.get("sketch"):
        problem = "a sketch, expected values"
    return TapRow(
        tap=entry["tap"],
        layer=None if entry.get("layer") is None else int(entry["layer"]),
        pass_number=int(entry.get("pass", 0)),
        shape=lengths(entry["shape"]),
        dtype=types.get(entry["dtype"], torch.float32),
        file=entry["file"],
        axes=tuple(entry["axes"]) if entry.get("axes") else None,
        tokens=lengths(entry["rows"]) if entry.get("rows") is not None else None,
        whole=lengths(part["shape"]) if part else None,
        start=lengths(part.get("start", ())),
        end=lengths(part.get("end", ())),
        scale=entry.get("scale", 1.0),
        problem=problem,
    )


def lengths(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
