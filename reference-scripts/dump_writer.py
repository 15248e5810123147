"""Writes an xcheck dump: a directory of .npy files with manifest.json, or one .safetensors or .npz file.

The three containers carry the same manifest and the same arrays, and the same input gives the same bytes.
"""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
    """One tensor of a dump; `pass_index` and `layer` are None where the tap has none."""

    tap: str
    pass_index: int | None
    layer: int | None
    dtype: str
    values: np.ndarray
    sketch: bool = False

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
            "sha256": hashlib.sha256(self.array.tobytes()).hexdigest(),
        }

    @property
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
