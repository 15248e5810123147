"""Talks to the evaluator `python -m xcheck.evaluator`, and judges a dump by its answers."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from xcheck.evaluator.candidate import open_dump

SIGMAS = 8.0
PATIENCE = 10  # seconds in which an idle evaluator ends
HALF_ULP = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float64: 2.0**-53}


class Violation(NamedTuple):
    """A site with values that rounding cannot explain: an output of a module, or a tap of a layer."""

    module: str  # or the tap
    call: int | None  # of a tap: the layer
    index: int
    ratio: float
    over: int
    count: int
    is_tap: bool = False

    @property
    def name(self) -> dict[str, Any]:
        """The fields of a request that name the site."""
        if not self.is_tap:
            return {"module": self.module, "call": self.call, "pass": self.index}
        layer = {} if self.call is None else {"layer": self.call}
        return {"tap": self.module, **layer, "pass": self.index}


class Verdict(NamedTuple):
    """The judged sites of a dump, in order of execution."""

    sites: int
    worst: float
    worst_module: str
    violations: list[Violation]
    missing: list[str]
    error: str | None
    hello: dict[str, Any]
    ties: tuple[str, ...] = ()  # modules over their bound after a choice that rounding can change: undetermined


class Worker:
    """One evaluator process."""

    def __init__(self) -> None:
        self.log = open(os.environ.get("XCHECK_EVALUATOR_LOG", os.devnull), "ab")  # noqa: SIM115
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "xcheck.evaluator"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
        )

    def ask(self, request: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, torch.Tensor]]]:
        """Sends a request, and yields the messages of its answer with their tensors."""
        if self.process.poll() is not None:
            self.start()
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        while True:
            (length,) = struct.unpack("<Q", self.read(8))
            if length == 0:
                return
            header = self.read(length)
            entries = json.loads(header)
            message = json.loads(entries.pop("__metadata__")["xcheck-evaluator"])
            size = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
            data = self.read(size)
            yield message, safetensors.torch.load(struct.pack("<Q", length) + header + data) if entries else {}

    def read(self, count: int) -> bytes:
        assert self.process.stdout is not None
        data = self.process.stdout.read(count)
        if len(data) != count:
            raise EOFError(f"the evaluator ended with status {self.process.wait()}")
        return data

    def judge(self, model: Path, dump: Path, runs: int = 4) -> Verdict:
        """Judges every site of a dump: |candidate - exact| <= 8 sigma + half an ulp of the stored type."""
        request = {"protocol": 1, "request": "evaluate", "model": str(model), "dump": str(dump), "runs": runs}
        values = recorded_values(dump)
        sites, worst, worst_module, violations, missing, error, hello, ties = 0, 0.0, "", [], [], None, {}, []
        for message, tensors in self.ask(request):
            kind = message["message"]
            if kind == "hello":
                hello = message
            elif kind == "error":
                error = f"{message['code']}: {message['text']}"
            elif kind == "missing":
                missing.append(message["why"] if "tap" in message else f"{message['module']}: {message['why']}")
            elif kind == "site":
                sites += 1
                name, is_tap = message.get("module") or message["tap"], "tap" in message
                key = (name, message.get("layer") if is_tap else message.get("call", 0), message["pass"])
                ratio, over = compared(values[key], tensors["exact"], tensors["sigma"], message["kind"])
                if over and message.get("tie"):  # another choice between values that rounding can exchange
                    ties.append(name)
                    continue
                if ratio > worst:
                    worst, worst_module = ratio, name
                if over:
                    violations.append(Violation(*key, ratio, over, values[key].numel(), is_tap))
        return Verdict(sites, worst, worst_module, violations, missing, error, hello, tuple(ties))

    def causes(self, violation: Violation, seconds: float) -> list[dict[str, Any]]:
        """Asks for the causes of a violation."""
        request = {"protocol": 1, "request": "causes", **violation.name, "seconds": seconds}
        return [message for message, _ in self.ask(request) if message["message"] in ("cause", "error")]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def recorded_values(path: Path) -> dict[tuple[str, int | None, int], torch.Tensor]:
    """Reads the values of a dump by module, call and pass; those of taps by tap, layer and pass."""
    dump = open_dump(str(path))
    modules = {row.site: dump.value(row) for row in dump.rows.values()}
    return modules | {tap.site: tap.value(dump.read_file) for tap in dump.taps.values() if tap.problem is None}


def compared(value: torch.Tensor, exact: torch.Tensor, sigma: torch.Tensor, kind: str) -> tuple[float, int]:
    """Returns the largest bound ratio of a site and the number of values above their bound."""
    if kind == "ids":
        over = int((value.long() != exact.long()).sum())
        return float(over > 0) * float("inf") if over else 0.0, over
    given = value.double()
    error = (given - exact).abs()
    bound = SIGMAS * sigma + HALF_ULP[value.dtype] * exact.abs()
    ratio = torch.where(error == 0, 0.0, error / bound)
    ratio = torch.where((given == exact) | (given.isnan() & exact.isnan()), 0.0, ratio).nan_to_num(nan=float("inf"))
    return float(ratio.max()) if ratio.numel() else 0.0, int((ratio > 1).sum())
