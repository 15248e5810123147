"""A reader of dumps that shares nothing with the package, written from docs/reference/dump-format.md: for tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

TYPES = {
    "F32": "<f4",
    "F64": "<f8",
    "F16": "<f2",
    "BF16": "<u2",
    "U32": "<u4",
    "I32": "<i4",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
}
BITS = {
    "f32": "<f4",
    "f64": "<f8",
    "f16": "<f2",
    "bf16": "<u2",
    "u32": "<u4",
    "i32": "<i4",
    "f8_e4m3": "u1",
    "f8_e5m2": "u1",
}


def safetensors(path: Path) -> tuple[dict, dict]:
    """Metadata and arrays, as bits."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    body, arrays, covered = data[8 + length :], {}, 0
    for key, entry in header.items():
        start, end = entry["data_offsets"]
        assert start == covered, "no holes"
        kind = np.dtype(TYPES[entry["dtype"]])
        assert start % kind.itemsize == 0, "aligned"
        arrays[key] = np.frombuffer(body[start:end], kind).reshape(entry["shape"])
        covered = end
    assert covered == len(body)
    return metadata, arrays


def decode(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Bits as numbers."""
    assert bits.dtype == np.dtype(BITS[dtype]), (bits.dtype, dtype)
    if dtype == "bf16":
        return (bits.astype("<u4") << 16).view("<f4")
    if dtype.startswith("f8"):
        exponent, bias = (4, 7) if dtype == "f8_e4m3" else (5, 15)
        mantissa = 7 - exponent
        byte = np.arange(256)
        e, m = (byte >> mantissa) & (2**exponent - 1), byte & (2**mantissa - 1)
        table = np.where(
            e == 0, m / 2**mantissa * 2.0 ** (1 - bias), (1 + m / 2**mantissa) * 2.0 ** (e.astype(float) - bias)
        )
        return (np.where(byte & 128, -1, 1) * table)[bits].astype("<f4")
    return bits


class Reader:
    """A dump's manifest and arrays."""

    def __init__(self, path: Path):
        self.path = Path(path)
        if self.path.is_dir():
            self.manifest = json.loads((self.path / "manifest.json").read_text())
        else:
            metadata, self.arrays = safetensors(self.path)
            self.manifest = json.loads(metadata["xcheck"])
        self.rows = self.manifest["tensors"]
        assert all(("tap" in row) != ("module" in row) for row in self.rows)

    def file(self, name: str) -> np.ndarray:
        """An array as it is stored."""
        if "#" in name:
            file, key = name.split("#")
            return safetensors(self.path / file)[1][key]
        if self.path.is_dir():
            return np.load(self.path / name)
        return self.arrays[name[:-4] if name.endswith(".npy") else name]

    def value(self, row: dict) -> np.ndarray:
        """The numbers of a row, of its `shape`."""
        bits = self.file(row["file"])
        if "of" in row:
            of = row["of"]
            ends = of.get("end", of["shape"])
            starts = of.get("start", [0] * len(ends))
            bits = bits.reshape(of["shape"])[tuple(slice(a, b) for a, b in zip(starts, ends))].reshape(row["shape"])
        assert list(bits.shape) == row["shape"], row
        numbers = decode(bits, row["dtype"])
        if "scale" in row:
            scale = row["scale"] if isinstance(row["scale"], float) else self.file(row["scale"])
            numbers = numbers * scale
        return numbers

    def find(self, tap: str, index: int, layer: int | None = None) -> dict | None:
        fits = [row for row in self.rows if (row.get("tap"), row["pass"], row.get("layer")) == (tap, index, layer)]
        assert len(fits) < 2
        return fits[0] if fits else None

    def outputs(self) -> dict[tuple[str, int, int], dict]:
        """The rows of modules, by path, pass and call."""
        found = {(row["module"], row["pass"], row.get("call", 0)): row for row in self.rows}
        assert len(found) == len(self.rows)
        return found

    def inputs(self, index: int) -> dict[str, np.ndarray]:
        """The arrays that the model was given in a pass, besides its tokens."""
        found = {}
        for name, told in self.manifest.get("inputs", {}).items():
            for entry in told if isinstance(told, list) else [told]:
                if entry["pass"] == index:
                    assert name not in found
                    value = self.value(entry)
                    found[name] = value.astype(bool) if entry.get("type") == "bool" else value
        return found

    def owners(self, index: int) -> list[tuple[int | None, int]]:
        """The sequence and position of each row of a pass."""
        current = self.manifest["passes"][index]
        if "sequence" in current:
            assert len(current["sequence"]) == len(current["tokens"]) == len(current["position"])
            return list(zip(current["sequence"], current["position"]))
        return [(0, current["position"] + row) for row in range(len(current["tokens"]))]

    def of_sequence(self, sequence: int, tap: str, layer: int | None = None) -> np.ndarray:
        """A tap with an axis `token` in front, for every position of a sequence that is held."""
        found = {}
        for index in range(len(self.manifest["passes"])):
            row = self.find(tap, index, layer)
            if row is None:
                continue
            assert "axes" not in row
            owners = self.owners(index)
            owners = [owners[place] for place in row["rows"]] if "rows" in row else owners
            value = self.value(row)
            if value.ndim > (3 if tap[:2] in ("q", "k", "v", "q_", "k_") else 2):  # batch, token
                value = value.reshape(-1, *value.shape[2:])
            assert value.shape[0] == len(owners)
            for place, (owner, position) in enumerate(owners):
                if owner == sequence:
                    assert position not in found
                    found[position] = value[place]
        assert sorted(found) == list(range(len(found)))
        return np.stack([found[position] for position in sorted(found)])
