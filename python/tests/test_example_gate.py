"""The example of two gates has the outcomes that its table says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import xcheck
from conftest import ROOT

EXAMPLE = ROOT / "examples" / "pytest-gate"


def outcomes(tmp_path, monkeypatch) -> dict[str, str]:
    """Runs the example: the outcome of each test."""
    monkeypatch.setenv("PYTHONPATH", str(Path(xcheck.__file__).parents[1]))
    junit = tmp_path / "junit.xml"
    plugin = ["-p", "xcheck.plugin", "-p", "no:cacheprovider", "--basetemp", tmp_path / "base"]
    run = [sys.executable, "-m", "pytest", EXAMPLE, *plugin, "--junit-xml", junit, "--xcheck-report", tmp_path / "kept"]
    subprocess.run(run, capture_output=True, check=False)
    cases = ElementTree.parse(junit).iter("testcase")
    return {case.get("name"): outcome(case) for case in cases}


def outcome(case: ElementTree.Element) -> str:
    """Returns `pass` or `fail`, or `error` or `skipped` for a test that was not run to its end."""
    found = [name for name in ("error", "skipped", "failure") if case.find(name) is not None]
    return "pass" if not found else "fail" if found[0] == "failure" else found[0]


def test_a_test_that_did_not_run_is_no_pass():
    cases = ElementTree.fromstring(
        "<s><c/><c><failure/></c><c><error/></c><c><skipped/></c><c><failure/><error/></c></s>"
    )
    assert [outcome(case) for case in cases] == ["pass", "fail", "error", "skipped", "error"]


def test_the_table_of_the_readme_is_true(tmp_path, monkeypatch, program):
    found = outcomes(tmp_path, monkeypatch)
    table = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (\w[^|]*) \| [^|]* \| [\d.]+ \| (\S+) \| (\S+) \| (pass|fail)(?:: `(\w+)`)? \|$", table, re.M
    )
    assert len(rows) == 6
    told = {}
    for name, allclose, nmse, judged, cause in rows:
        told[f"test_allclose[{name}]"] = allclose.strip("*")
        told[f"test_nmse[{name}]"] = nmse.strip("*")
        told[f"test_xcheck[{name}]"] = judged
        causes = xcheck.Report.load(report_of(tmp_path, name)).causes
        assert [each.name for each in causes] == ([cause] if cause else []), name
    assert found == told


def report_of(tmp_path: Path, name: str) -> Path:
    """The kept report of a variant."""
    end = "-" + re.sub(r"[^\w.-]+", "-", f"test_xcheck[{name}]").strip("-")
    return next(folder for folder in (tmp_path / "kept").iterdir() if folder.name.endswith(end))
