"""Requests of the program and their answers."""

from __future__ import annotations

import time
from typing import Any, Callable

import torch

from .causes.search import search
from .errors import EvaluatorError
from .evaluation import Session
from .protocol import Answers

REPORT_INTERVAL = 5.0  # seconds between two reports of the search for causes


class Worker:
    """Keeps the model and the dump of the last request."""

    def __init__(self) -> None:
        self.session: Session | None = None

    def answer(self, request: dict[str, Any], answers: Answers) -> None:
        """Answers one request."""
        kind = request.get("request")
        if kind == "evaluate":
            self.evaluate(request, answers)
        elif kind == "causes":
            self.causes(request, answers)
        else:
            raise EvaluatorError(
                "request", f"request {kind!r}, expected 'evaluate' or 'causes'; see protocol version 1"
            )

    def evaluate(self, request: dict[str, Any], answers: Answers) -> None:
        self.session = None
        session = Session(required(request, "model"), required(request, "dump"), int(request.get("runs", 4)))
        session.load()
        answers.send(session.hello(package_version()))

        def send(message: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
            answers.send(message, {name: tensor.numpy() for name, tensor in tensors.items()})

        session.run(send)
        self.session = session

    def causes(self, request: dict[str, Any], answers: Answers) -> None:
        if self.session is None:
            raise EvaluatorError("request", "no model evaluated yet, expected 'evaluate' before 'causes'")
        self.session.on_trial = progress(answers)
        session, pass_number = self.session, int(request.get("pass", 0))
        if "tap" in request:
            row = session.outputs.get((str(request["tap"]), request.get("layer"), pass_number))
            if row is None:  # not the output of a module: nothing is tried
                return
            session, module, call = session.with_modules(), row.module, row.call
        else:
            module, call = required(request, "module", "the path of a module"), int(request.get("call", 0))
        for cause in search(session, module, call, pass_number, float(request.get("seconds", 60))):
            answers.send(cause)


def progress(answers: Answers) -> Callable[[], None]:
    """Returns a function that reports the number of its calls, at most once in each interval."""
    count, last = 0, time.monotonic()

    def report() -> None:
        nonlocal count, last
        count += 1
        if time.monotonic() - last >= REPORT_INTERVAL:
            last = time.monotonic()
            answers.send({"message": "progress", "done": count, "total": 0, "what": "searching for the cause"})

    return report


def required(request: dict[str, Any], key: str, kind: str = "a path") -> str:
    if not isinstance(request.get(key), str):
        raise EvaluatorError("request", f"{key}: {request.get(key)!r}, expected {kind}")
    return str(request[key])


def package_version() -> str:
    from xcheck import __version__

    return __version__
