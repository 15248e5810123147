"""Writes an xcheck dump: a directory of .npy files with manifest.json, or one .safetensors or .npz file; or sends it
layer by layer into a pipe, while the model runs.

The three containers carry the same manifest and the same arrays, and the same input gives the same bytes. What a stream
carries is that of a file.
"""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
from safetensors import TensorSpec, serialize_file

# The dump's dtypes: the array that holds one, and safetensors' name for it. NumPy has no bf16: its bits are kept.
NUMPY_TYPES = {"f32": "<f4", "f64": "<f8", "f16": "<f2", "bf16": "<u2", "u32": "<u4", "i32": "<i4"}
SAFETENSORS_TYPES = {
    "f32": "float32",
    "f64": "float64",
    "f16": "float16",
    "bf16": "bfloat16",
    "u32": "uint32",
    "i32": "int32",
}


@dataclass(frozen=True)
class Record:
    """One tensor of a dump; `pass_index` and `layer` are None where the tap has none. With `rows` its values are these rows of
    the pass and no others, which takes version 2."""

    tap: str
    pass_index: int | None
    layer: int | None
    dtype: str
    values: np.ndarray
    sketch: bool = False
    rows: tuple[int, ...] | None = None

    @property
    def key(self) -> str:
        """Its path in the dump, without `.npy`: p0/l00/attn_norm, p0/logits, generated."""
        parts = [] if self.pass_index is None else [f"p{self.pass_index}"]
        parts += [] if self.layer is None else [f"l{self.layer:02}"]
        return "/".join([*parts, self.tap])

    @property
    def row(self) -> dict:
        """Its row in the manifest's `tensors`."""
        place = {"pass": self.pass_index, "layer": self.layer}
        return {
            "tap": self.tap,
            **{name: index for name, index in place.items() if index is not None},
            "dtype": self.dtype,
            "shape": list(self.values.shape),
            "file": f"{self.key}.npy",
            **({"sketch": True} if self.sketch else {}),
            **({"rows": list(self.rows)} if self.rows else {}),
            "sha256": hashlib.sha256(self.array.data).hexdigest(),
        }

    @cached_property
    def array(self) -> np.ndarray:
        """Its values C-ordered and little-endian, of the type the dtype is stored as; or their sketch."""
        if self.sketch:
            return sketched(self.tap, as_f32(self.values, self.dtype))
        return np.asarray(self.values, dtype=NUMPY_TYPES[self.dtype], order="C")


# Taps of one row in all; those with heads in front of tokens; and those that have no sketch.
WHOLE, BY_HEAD = ("last_logits", "probs"), ("attn_scores", "attn_weights")
NOT_SKETCHED = ("attn_scores", "argmax", "generated")
PROJECTIONS = 8


