"""The models that ship with the repository, and the judge."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import xcheck

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = ROOT / "checkpoints"
BITNET = ROOT / "tests" / "data" / "bitnet" / "packed"


@pytest.fixture
def judge(tmp_path):
    """Runs xcheck, which the variable XCHECK names, or target/release/xcheck: exit code and output."""
    program = os.environ.get("XCHECK") or shutil.which("xcheck", path=str(ROOT / "target" / "release"))
    if not program:
        pytest.skip("no xcheck: cargo build --release, or set XCHECK")

    def run(command: str, model, option: str, dump) -> tuple[int, str]:
        arguments = [program, command, "--no-report", "--model", str(model), option, str(dump)]
        done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture
def small(tmp_path):
    """Opens a dump of a model of two layers, four heads of eight, two of them for keys."""

    def open_dump(name: str = "dump.safetensors", **options) -> xcheck.Dump:
        told = {
            "producer": "test",
            "architecture": "llama",
            "n_heads": 4,
            "n_kv_heads": 2,
            "head_dim": 8,
            "n_layers": 2,
        }
        return xcheck.Dump(tmp_path / name, **{**told, **options})

    return open_dump


def numbers(*shape: int) -> np.ndarray:
    """Values of which no two are equal."""
    return (np.arange(np.prod(shape), dtype=np.float32) + 1).reshape(shape)
