"""Errors that a worker reports to the program."""

from __future__ import annotations

CODES = ("no-transformers", "old-torch", "remote-code", "model", "dump", "unsupported-operation", "memory", "request")


class EvaluatorError(Exception):
    """A failure with a code of the protocol."""

    def __init__(self, code: str, text: str):
        super().__init__(text)
        self.code = code
        self.text = text


def unsupported(operation: str) -> EvaluatorError:
    """Returns the error for an ATen operation without a rounding rule."""
    return EvaluatorError(
        "unsupported-operation",
        f"operation without a rounding rule: {operation}, expected an operation of xcheck.evaluator.operations; "
        "report it as an issue, or judge the modules before it with a dump that omits the later ones",
    )
