"""A .safetensors file whose tensors come one by one.

The header stands first in the file and is known last. So values go into a spool, and are copied behind the header in
the end: those of the widest type first, as the format's own library does, so that each lies at a multiple of its size.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .arrays import Stored

TYPES = {
    "f32": "F32",
    "f64": "F64",
    "f16": "F16",
    "bf16": "BF16",
    "u32": "U32",
    "i32": "I32",
    "f8_e4m3": "F8_E4M3",
    "f8_e5m2": "F8_E5M2",
}
CHUNK = 1 << 24  # bytes that are copied at once


@dataclass(frozen=True)
class Entry:
    """One tensor in the spool."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int
    itemsize: int


class Spool:
    """The tensors of one file, written as they come."""

    def __init__(self, path: Path):
        self.path = path
        self.file: BinaryIO = path.open("x+b")
        self.entries: list[Entry] = []
        self.end = 0

    def append(self, key: str, array: Stored) -> None:
        """Writes a C-ordered array."""
        self.file.write(array.bits.reshape(-1).view(np.uint8).data)
        size = array.bits.nbytes
        self.entries.append(Entry(key, TYPES[array.dtype], array.shape, self.end, size, array.bits.itemsize))
        self.end += size

    def assemble(self, path: Path, metadata: dict[str, str]) -> None:
        """Writes the file, and removes the spool."""
        order = sorted(self.entries, key=lambda entry: -entry.itemsize)
        with path.open("wb") as out:
            out.write(header(order, metadata))
            for entry in order:
                self.file.seek(entry.offset)
                copy(self.file, out, entry.size)
        self.discard()

    def discard(self) -> None:
        self.file.close()
        self.path.unlink(missing_ok=True)


def header(entries: list[Entry], metadata: dict[str, str]) -> bytes:
    """Length and JSON, padded with spaces to a multiple of eight bytes."""
    content: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    start = 0
    for entry in entries:
        offsets = [start, start + entry.size]
        content[entry.key] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": offsets}
        start += entry.size
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    """Copies `size` bytes from where the source stands."""
    while size:
        block = source.read(min(size, CHUNK))
        if not block:
            raise OSError("the spooled values end early")
        target.write(block)
        size -= len(block)
