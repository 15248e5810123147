"""Reads a dump that is one .safetensors file, for scripts that pass its arrays on.

Needs numpy and safetensors (requirements.txt).
"""

import json
import sys
from pathlib import Path

import numpy as np

from dump_writer import NUMPY_TYPES, Record

# What makes an array something else than all of a tap in its own axes, as it was computed (docs/reference/dump-format.md).
NOT_PLAIN = ("axes", "rows", "of", "computed", "scale", "sketch")


def read(path: Path) -> tuple[dict, list[Record]]:
    """The manifest without its rows, and their arrays, mapped: of their values nothing is read yet."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    manifest = json.loads(header["__metadata__"]["xcheck"])
    data = np.memmap(path, mode="r", offset=8 + length)
    return manifest, [record(path, row, header, data) for row in manifest.pop("tensors")]


def record(path: Path, row: dict, header: dict, data: np.ndarray) -> Record:
    """A row of the manifest with its array."""
    key = row["file"].removesuffix(".npy")
    if unknown := [name for name in NOT_PLAIN if row.get(name)]:
        sys.exit(f"error: {path}: {key} has {', '.join(unknown)}: this script takes whole arrays as a tap has them")
    if row["dtype"] not in NUMPY_TYPES:
        sys.exit(f"error: {path}: {key} is stored as {row['dtype']}; known: {', '.join(NUMPY_TYPES)}")
    start, end = header[key]["data_offsets"]
    values = data[start:end].view(NUMPY_TYPES[row["dtype"]]).reshape(row["shape"])
    return Record(row["tap"], row.get("pass"), row.get("layer"), row["dtype"], values)
