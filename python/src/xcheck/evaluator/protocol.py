"""Worker protocol, version 1: requests as JSON lines, answers as a sequence of safetensors messages."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

PROTOCOL = 1
KEY = "xcheck-evaluator"
END = bytes(8)


class Answers:
    """The stream of answers."""

    def __init__(self, stream: BinaryIO):
        self.stream = stream

    def send(self, message: dict[str, Any], tensors: dict[str, Array] | None = None) -> None:
        """Writes one message with f64 arrays."""
        self.stream.write(encoded(message, tensors or {}))
        self.stream.flush()

    def end(self) -> None:
        """Ends the answer to a request."""
        self.stream.write(END)
        self.stream.flush()


def encoded(message: dict[str, Any], tensors: dict[str, Array]) -> bytes:
    """Returns a complete safetensors file."""
    header: dict[str, Any] = {"__metadata__": {KEY: json.dumps(message, allow_nan=False)}}
    parts, start = [], 0
    for name, tensor in tensors.items():
        content = np.ascontiguousarray(tensor, dtype="<f8").tobytes()
        offsets = [start, start + len(content)]
        header[name] = {"dtype": "F64", "shape": list(tensor.shape), "data_offsets": offsets}
        parts.append(content)
        start += len(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def decoded(stream: BinaryIO) -> tuple[dict[str, Any], dict[str, Array]] | None:
    """Reads one message; None is the end of an answer."""
    length = int.from_bytes(read_exactly(stream, 8), "little")
    if length == 0:
        return None
    header = json.loads(read_exactly(stream, length))
    message = json.loads(header.pop("__metadata__")[KEY])
    size = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    content = bytearray(read_exactly(stream, size))
    tensors = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        values = np.frombuffer(content, dtype="<f8", count=(last - first) // 8, offset=first)
        tensors[name] = values.reshape(entry["shape"])
    return message, tensors


def read_exactly(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    if len(content) != size:
        raise EOFError(f"the answer ends after {len(content)} of {size} bytes")
    return content


def claim_stdout() -> BinaryIO:
    """Returns a stream to the program; prints of libraries go to standard error, at the level of descriptors too."""
    sys.stdout.flush()
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return stream
