"""The Python of the guides runs, in order, and prints what the next block says."""

from __future__ import annotations

import contextlib
import io
import json
import re

import pytest

import xcheck
from conftest import ROOT

GUIDE = (ROOT / "docs" / "how-to" / "check-from-python.md").read_text(encoding="utf-8")
NOTEBOOK = json.loads((ROOT / "examples" / "notebook.ipynb").read_text(encoding="utf-8"))

pytestmark = pytest.mark.usefixtures("program")


def blocks(page: str) -> list[tuple[str, str]]:
    """The blocks of code: language and text."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def said_after(code: str, names: dict) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "guide", "exec"), names)
    return printed.getvalue()


@pytest.fixture
def at_root(monkeypatch, tmp_path):
    """The root of the repository, where nothing is left: reports go to a folder of the test."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    monkeypatch.chdir(tmp_path)


def test_the_guide_runs_and_prints_what_it_says(at_root):
    pytest.importorskip("transformers")
    found, names = blocks(GUIDE), {}
    for (language, code), (then, expected) in zip(found, [*found[1:], ("", "")]):
        if language == "python":
            printed = said_after(code, names)
            if then == "text" and "def test_" not in code:
                assert printed == expected, code


def test_the_tests_of_the_guide_fail_as_it_says(at_root, program, pytester):
    tests = [code for language, code in blocks(GUIDE) if language == "python" and code.startswith("def test_")]
    pytester.makeconftest('pytest_plugins = ["xcheck.plugin"]')
    pytester.makepyfile("import numpy as np\nimport xcheck\n\n" + "\n\n".join(tests))
    for name in ("tests", "checkpoints"):
        (pytester.path / name).symlink_to(ROOT / name)
    result = pytester.runpytest()
    result.assert_outcomes(failed=2)
    shown = re.findall(r"^FAIL: .*\n(?:  .*\n)+", GUIDE, re.MULTILINE)
    assert len(shown) == 1
    result.stdout.fnmatch_lines([f"E * {line.strip().removesuffix('...')}*" for line in shown[0].splitlines()])


def test_the_notebook_runs_and_has_no_outputs(at_root):
    pytest.importorskip("pandas")
    names: dict = {}
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            said_after("".join(cell["source"]), names)
    assert isinstance(names["report"], xcheck.Report)
