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


def test_one_less_is_of_all_but_the_last(tmp_path):
    write(tmp_path / "dump")
    rows = json.loads((tmp_path / "dump" / "manifest.json").read_text())["tensors"]
    assert rows[0]["rows"] == [0, 1, 2]


@pytest.mark.parametrize(("count", "generated", "is_taken"), [(4, [], False), (4, [7], True), (2, [7], False)])
def test_each_is_of_a_token_that_is_known(tmp_path, count, generated, is_taken):
    def run():
        with xcheck.Dump(tmp_path / "dump", producer="server", architecture="llama", tokens=IDS) as dump:
            with dump.forward(IDS):
                dump.tap("token_logprobs", np.full(count, -1.5, np.float32))
            dump.generated(generated)

    if is_taken:
        run()
        return
    with pytest.raises(xcheck.DumpError, match="token_logprobs"):
        run()


@pytest.mark.parametrize("other", [None, (4, 1)])
def test_likely_tokens_have_their_log_probabilities_beside_them(tmp_path, other):
    with pytest.raises(xcheck.DumpError, match="needs top_logprobs of the same shape"):
        with xcheck.Dump(tmp_path / "dump", producer="server", architecture="llama") as dump, dump.forward(IDS):
            dump.tap("top_ids", np.zeros((4, 2), np.int64))
            if other:
                dump.tap("top_logprobs", np.full(other, -2.5, np.float32))


@pytest.mark.parametrize(("tap", "shape"), [("embed", (4, 0)), ("token_logprobs", (0,)), ("logits", (0, 8))])
def test_an_axis_of_no_entry_is_refused(tmp_path, tap, shape):
    with xcheck.Dump(tmp_path / "dump", producer="server", architecture="llama") as dump, dump.forward(IDS):
        with pytest.raises(xcheck.DumpError, match="has no entry"):
            dump.tap(tap, np.zeros(shape, np.float32))
        dump.tap("embed", np.ones((4, 8), np.float32))


@pytest.mark.parametrize(
    ("tap", "step", "value", "expected"),
    [
        ("token_logprobs", 0.01, -1.255, "is no multiple of step=0.01"),
        ("token_logprobs", 1e6, -1.0, "of at most 0.05"),
        ("token_logprobs", -0.01, -1.0, "of at most 0.05"),
        ("token_logprobs", float("nan"), -1.0, "of at most 0.05"),
        ("embed", 0.01, -1.25, "token_logprobs and top_logprobs alone"),
    ],
)
def test_a_step_is_what_values_are_multiples_of(tmp_path, tap, step, value, expected):
    shape = (3, 1) if tap == "embed" else (2,)
    with xcheck.Dump(tmp_path / "dump", producer="server", architecture="llama") as dump, dump.forward([1, 2, 3]):
        with pytest.raises(xcheck.DumpError, match=expected):
            dump.tap(tap, np.full(shape, value, np.float32), step=step)
        dump.tap("token_logprobs", np.full(2, -1.25, np.float32), step=0.01)
    manifest = json.loads((tmp_path / "dump" / "manifest.json").read_text())
    assert (manifest["version"], manifest["tensors"][0]["step"]) == (2, 0.01)
