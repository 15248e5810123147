"""Log-probabilities of a rollout engine and a trainer, as files, dictionaries and data frames."""

from __future__ import annotations

import json

import pytest

import xcheck
from conftest import ROOT

PAIRS = ROOT / "tests" / "data" / "gap" / "tiny-qwen3.jsonl"


def sides(trainer: str) -> tuple[list[dict], list[dict]]:
    """Two lists of sequences from columns of a file that ships."""
    rows = [json.loads(line) for line in PAIRS.read_text().splitlines()]
    shared = [{name: row[name] for name in ("tokens", "prompt_length")} for row in rows]
    return tuple([{**one, "logprobs": row[name]} for one, row in zip(shared, rows)] for name in ("bf16_cache", trainer))


def test_a_correct_pair_passes():
    report = xcheck.gap(*sides("bf16_sdpa"), dtype="bf16")
    assert report and report.verdict == "pass" and report.cause is None
    assert report["training"]["effective_sample_size"] > 0.99


def test_a_fault_is_named():
    report = xcheck.gap(*sides("temperature_0.7"), dtype=("bf16", "bf16"))
    assert (report.verdict, report.cause) == ("fail", "temperature")
    assert "temperature on one side" in str(report)


def test_a_file_with_both_columns():
    report = xcheck.gap(PAIRS, columns=("bf16_cache", "packed"), dtype="bf16")
    assert report.cause == "outlier-sequences"
    assert report["findings"][0]["sequences"] == [2, 5, 8, 11, 14]


def test_parquet_files():
    folder = PAIRS.parent / "parquet"
    assert xcheck.gap(folder / "pandas.parquet", folder / "polars.parquet").verdict == "pass"
    assert xcheck.gap(folder / "shifted.parquet", folder / "polars.parquet").cause == "shifted"


def test_arrays_and_frames():
    np = pytest.importorskip("numpy")
    rollout, trainer = sides("bf16_sdpa")
    for row in rollout:
        row["logprobs"] = np.array(row["logprobs"], np.float32)
    assert xcheck.gap(rollout, trainer, dtype="bf16")
    pandas = pytest.importorskip("pandas")
    assert xcheck.gap(pandas.DataFrame(rollout), pandas.DataFrame(trainer), dtype="bf16")


def test_a_parquet_file_is_read_with_pandas(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    paths = [tmp_path / "rollout.parquet", tmp_path / "trainer.parquet"]
    for path, rows in zip(paths, sides("temperature_0.7")):
        pandas.DataFrame(rows).to_parquet(path)
    report = xcheck.gap(*map(pandas.read_parquet, paths), dtype="bf16")
    assert (report.verdict, report.cause) == ("fail", "temperature")
    with pytest.raises(xcheck.UsageError, match="pandas.read_parquet"):
        xcheck.gap(*paths, dtype="bf16")


def test_a_wrong_sequence_is_refused():
    with pytest.raises(xcheck.UsageError, match="sequence 0"):
        xcheck.gap([1], [2])
    with pytest.raises(xcheck.UsageError, match="line 1"):
        xcheck.gap([{"tokens": [1, 2]}], [{"tokens": [1, 2]}])
