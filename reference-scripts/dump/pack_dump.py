"""Turns a dump that is a directory into one .safetensors or .npz file: the same manifest, and the same bytes of every array.

    python pack_dump.py DIRECTORY OUT.safetensors

A dump without `probs` gets them: the softmax of its own `last_logits`, in f64, as the other scripts take it. The manifest
says so under `derived`. Where these are a part of an array, or held otherwise than as numbers that NumPy has, it gets none.
Needs numpy alone.
"""

import hashlib
import json
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# safetensors' names of types, and how NumPy holds them. It has no bf16 and no f8: their bits are kept.
STORED = {
    "F64": "<f8", "I64": "<i8", "U64": "<u8", "F32": "<f4", "U32": "<u4", "I32": "<i4", "F16": "<f2", "BF16": "<u2",
    "U16": "<u2", "I16": "<i2", "F8_E4M3": "|u1", "F8_E5M2": "|u1", "U8": "|u1", "I8": "|i1",
}  # fmt: skip
PLAIN = ("f32", "f64", "f16")  # what `probs` are made from
NOT_WHOLE = ("axes", "rows", "of", "scale", "sketch")


@dataclass
class Array:
    """An array as it is stored."""

    dtype: str
    bits: np.ndarray


class Directory:
    """A dump that is a directory: .npy files, or .safetensors files of several arrays each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = json.loads((path / "manifest.json").read_text())

    def array(self, file: str, dtype: str) -> Array:
        """What a row names, which says that it is of this type."""
        part, _, key = file.partition("#")
        if key and part.endswith(".safetensors"):
            return self.of_part(self.path / part, key)
        bits = np.asarray(np.load(self.path / file), order="C")  # a number alone stays without axes
        name = dtype.upper()
        if name not in STORED or np.dtype(STORED[name]) != bits.dtype:  # token ids may be of another type than they say
            name = next(name for name, kind in STORED.items() if np.dtype(kind) == bits.dtype)
        return Array(name, bits)

    @staticmethod
    def of_part(path: Path, key: str) -> Array:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            entry = json.loads(file.read(length))[key]
        start, end = entry["data_offsets"]
        data = np.memmap(path, mode="r", offset=8 + length + start, shape=(end - start,)) if end > start else np.empty(0, "u1")
        return Array(entry["dtype"], data.view(STORED[entry["dtype"]]).reshape(entry["shape"]))


def packed(file: str) -> str:
    """The name of an array in the one file: layers/00.safetensors#q is there layers/00/q.npy."""
    return file if file.endswith(".npy") else file.replace(".safetensors#", "/") + ".npy"


def pack(source: Directory) -> tuple[dict, dict[str, Array]]:
    """The manifest, and every array by its key, once."""
    arrays: dict[str, Array] = {}

    def taken(file: str, dtype: str) -> str:
        name = packed(file)
        arrays.setdefault(name.removesuffix(".npy"), source.array(file, dtype))
        return name

    manifest = source.manifest
    for row in manifest["tensors"]:
        row["file"] = taken(row["file"], "f64" if row.get("sketch") else row["dtype"])
        if isinstance(row.get("scale"), str):
            row["scale"] = taken(row["scale"], "f32")
    return manifest, arrays


def add_probs(manifest: dict, arrays: dict[str, Array]) -> None:
    """The softmax of each pass's last logits, where there is none."""
    rows = manifest["tensors"]
    logits = [row for row in rows if row["tap"] == "last_logits"]
    are_plain = all(row["dtype"] in PLAIN and not any(row.get(name) for name in NOT_WHOLE) for row in logits)
    if not logits or not are_plain or any(row["tap"] == "probs" for row in rows):
        return
    for row in logits:
        temperature = manifest["passes"][row["pass"]].get("temperature", 1)
        values = arrays[row["file"].removesuffix(".npy")].bits.astype(np.float64) / temperature
        exponentials = np.exp(values - values.max(axis=-1, keepdims=True))
        probs = (exponentials / exponentials.sum(axis=-1, keepdims=True)).astype("<f4")
        key = f"p{row['pass']}/probs"
        arrays[key] = Array("F32", probs)
        found = {"dtype": "f32", "shape": list(probs.shape), "file": f"{key}.npy", "sha256": hashlib.sha256(probs).hexdigest()}
        rows.append({"tap": "probs", "pass": row["pass"], **found})
    manifest["derived"] = {"probs": "softmax of last_logits in f64, by pack_dump.py"}


def write_safetensors(out: Path, manifest: str, arrays: dict[str, Array]) -> None:
    """The longest types first, so that each array is aligned."""
    order = sorted(arrays, key=lambda key: -arrays[key].bits.dtype.itemsize)
    header, offset = {"__metadata__": {"xcheck": manifest}}, 0
    for key in order:
        array = arrays[key]
        ends = [offset, offset + array.bits.nbytes]
        header[key] = {"dtype": array.dtype, "shape": list(array.bits.shape), "data_offsets": ends}
        offset = ends[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with out.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for key in order:
            file.write(arrays[key].bits.tobytes())


def write_npz(out: Path, manifest: str, arrays: dict[str, Array]) -> None:
    """manifest.json is a member beside the arrays."""
    np.savez(out, **{key: array.bits for key, array in arrays.items()})
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr(zipfile.ZipInfo("manifest.json"), manifest)  # a ZipInfo carries no clock time


def main() -> None:
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    manifest, arrays = pack(Directory(source))
    add_probs(manifest, arrays)
    out.parent.mkdir(parents=True, exist_ok=True)
    write = {".safetensors": write_safetensors, ".npz": write_npz}[out.suffix]
    write(out, json.dumps(manifest, indent=1) + "\n", arrays)


if __name__ == "__main__":
    main()