def as_f32(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values as f32; bf16 is held by its bits."""
    return (values.astype("<u4") << 16).view("<f4") if dtype == "bf16" else np.asarray(values, "<f4")


def signs(elements: int) -> np.ndarray:
    """The signs of elements in each projection, [elements, PROJECTIONS]: the low bits of splitmix64 of the index."""
    with np.errstate(over="ignore"):
        z = np.arange(elements, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    bits = (z[:, None] >> np.arange(PROJECTIONS, dtype=np.uint64)) & np.uint64(1)
    return bits.astype(np.float64) * 2 - 1


def sketched(tap: str, values: np.ndarray) -> np.ndarray:
    """Twelve numbers for each token: the CRC-32 of its values as little-endian f32, their sum, the sum of their squares, the
    largest size, and eight projections. Of attention's weights a token's values are all heads', one behind the other."""
    if tap in BY_HEAD:
        values = values.swapaxes(0, 1)
    rows = np.ascontiguousarray(values.reshape(1 if tap in WHOLE else len(values), -1), dtype="<f4")
    wide = rows.astype(np.float64)
    checksums = np.array([zlib.crc32(row.tobytes()) for row in rows], dtype=np.float64)
    figures = [checksums, wide.sum(1), (wide**2).sum(1), np.abs(wide).max(1)]
    return np.column_stack([*figures, wide @ signs(rows.shape[1])])


def write_directory(out: Path, manifest: str, records: list[Record]) -> None:
    """One .npy file per record, and manifest.json."""
    for record in records:
        path = out / f"{record.key}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, record.array)
    (out / "manifest.json").write_text(manifest)


def write_safetensors(out: Path, manifest: str, records: list[Record]) -> None:
    """One .safetensors file; the manifest is the metadata string `xcheck`."""
    arrays = [record.array for record in records]  # held here: TensorSpec has only their addresses
    specs = {
        record.key: TensorSpec(
            dtype="float64" if record.sketch else SAFETENSORS_TYPES[record.dtype],
            shape=array.shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for record, array in zip(records, arrays, strict=True)
    }
    serialize_file(specs, out, metadata={"xcheck": manifest})


def write_npz(out: Path, manifest: str, records: list[Record]) -> None:
    """One .npz file; manifest.json is a member beside the arrays."""
    np.savez(out, **{record.key: record.array for record in records})
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr(zipfile.ZipInfo("manifest.json"), manifest)  # a ZipInfo carries no clock time


def container_writer(out: Path) -> Callable[[Path, str, list[Record]], None]:
    """What writes to `out`: its suffix names the container, anything else is a directory."""
    return {".safetensors": write_safetensors, ".npz": write_npz}.get(out.suffix, write_directory)


def prepare(out: Path) -> None:
    """To be called before the long work: makes the parent directory, and refuses to mix a dump with other files."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir() and any(out.iterdir()):
        raise FileExistsError(f"{out}: the directory is not empty")


def write_dump(out: Path, manifest: dict, records: list[Record]) -> None:
    """Writes `manifest`, completed with one row per record, and the records to `out`."""
    complete = manifest | {"tensors": [record.row for record in records]}
    container_writer(out)(out, json.dumps(complete, indent=1) + "\n", records)


# Where a record is sent: with its layer; embeddings go with layer 0, what follows the last layer goes last.
HEAD = 1 << 16
# What a stream ends with: the length of a header that is none.
END = bytes(8)


class StreamWriter:
    """Sends a dump into a pipe that `xcheck check --candidate -` reads: each layer as one message, as soon as the next one
    begins, so that no more than a layer is held. While xcheck judges a message, writing the next one waits.

        with StreamWriter(sys.stdout.buffer, manifest) as writer:
            writer.add(Record("embed", 0, None, "f32", values))
            writer.add(Record("attn_norm", 0, 0, "f32", values))
            ...

    `manifest` is that of a dump without `tensors`: all passes stand in it before the first message. Nothing else may write
    to the pipe. Layers come in order, each with all its passes.
    """

    def __init__(self, stream: BinaryIO, manifest: dict) -> None:
        self.stream = stream
        self.manifest = manifest
        self.at = 0
        self.is_sent = False
        self.inputs: list[Record] = []
        self.records: list[Record] = []

    def add(self, record: Record) -> None:
        """The tap function: keeps a copy of a value until its layer is sent."""
        if record.sketch:
            raise ValueError("sketches are small and nothing can start from them: write them to a file with write_dump")
        if record.layer is None:
            at = 0 if record.tap == "embed" else HEAD
        else:
            at = record.layer
        if at < self.at or (at == self.at and self.is_sent):
            raise ValueError(
                f"{record.key} comes when its layer was sent already: a stream needs all passes of a layer together. "
                "Read prompt and continuation in one pass, run the passes layer by layer, or write a file with write_dump"
            )
        if at > self.at:
            self.flush_layer()
            self.at, self.is_sent = at, False
        self.records.append(replace(record, values=np.array(record.values)))

    def flush_layer(self) -> None:
        """Sends what was kept, with what the layer starts from. It is called when the next layer begins."""
        if not self.records:
            return
        write_message(self.stream, self.manifest, self.inputs + self.records)
        self.inputs = [record for record in self.records if record.tap == "block_out"]
        self.records = []
        self.is_sent = True

    def close(self, generated: list[int] | None = None) -> None:
        """Sends the rest, and marks the end: without that mark the stream is taken to have broken off."""
        if generated is not None:
            self.manifest = self.manifest | {"generated": generated}
        self.flush_layer()
        self.stream.write(END)
        self.stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()


def write_message(stream: BinaryIO, manifest: dict, records: list[Record]) -> None:
    """A safetensors file, written array by array; what is wide goes first, so that every element is aligned."""
    records = sorted(records, key=lambda record: -np.dtype(NUMPY_TYPES[record.dtype]).itemsize)
    complete = json.dumps(manifest | {"tensors": [record.row for record in records]})
    header: dict = {"__metadata__": {"xcheck": complete}}
    offset = 0
    for record in records:
        end = offset + record.array.nbytes
        shape = list(record.array.shape)
        header[record.key] = {"dtype": record.dtype.upper(), "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little") + text)
    for record in records:
        stream.write(record.array.reshape(-1).view(np.uint8).data)
    stream.flush()
