"""The errors and warnings of the package."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .report import Report


class DumpError(ValueError):
    """A value cannot be part of the dump, or contradicts an earlier one."""


class DumpWarning(UserWarning):
    """A value can be written, but is probably a mistake."""


class UsageError(ValueError):
    """The xcheck program refused its input (exit code 2), or was not found. The message is the program's."""


class VerdictError(AssertionError):
    """The verdict is not pass. The message is the sentence, the cause, the confirming command and the report's path."""

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report
