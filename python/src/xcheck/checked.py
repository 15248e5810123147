"""Judges a torch model while it runs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from . import judge
from .errors import UsageError
from .hook import Modules, hook
from .report import Report


class Checked:
    """The result of a block `with xcheck.checked(model) as checked:`."""

    def __init__(self) -> None:
        self._report: Report | None = None

    @property
    def report(self) -> Report:
        """The report of the block."""
        if self._report is None:
            raise UsageError("there is no report yet: read checked.report after the `with` block")
        return self._report


@contextmanager
def checked(
    model: Any,
    files: judge.Name | None = None,
    *,
    map: Mapping[str, str] | None = None,
    also: Collection[str] = (),
    modules: Modules = None,
    only: judge.Only = None,
    report: judge.Name | None = None,
    **options: Any,
) -> Iterator[Checked]:
    """Records every call of a torch model inside the block, as `hook` does, and judges the recording at its end.

    files: the model's files; default: `model.name_or_path`, which transformers sets.
    map, also, modules: as for `hook`. Outputs of modules are judged by the evaluator that runs torch.
    only, report, options: as for `check`.
    """
    files = files or getattr(model, "name_or_path", None)
    if not files:
        raise UsageError("the model has no name_or_path: checked(model, files=...) must name the model's files")
    result, folder = Checked(), judge.folder_of(report)
    folder.mkdir(parents=True, exist_ok=True)
    dump = folder / "candidate.safetensors"
    with hook(model, dump, map, also=also, modules=modules) as written:
        yield result
    if written.has_modules:
        options = {"evaluator": "torch", **options}
    result._report = judge.check(os.fspath(files), dump, only=only, report=folder, **options)
