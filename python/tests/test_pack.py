"""reference-scripts/dump/pack_dump.py makes one file of a directory, with everything that its rows say."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from conftest import ROOT, numbers
from reader import Reader

SCRIPT = ROOT / "reference-scripts" / "dump" / "pack_dump.py"


def write(small, name, **how):
    """A dump with an array of several taps, some rows, eight bits with scales, short bits and other axes."""
    with small(name, **how) as dump, dump.forward([1, 2, 3]):
        dump.tap("embed", numbers(3, 32), computed="bf16")
        dump.tap("qkv", numbers(3, 64), layer=0)
        dump.tap("attn_context", numbers(3, 4, 8), layer=0, axes=("token", "head", "head_dim"))
        dump.tap(
            "ffn_norm",
            np.arange(96, dtype=np.uint8).reshape(3, 32),
            layer=0,
            dtype="f8_e4m3",
            scale=numbers(3, 1) ** 2 + 1,
        )
        dump.tap("ffn_out", np.full((3, 32), 0x3F80, np.uint16), layer=0, dtype="bf16")
        dump.tap("logits", numbers(1, 40), rows=[2])
        dump.tap("last_logits", numbers(40))
        dump.tap("argmax", 7)


def as_recorded(folder):
    """A choice as `xcheck dump` writes it: a number alone, without an axis."""
    manifest = json.loads((folder / "manifest.json").read_text())
    (row,) = [row for row in manifest["tensors"] if row["tap"] == "argmax"]
    row.update(shape=[], file="p0/argmax-alone.npy", dtype="u32")
    row.pop("sha256", None)
    (folder / "p0").mkdir(exist_ok=True)
    np.save(folder / row["file"], np.uint32(7))
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("by_layer", [False, True])
@pytest.mark.parametrize("end", ["safetensors", "npz"])
def test_a_packed_dump_is_the_same_dump(small, tmp_path, by_layer, end):
    write(small, "dump", by_layer=by_layer)
    as_recorded(tmp_path / "dump")
    out = tmp_path / f"out.{end}"
    subprocess.run([sys.executable, str(SCRIPT), str(tmp_path / "dump"), str(out)], check=True)
    before = Reader(tmp_path / "dump")
    if end == "npz":
        with np.load(out) as file:
            arrays = dict(file)
        manifest = json.loads(arrays.pop("manifest.json"))
        after = Reader(tmp_path / "dump")
        after.path, after.arrays, after.manifest, after.rows = out, arrays, manifest, manifest["tensors"]
    else:
        after = Reader(out)
    *kept, probs = after.rows
    assert {**after.manifest, "tensors": kept, "derived": None} == {
        **before.manifest,
        "tensors": [{**row, **{key: after_row[key] for key in ("file", "scale") if key in row}}
                    for row, after_row in zip(before.rows, kept)],
        "derived": None,
    }  # fmt: skip
    for one, other in zip(before.rows, kept):
        np.testing.assert_array_equal(before.value(one), after.value(other))
        stored = after.arrays[other["file"].removesuffix(".npy")]
        if "of" not in other and "sketch" not in other:
            assert list(stored.shape) == other["shape"], other["tap"]
    logits = numbers(40).astype(np.float64)
    np.testing.assert_allclose(after.value(probs).reshape(-1), np.exp(logits) / np.exp(logits).sum(), rtol=1e-6)
