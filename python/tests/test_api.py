"""The functions that run the program: verdicts, causes and errors are the program's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import xcheck
from conftest import CHECKPOINTS, ENGINES, ROOT
from reader import Reader
from xcheck import program as programs

WRONG = ENGINES / "tiny-llama3" / "mlx-lm-f32.safetensors"
RIGHT = ENGINES / "tiny-llama3" / "mlx-lm-f32-older-keys.safetensors"
HF = CHECKPOINTS / "tiny-llama3" / "hf"

pytestmark = pytest.mark.usefixtures("program")


def prompt_of(model: str, taps=None) -> tuple[dict, list[int]]:
    """The arrays of a shipped dump's prompt, and its tokens."""
    reader = Reader(CHECKPOINTS / model / "dumps" / "transformers-f32.safetensors")
    rows = [row for row in reader.manifest["tensors"] if row.get("pass") == 0 and (not taps or row["tap"] in taps)]
    named = {(row["tap"], row["layer"]) if "layer" in row else row["tap"]: reader.value(row) for row in rows}
    return named, reader.manifest["input"]["tokens"]


def test_a_wrong_engine_fails_with_its_cause(tmp_path):
    report = xcheck.check("tiny-llama3", WRONG, report=tmp_path)
    assert (report.verdict, report.passed, report.path) == ("fail", False, tmp_path)
    assert report.sentence == "mlx-lm-f32 computes with the wrong RoPE base."
    assert (report.first_divergence["tap"], report.first_divergence["layer"]) == ("q_rope", 0)
    (cause,) = report.causes
    assert (cause.name, cause.supposed) == ("rope_theta", "rope_theta=10000 and rope_scaling=none")
    assert "the model says 500000" in cause.sentence
    assert cause.confirmed == "pass"
    assert cause.confirm == (
        f"xcheck check --model tiny-llama3 --candidate {WRONG} --suppose rope_theta=10000 --suppose rope_scaling=none"
    )
    assert "<html" in report.to_html()


@pytest.mark.parametrize("selection", [{}, {"only": "rope", "layer": 0}, {"only": 3, "layer": 0, "pass_": 0}])
def test_the_confirming_command_passes(program, selection):
    command = xcheck.check("tiny-llama3", WRONG, **selection).causes[0].confirm.split()
    done = subprocess.run([program, *command[1:], "--no-report"], capture_output=True, check=False)
    assert done.returncode == 0


def test_the_error_has_sentence_cause_command_and_path(tmp_path):
    report = xcheck.check("tiny-llama3", WRONG, report=tmp_path)
    with pytest.raises(xcheck.VerdictError) as caught:
        report.raise_for_verdict()
    sentence, cause, command, path = str(caught.value).splitlines()
    assert sentence == "FAIL: mlx-lm-f32 computes with the wrong RoPE base."
    assert cause.startswith("  cause:    rope_theta: the candidate computes with 10000")
    assert command == f"  confirm:  {report.causes[0].confirm}"
    assert path == f"  report:   {tmp_path / 'report.html'}"
    assert caught.value.report is report


def test_a_right_engine_passes():
    report = xcheck.check("tiny-llama3", RIGHT)
    assert report.passed
    assert (report.sentence, report.first_divergence, report.causes) == (None, None, [])
    report.raise_for_verdict()


def test_only_some_checkpoints_and_layers():
    report = xcheck.check("tiny-llama3", WRONG, only=["norm", 2], layer=[0, 1], pass_=0)
    assert report.passed
    assert {(row["checkpoint"], row["layer"], row["pass"]) for row in report.references[0]["results"]} <= {
        (checkpoint, layer, 0) for checkpoint in ("norm", "qkv") for layer in (0, 1, None)
    }


def test_the_options_of_the_program_have_their_own_names_too():
    assert xcheck.check("tiny-llama3", WRONG, checkpoint="norm").passed


