"""The Python of the guide and of the notebook runs, in order, and prints what the next block says."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
from pathlib import Path

import pytest

import xcheck
from conftest import ROOT

GUIDE = (ROOT / "docs" / "how-to" / "check-from-python.md").read_text(encoding="utf-8")
NOTEBOOK = json.loads((ROOT / "examples" / "notebook.ipynb").read_text(encoding="utf-8"))

pytestmark = pytest.mark.usefixtures("program")


def blocks(page: str) -> list[tuple[str, str]]:
    """The blocks of code: language and text."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def lacking(code: str) -> list[str]:
    """The modules that code imports and that are not installed."""
    modules = re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)
    return [name for name in modules if importlib.util.find_spec(name) is None]


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
    found, names = blocks(GUIDE), {}
    snippets = [
        (code, expected if then == "text" else "")
        for (language, code), (then, expected) in zip(found, [*found[1:], ("", "")])
        if language == "python"
    ]
    assert len(snippets) == len(re.findall(r"^\s*```+\s*python", GUIDE, re.MULTILINE)) > 0
    assert sum(bool(expected) for _, expected in snippets) > 0
    left = {", ".join(lacking(code)): code for code, _ in snippets if lacking(code)}
    assert all("torch" in modules for modules in left), "only torch may be missing"
    for code, expected in snippets:
        if code in left.values():
            continue
        printed = said_after(code, names)
        if "def test_" not in code:  # what pytest prints of these is held by the next test
            assert printed == expected or not expected, code
    if left:
        pytest.skip(f"{len(snippets) - len(left)} of {len(snippets)} snippets pass; not installed: {', '.join(left)}")


def test_the_tests_of_the_guide_fail_as_it_says(at_root, program, pytester):
    tests = [code for language, code in blocks(GUIDE) if language == "python" and code.startswith("def test_")]
    assert len(tests) == len(re.findall(r"^def test_", GUIDE, re.MULTILINE)) == 2
    pytester.makeconftest('pytest_plugins = ["xcheck.plugin"]')
    pytester.makepyfile("import numpy as np\nimport xcheck\n\n" + "\n\n".join(tests))
    for name in ("tests", "checkpoints"):
        (pytester.path / name).symlink_to(ROOT / name)
    result = pytester.runpytest()
    result.assert_outcomes(failed=2)
    shown = re.findall(r"^FAIL: .*\n(?:  .*\n)+", GUIDE, re.MULTILINE)
    assert len(shown) == 1
    result.stdout.fnmatch_lines([f"E * {line.strip().removesuffix('...')}*" for line in shown[0].splitlines()])


def test_the_notebook_has_no_outputs():
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert cells and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


def test_the_notebook_runs_in_jupyter(at_root, tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    monkeypatch.setenv("PYTHONPATH", str(Path(xcheck.__file__).parents[1]))
    notebook = nbformat.reads(json.dumps(NOTEBOOK), as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    told = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output for output in told if output.output_type == "error"] == []
    assert any("<table" in output.get("data", {}).get("text/html", "") for output in told), "the report is a table"
    assert any("rope_theta" in output.get("text", "") for output in told), "the cause is printed"
