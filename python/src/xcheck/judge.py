"""Compares engines with the xcheck program, which decides every verdict."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Union

from .arrays import token_ids
from .candidates import write
from .program import arguments, run_json
from .report import Report

Name = Union[str, "os.PathLike[str]"]
Arrays = Mapping[Any, Any]
Candidate = Union[Name, Arrays]
"""A dump or a file of activations by its path, or the arrays themselves: {tap or (tap, layer): array}."""
Only = Union[str, int, Iterable[Union[str, int]], None]


def check(
    model: Name,
    candidate: Candidate,
    *,
    only: Only = None,
    tokens: Any = None,
    report: Name | None = None,
    **options: Any,
) -> Report:
    """Judges the activations of an engine, as `xcheck check` does.

    model: a model's files, or the name of a shipped model.
    candidate: a dump, or a dictionary {tap or (tap, layer): array} of one pass over `tokens`.
    only: the checkpoints to judge: a name, a number, a range ("rope", 3, "1-7"), or several.
    report: the folder of the report; default: a new temporary folder, which stays.
    options: further options of `xcheck check`: layer=[0, 2], suppose="rope_theta=10000", baseline="xcheck.toml".
    """
    folder = folder_of(report)
    if isinstance(candidate, Mapping):
        candidate, tokens = write(candidate, tokens, model, folder), None
    options = {"model": model, "candidate": candidate, "tokens": _ids(tokens), **options}
    return _judged("check", [], folder, only, options)


def run(
    model: Name, reference: Name | None = None, *, only: Only = None, report: Name | None = None, **options: Any
) -> Report:
    """Compares xcheck's own engine with a reference dump, as `xcheck run` does.

    reference: a dump; default: every reference that is found for the model.
    only, report, options: as for `check`.
    """
    return _judged("run", [], folder_of(report), only, {"model": model, "reference": reference, **options})


def compare(
    candidate: Candidate,
    reference: Name,
    *,
    model: Name | None = None,
    only: Only = None,
    tokens: Any = None,
    report: Name | None = None,
    **options: Any,
) -> Report:
    """Compares two dumps, as `xcheck compare` does.

    model: the model of both: each dump is then judged by the weights, which tells which of the two is wrong.
    candidate, only, tokens, report, options: as for `check`.
    """
    folder = folder_of(report)
    if isinstance(candidate, Mapping):
        candidate, tokens = write(candidate, tokens, model, folder), None
    options = {"model": model, "tokens": _ids(tokens), **options}
    return _judged("compare", [os.fspath(candidate), os.fspath(reference)], folder, only, options)


def probe(url: str, model: Name | None = None, *, report: Name | None = None, **options: Any) -> Report:
    """Checks a running server for determinism, and against `model` if it is given, as `xcheck probe` does.

    report, options: as for `check`.
    """
    return _judged("probe", [url], folder_of(report), None, {"model": model, **options})


def identify(file: Name, model: Name, *, tokens: Any = None, **options: Any) -> list[dict[str, Any]]:
    """Finds the tap of each array in a file without a manifest, as `xcheck identify` does.

    tokens: the ids that the model read. options: as for `check`; `map_out="map.toml"` writes a map for `map=`.
    Returns a dictionary for each tap that was found: `name` of the array, `tap`, `layer`, `certain` and more
    (docs/how-to/foreign-files.md).
    """
    options = {"model": model, "tokens": _ids(tokens), **options}
    found: list[dict[str, Any]] = run_json(["identify", os.fspath(file), *arguments(options)])
    return found


def _judged(command: str, operands: list[str], folder: Path, only: Only, options: dict[str, Any]) -> Report:
    """Runs a command that writes a report, and reads the report."""
    given = [command, *operands, *arguments({**options, "checkpoint": _list(only), "report": folder})]
    return Report(run_json(given), folder)


def folder_of(report: Name | None) -> Path:
    return Path(tempfile.mkdtemp(prefix="xcheck-") if report is None else report)


def _list(only: Only) -> str | None:
    """Returns checkpoints as the program takes them: separated by commas."""
    if only is None or isinstance(only, (str, int)):
        return None if only is None else str(only)
    return ",".join(map(str, only))


def _ids(tokens: Any) -> Any:
    """Returns token ids of any library as a list; a text such as "1,15043" as it is."""
    return tokens if tokens is None or isinstance(tokens, str) else token_ids(tokens).reshape(-1).tolist()
