"""The worker process: reads requests from standard input, and answers on standard output."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from typing import Any, BinaryIO

from .errors import EvaluatorError

LEAST_TORCH = (2, 6)
LEAST_TRANSFORMERS = (4, 56)
PARENT_INTERVAL = 0.5  # seconds between two looks at the parent process


def main() -> int:
    """Answers requests until standard input ends."""
    from .protocol import claim_stdout

    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    try:
        serve(sys.stdin.buffer, claim_stdout())
    except BrokenPipeError:  # the program has ended
        os._exit(1)
    return 0


def end_with(parent: int) -> None:
    """Ends this process when its parent process ends, also in the middle of an answer."""
    while os.getppid() == parent:
        time.sleep(PARENT_INTERVAL)
    os._exit(1)


def serve(requests: Iterable[bytes], stream: BinaryIO) -> None:
    """Answers each line of requests."""
    from .protocol import Answers

    worker: Any = None
    for line in requests:
        if not line.strip():
            continue
        answers = Answers(stream)
        try:
            if worker is None:
                check_versions()
                from .worker import Worker

                worker = Worker()
            worker.answer(parsed(line), answers)
        except BrokenPipeError:
            raise
        except Exception as error:
            code, text = described(error)
            answers.send({"message": "error", "code": code, "text": text})
        answers.end()


def described(error: Exception) -> tuple[str, str]:
    """Returns code and text of an error."""
    if isinstance(error, EvaluatorError):
        return error.code, error.text
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate memory" in str(error)):
        return "memory", "not enough memory; use a machine with more memory, or record fewer tokens"
    traceback.print_exc()
    return (
        "model",
        f"the model stops with {type(error).__name__}: {error}; see the worker's standard error for the place",
    )


def parsed(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except ValueError as error:
        raise EvaluatorError("request", f"invalid request: {error}; expected a JSON object in one line") from error
    if not isinstance(request, dict):
        raise EvaluatorError("request", f"invalid request: {request!r}, expected a JSON object")
    if request.get("protocol", 1) != 1:
        found = request["protocol"]
        raise EvaluatorError(
            "request", f"protocol {found!r}, expected 1; use the same version of xcheck and of the worker"
        )
    return request


def check_versions() -> None:
    """Refuses an environment without torch or transformers, or with old ones."""
    found = {}
    for name in ("torch", "transformers"):
        try:
            found[name] = __import__(name).__version__
        except ImportError as error:
            raise EvaluatorError(
                "no-transformers",
                f"{name} is missing from {sys.executable}: {error}; install xcheck-dump[evaluator] there, or choose "
                "another Python",
            ) from error
    for name, least in (("torch", LEAST_TORCH), ("transformers", LEAST_TRANSFORMERS)):
        if version(found[name]) < least:
            wanted = ".".join(map(str, least))
            raise EvaluatorError(
                "old-torch", f"{name} {found[name]}, expected {wanted} or newer; run pip install -U {name}"
            )


def version(text: str) -> tuple[int, ...]:
    numbers = []
    for part in text.split("+")[0].split(".")[:2]:
        digits = "".join(character for character in part if character.isdigit())
        numbers.append(int(digits or 0))
    return tuple(numbers)


if __name__ == "__main__":
    sys.exit(main())
