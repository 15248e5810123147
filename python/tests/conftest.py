"""The models that ship with the repository, and the judge."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import xcheck
from xcheck.program import find

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = ROOT / "checkpoints"
BITNET = ROOT / "tests" / "data" / "bitnet" / "packed"
ENGINES = ROOT / "tests" / "data" / "engines"


pytest_plugins = ["pytester", "xcheck.plugin"]


@pytest.fixture
def program(monkeypatch, tmp_path) -> str:
    """The xcheck program, for the package too: the one that it finds, or target/release/xcheck."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # reports go to the folder of the test
    try:
        found = find()
    except xcheck.UsageError as error:
        found = shutil.which("xcheck", path=str(ROOT / "target" / "release"))
        if not found:
            pytest.skip(f"{error}, or run cargo build --release")
    monkeypatch.setenv("XCHECK", found)
    return found


@pytest.fixture
def judge(tmp_path, program):
    """Runs xcheck: exit code and output."""

    def run(command: str, model, option: str, dump) -> tuple[int, str]:
        arguments = [program, command, "--no-report", "--model", str(model), option, str(dump)]
        done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Returns a function that makes a tiny model of a kind, once, and returns its directory."""
    import tiny  # needs torch

    folder, made = tmp_path_factory.mktemp("models"), {}

    def model(kind: str):
        if kind not in made:
            made[kind] = tiny.make(kind, folder)
        return made[kind]

    return model


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
