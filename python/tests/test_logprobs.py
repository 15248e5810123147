"""Dumps of log-probabilities alone."""

from __future__ import annotations

import json

import numpy as np
import pytest

import xcheck

IDS = [1, 393, 395, 260]


def write(out, **following):
    with xcheck.Dump(out, producer="server", architecture="llama", tokens=IDS) as dump:
        with dump.forward(IDS):
            dump.tap("token_logprobs", np.full(3, -1.5, np.float32), **following)
            dump.tap("top_ids", np.arange(8, dtype=np.int64).reshape(4, 2))
            dump.tap("top_logprobs", np.full((4, 2), -2.5, np.float32))


def test_of_the_last_token_nothing_is_said(tmp_path):
    write(tmp_path / "dump", rows=range(3))
    rows = json.loads((tmp_path / "dump" / "manifest.json").read_text())["tensors"]
    assert [(row["tap"], row["shape"], row.get("rows")) for row in rows] == [
        ("token_logprobs", [3], [0, 1, 2]),
        ("top_ids", [4, 2], None),
        ("top_logprobs", [4, 2], None),
    ]


def test_without_rows_it_is_refused(tmp_path):
    with pytest.raises(xcheck.DumpError):
        write(tmp_path / "dump")
