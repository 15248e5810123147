"""Asserts for tests. The pytest plugin keeps their reports and adds their verdicts to JUnit files."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from . import judge
from .report import Report


class RunningTest(NamedTuple):
    """The parts of a running test that assert_faithful uses."""

    new_folder: Callable[[], Path | None]
    """Returns the folder of the next report; None without `--xcheck-report`."""
    record: Callable[[str, str], None]
    """Adds a property to the JUnit file."""


CURRENT: ContextVar[RunningTest | None] = ContextVar("the running test", default=None)


def assert_faithful(
    candidate: judge.Candidate,
    model: judge.Name,
    *,
    only: judge.Only = None,
    report: judge.Name | None = None,
    **options: Any,
) -> Report:
    """Raises `VerdictError` unless the verdict of `check(model, candidate, ...)` is pass. Returns the report.

    In a pytest run, `--xcheck-report DIR` keeps the report, and the JUnit file gets the properties `verdict` and
    `sentence`.
    """
    __tracebackhide__ = True
    test = CURRENT.get()
    if test and report is None:
        report = test.new_folder()
    found = judge.check(model, candidate, only=only, report=report, **options)
    if test:
        test.record("verdict", found.verdict)
        test.record("sentence", found.sentence or "")
    found.raise_for_verdict()
    return found