def test_a_verdict_that_cannot_be_reached_says_what_is_missing():
    report = xcheck.check("tiny-llama3", WRONG, only="scores")
    assert report.verdict == "inconclusive"
    assert "checkpoint scores: no tap in" in report.sentence
    with pytest.raises(xcheck.VerdictError, match="remedy: "):
        report.raise_for_verdict()


def test_wrong_usage_has_the_program_message():
    with pytest.raises(xcheck.UsageError, match="no model 'nosuch': no such file"):
        xcheck.check("nosuch", WRONG)
    with pytest.raises(xcheck.UsageError, match="unexpected argument '--colour'"):
        xcheck.check("tiny-llama3", WRONG, colour="red")
    with pytest.raises(xcheck.UsageError, match="Connection refused"):
        xcheck.probe("http://127.0.0.1:9")


def test_run_compares_with_every_reference_or_one():
    assert [each["name"] for each in xcheck.run("tiny-llama3", "transformers-f32", only="1-3").references] == [
        "transformers-f32"
    ]
    assert len(xcheck.run("tiny-llama3").references) == 6


@pytest.fixture
def server(program):
    """The address of xcheck's own server, if the program was built with it."""
    command = [program, "serve", "--model", "tiny-llama3", "--port", "0", "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        told = json.JSONDecoder().raw_decode(read_document(process.stdout))[0]
        if "error" in told:
            pytest.skip(f"the program has no server: {told['error'].splitlines()[0]}")
        yield told["url"]
        process.terminate()


def read_document(stream) -> str:
    """Reads lines up to the end of the first JSON object."""
    lines = []
    for line in stream:
        lines.append(line)
        if line.rstrip() == "}":
            break
    return "".join(lines)


def test_a_server_is_probed(server):
    right = xcheck.probe(server, "tiny-llama3", decode=2)
    assert right.passed, str(right)
    wrong = xcheck.probe(server, "tiny-llama2", decode=2, no_causes=True)
    assert wrong.verdict == "fail"
    assert "token_logprobs, pass 0" in wrong.sentence


def test_compare_names_the_wrong_one_of_two():
    report = xcheck.compare(WRONG, RIGHT, model="tiny-llama3")
    assert report.verdict == "fail"
    assert [each["verdict"] for each in report.references] == ["fail", "pass"]
    assert report.causes[0].confirm == (
        f"xcheck audit --model tiny-llama3 {WRONG} --suppose rope_theta=10000 --suppose rope_scaling=none"
    )


def test_arrays_are_judged_as_a_dump(tmp_path):
    arrays, tokens = prompt_of("tiny-llama3")
    for model in ("tiny-llama3", HF):
        assert xcheck.check(model, arrays, tokens=tokens).passed
    arrays["ffn_norm", 1] = arrays["ffn_norm", 1] * np.float32(1.001)
    report = xcheck.check(HF, arrays, tokens=np.array(tokens), report=tmp_path)
    assert (report.first_divergence["tap"], report.first_divergence["layer"]) == ("ffn_norm", 1)
    assert (tmp_path / "candidate.safetensors").exists()


def test_arrays_need_tokens():
    with pytest.raises(xcheck.DumpError, match="tokens= must list the token ids"):
        xcheck.check("tiny-llama3", {"logits": np.zeros((2, 512), np.float32)})


def test_arrays_without_a_manifest_are_identified(tmp_path):
    arrays, tokens = prompt_of("tiny-llama3", taps=("embed", "attn_norm", "q", "block_out"))
    np.savez(tmp_path / "hooked.npz", **{f"a{number}": value for number, value in enumerate(arrays.values())})
    found = xcheck.identify(tmp_path / "hooked.npz", "tiny-llama3", tokens=tokens, map_out=tmp_path / "map.toml")
    sites = [(each["tap"], each["layer"]) for each in found]
    assert sites == [site if isinstance(site, tuple) else (site, None) for site in arrays]
    assert xcheck.check("tiny-llama3", tmp_path / "hooked.npz", tokens=tokens, map=tmp_path / "map.toml").passed


def test_sites_are_plain_rows_without_a_library_for_frames(monkeypatch):
    report = xcheck.check("tiny-llama3", WRONG)
    monkeypatch.setattr("xcheck.frames.find_spec", lambda name: None)
    (row,) = [row for row in report.sites if (row["tap"], row["layer"], row["pass"]) == ("q_rope", 0, 0)]
    assert (row["reference"], row["checkpoint"], row["verdict"]) == ("mlx-lm-f32", "rope", "fail")
    assert (row["over"], row["max_abs"] > 5, row["err_bound"] > 1e7) == (924, True, True)


def test_sites_are_a_pandas_frame():
    pandas = pytest.importorskip("pandas")
    report = xcheck.check("tiny-llama3", WRONG)
    assert isinstance(report.sites, pandas.DataFrame)
    assert len(report.sites.query("verdict == 'fail'")) == 14


def test_sites_are_a_polars_frame(monkeypatch):
    polars = pytest.importorskip("polars")
    monkeypatch.setattr("xcheck.frames.find_spec", lambda name: name if name == "polars" else None)
    assert isinstance(xcheck.check("tiny-llama3", WRONG).sites, polars.DataFrame)


def test_a_notebook_shows_verdict_sentence_and_checkpoints():
    html = xcheck.check("tiny-llama3", WRONG)._repr_html_()
    assert ">FAIL</b> mlx-lm-f32 computes with the wrong RoPE base." in html
    assert html.count("<tr>") == 1 + 13
    assert "<td>rope</td><td>k_rope L0 p0</td><td>6.9</td>" in html
    assert "no data" in html


def test_a_report_is_read_back(tmp_path):
    report = xcheck.check("tiny-llama3", WRONG, report=tmp_path)
    assert str(xcheck.Report.load(tmp_path)) == str(report)


def test_options_of_the_program():
    options = {"layer": [0, 2], "suppose": ["a=1", "b=2"], "no_causes": True, "strict": False, "map": None, "pass_": 1}
    assert programs.arguments(options) == [
        *("--layer", "0,2", "--suppose", "a=1", "--suppose", "b=2", "--no-causes", "--pass", "1")
    ]


def test_the_module_runs_the_program(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(xcheck.__file__).parents[1]))
    module = [sys.executable, "-m", "xcheck"]
    assert subprocess.check_output([*module, "--version"], text=True).startswith(f"xcheck {xcheck.__version__}")
    assert subprocess.run([*module, "check"], capture_output=True, check=False).returncode == 2


