"""Compares log-probabilities of a rollout engine and a trainer with the xcheck program."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Union

from .arrays import token_ids
from .errors import UsageError
from .program import arguments, run_json

Name = Union[str, "os.PathLike[str]"]
Sequences = Union[Name, Iterable[Mapping[str, Any]], Any]
"""A file by its path, dictionaries with the fields of a sequence, or a data frame with one sequence in a row."""


def gap(rollout: Sequences, trainer: Sequences | None = None, **options: Any) -> GapReport:
    """Says whether the difference between two programs' log-probabilities is rounding, as `xcheck gap` does.

    rollout, trainer: JSONL, Parquet, .npz or .pt by their paths; or sequences, each a dictionary with `tokens` and
        `logprobs` (None where not scored) and optionally `prompt_length`, `temperature`, `version`, `mask`,
        `routed_experts`; or a data frame. Without `trainer`, `rollout` has both: name them with
        `columns=("rollout_logprobs", "trainer_logprobs")`.
    options: further options of `xcheck gap`: dtype="bf16", clip=0.2, model="path/to/model".
    """
    columns = options.pop("columns", None)
    if columns is not None:
        options["columns"] = columns if isinstance(columns, str) else ",".join(columns)
    dtype = options.get("dtype")
    if dtype is not None and not isinstance(dtype, str):
        options["dtype"] = ",".join(dtype)
    with tempfile.TemporaryDirectory(prefix="xcheck-") as folder:
        sides = {"rollout": rollout, "trainer": trainer}
        paths = [_path(side, Path(folder) / f"{name}.jsonl") for name, side in sides.items() if side is not None]
        return GapReport(run_json(["gap", *paths, *arguments(options)]))


class GapReport(dict):  # type: ignore[type-arg]
    """The document of `xcheck gap --format json`, with its main parts as attributes."""

    @property
    def verdict(self) -> str:
        """pass, fail or inconclusive."""
        return str(self["verdict"])

    @property
    def sentence(self) -> str:
        """One sentence about the whole difference."""
        return str(self["sentence"])

    @property
    def cause(self) -> str | None:
        """The name of the first finding, such as temperature."""
        return self["findings"][0]["cause"] if self["findings"] else None

    def __bool__(self) -> bool:
        return self.verdict == "pass"

    def __str__(self) -> str:
        lines = [f"  {found['cause']}: {found['text']}" for found in self["findings"]]
        return "\n".join([f"{self.verdict.upper()}  {self.sentence}", *lines])


def _path(side: Sequences, path: Path) -> str:
    """Returns the path of a side: sequences in memory are written to `path`."""
    if isinstance(side, (str, os.PathLike)):
        return os.fspath(side)
    with open(path, "w", encoding="utf-8") as file:
        for number, sequence in enumerate(_rows(side)):
            if not isinstance(sequence, Mapping):
                found = type(sequence).__name__
                raise UsageError(f"sequence {number}: {found}, expected a dictionary with tokens and logprobs")
            file.write(json.dumps({name: _plain(name, value) for name, value in sequence.items()}) + "\n")
    return str(path)


def _rows(side: Any) -> Iterable[Any]:
    if hasattr(side, "to_dicts"):  # polars
        return side.to_dicts()  # type: ignore[no-any-return]
    if hasattr(side, "to_dict"):  # pandas
        return side.to_dict("records")  # type: ignore[no-any-return]
    return side  # type: ignore[no-any-return]


def _plain(name: str, value: Any) -> Any:
    """Returns a value of any array library as JSON has it; NaN marks a token that is not scored."""
    if hasattr(value, "tolist"):
        value = token_ids(value).tolist() if name in ("tokens", "input_ids") else value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(name, each) for each in value]
    return None if isinstance(value, float) and value != value else value
