"""The pytest plugin: messages, reports that are kept, and properties of JUnit files."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from conftest import ENGINES

WRONG = ENGINES / "tiny-llama3" / "mlx-lm-f32.safetensors"
RIGHT = ENGINES / "tiny-llama3" / "mlx-lm-f32-older-keys.safetensors"

pytestmark = pytest.mark.usefixtures("program")


@pytest.fixture
def pytester(pytester):
    """The plugin is there, installed or not."""
    pytester.makeconftest('pytest_plugins = ["xcheck.plugin"]')
    return pytester


@pytest.fixture
def suite(pytester):
    """A suite with one right engine, and one wrong one."""
    pytester.makepyfile(
        test_engine=f"""
        import xcheck

        def test_right():
            assert xcheck.assert_faithful({str(RIGHT)!r}, model="tiny-llama3").passed

        def test_wrong():
            xcheck.assert_faithful({str(WRONG)!r}, model="tiny-llama3")
        """
    )
    return pytester


def test_a_failure_is_read_without_opening_anything(suite):
    result = suite.runpytest("--xcheck-report", "kept")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E * FAIL: mlx-lm-f32 computes with the wrong RoPE base.",
            "E * cause:    rope_theta: the candidate computes with 10000, the model says 500000, *",
            f"E * confirm:  xcheck check --model tiny-llama3 --candidate {WRONG} --suppose rope_theta=10000 *",
            f"E * report:   {suite.path}/kept/test_engine.py-test_wrong/report.html",
        ]
    )
    result.stdout.no_fnmatch_line("*testing.py*")  # no frame of the package


def test_reports_are_kept_by_test(suite):
    suite.runpytest("--xcheck-report", "kept")
    for name in ("test_right", "test_wrong"):
        assert (suite.path / "kept" / f"test_engine.py-{name}" / "report.json").exists()


def test_two_reports_of_a_test_have_two_folders(pytester):
    check = f'xcheck.assert_faithful({str(RIGHT)!r}, model="tiny-llama3")'
    pytester.makepyfile(test_twice=f"import xcheck\ndef test():\n    {check}\n    {check}")
    pytester.runpytest("--xcheck-report", "kept").assert_outcomes(passed=1)
    assert sorted(each.name for each in (pytester.path / "kept").iterdir()) == [
        "test_twice.py-test",
        "test_twice.py-test-2",
    ]


def test_junit_files_have_verdict_and_sentence(suite):
    suite.runpytest("--junit-xml", "junit.xml")
    cases = ElementTree.parse(suite.path / "junit.xml").iter("testcase")
    properties = {
        case.get("name"): {each.get("name"): each.get("value") for each in case.iter("property")} for case in cases
    }
    assert properties == {
        "test_right": {"verdict": "pass", "sentence": ""},
        "test_wrong": {"verdict": "fail", "sentence": "mlx-lm-f32 computes with the wrong RoPE base."},
    }


def test_the_fixture_opens_a_dump_that_is_a_candidate(pytester):
    pytester.makepyfile(
        """
        import numpy as np, pytest, xcheck

        def test_embed(xcheck_dump):
            with xcheck_dump(tokens=[1, 393], architecture="llama") as dump, dump.forward([1, 393]):
                dump.tap("embed", np.ones((2, 96), np.float32))
            with pytest.raises(xcheck.VerdictError, match="embed, pass 0"):
                xcheck.assert_faithful(dump, model="tiny-llama3")
        """
    )
    pytester.runpytest().assert_outcomes(passed=1)