def test_a_missing_program_is_a_clear_error(monkeypatch, tmp_path):
    monkeypatch.setenv("XCHECK", str(tmp_path / "gone"))
    with pytest.raises(xcheck.UsageError, match="gone is not a program"):
        xcheck.check("tiny-llama3", WRONG)
    monkeypatch.delenv("XCHECK")
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    with pytest.raises(xcheck.UsageError, match="pip install"):
        xcheck.check("tiny-llama3", WRONG)


def test_the_version_is_that_of_the_program():
    assert f'\nversion = "{xcheck.__version__}"\n' in (ROOT / "Cargo.toml").read_text(encoding="utf-8")


def test_a_report_of_an_older_version_is_read(monkeypatch):
    """Version 3 had other names for the figures of a row."""
    report = xcheck.Report(json.loads((ROOT / "tests/data/reports/version-3.json").read_text()), "version-3")
    monkeypatch.setattr("xcheck.frames.find_spec", lambda name: None)
    failing = [site for site in report.sites if site["verdict"] == "fail"]
    assert [(site["tap"], site["over"]) for site in failing] == [("embed", 384), ("embed", 32)]
    assert [round(site["err_bound"], 2) for site in failing] == [1792.77, 1792.68]
    assert report._repr_html_()


def test_the_report_of_an_error_has_its_message():
    report = xcheck.Report({"verdict": "error", "error": "no model 'x'", "reason": None, "references": []}, "none")
    assert (report.passed, report.sentence) == (False, "no model 'x'")
