"""Arrays in an engine's own axes come out in those of the tap."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import numbers
from reader import Reader

T, H, K, D, S = 3, 4, 2, 8, 3  # tokens, heads, key-value heads, head size, keys
Q = numbers(T, H, D)
KEYS = numbers(T, K, D)


def written(small, tmp_path, tap, value, **options):
    with small() as dump, dump.forward(list(range(1, T + 1))):
        dump.tap(tap, value, **options)
    read = Reader(tmp_path / "dump.safetensors")
    assert read.manifest["version"] == (2 if "rows" in options else 1)
    assert "axes" not in read.rows[0]
    return read.value(read.rows[0])


@pytest.mark.parametrize(
    ("value", "axes"),
    [
        (Q, None),
        (Q[None], None),
        (Q.reshape(T, -1), None),
        (Q.reshape(1, T, -1), None),
        (Q.transpose(1, 0, 2), ("head", "token", "head_dim")),
        (Q.transpose(1, 0, 2)[None], ("batch", "head", "token", "head_dim")),
        (Q.transpose(1, 0, 2)[:, None], ("head", "batch", "token", "head_dim")),
        (Q.reshape(T, K, H // K, D), ("token", "kv_head", "group", "head_dim")),
        (Q.reshape(T, K, H // K, D).transpose(1, 2, 0, 3), ("kv_head", "group", "token", "head_dim")),
        (Q.reshape(T, -1).T, ("hidden", "token")),
        (Q.transpose(0, 2, 1), ("token", "head_dim", "head")),
    ],
)
def test_queries(small, tmp_path, value, axes):
    np.testing.assert_array_equal(written(small, tmp_path, "q", value, layer=0, axes=axes), Q)


@pytest.mark.parametrize(
    ("value", "axes"),
    [(KEYS, None), (KEYS.reshape(T, -1), None), (KEYS.swapaxes(0, 1)[None], ("batch", "kv_head", "key", "head_dim"))],
)
def test_cached_keys(small, tmp_path, value, axes):
    np.testing.assert_array_equal(written(small, tmp_path, "k_cache", value, layer=0, axes=axes), KEYS)


@pytest.mark.parametrize(
    ("value", "axes"),
    [
        (Q.reshape(T, -1), None),
        (Q, ("token", "head", "head_dim")),
        (Q.transpose(1, 0, 2), ("head", "token", "head_dim")),
        (Q.reshape(1, T, K, H // K, D), ("batch", "token", "kv_head", "group", "head_dim")),
    ],
)
def test_contexts_are_merged(small, tmp_path, value, axes):
    np.testing.assert_array_equal(written(small, tmp_path, "attn_context", value, layer=0, axes=axes), Q.reshape(T, -1))


def test_scores(small, tmp_path):
    value = numbers(H, T, S)
    np.testing.assert_array_equal(written(small, tmp_path, "attn_scores", value[None], layer=0), value)
    turned = written(small, tmp_path, "attn_scores", value.transpose(1, 2, 0), layer=0, axes=("token", "key", "head"))
    np.testing.assert_array_equal(turned, value)
    np.testing.assert_array_equal(
        written(small, tmp_path, "attn_scores", value[:, [0, 2]], layer=0, rows=[0, 2]), value[:, [0, 2]]
    )


def test_what_a_sequence_has_once_has_a_row_for_it(small, tmp_path):
    for value in (numbers(9), numbers(1, 9)):
        np.testing.assert_array_equal(written(small, tmp_path, "last_logits", value), numbers(1, 9))
    for value in (5, np.int64(5), [5], np.array([5], np.uint8)):
        np.testing.assert_array_equal(written(small, tmp_path, "argmax", value), [5])


def test_without_heads_only_heads_of_their_own_are_taken(small, tmp_path):
    unknown = {"n_heads": None, "n_kv_heads": None, "head_dim": None}
    with small(**unknown) as dump, dump.forward([1, 2, 3]):
        dump.tap("q", Q, layer=0)
        with pytest.raises(ValueError, match="give Dump n_heads, n_kv_heads and head_dim"):
            dump.tap("k", KEYS.reshape(T, -1), layer=0)
        with pytest.raises(ValueError, match="give Dump n_heads, n_kv_heads and head_dim"):
            dump.tap("k", KEYS.reshape(T, -1), layer=0, axes=("token", "hidden"))
    assert len(Reader(tmp_path / "dump.safetensors").rows) == 1
