"""Writes an xcheck dump: a directory of .npy files with manifest.json, or one .safetensors or .npz file.

The three containers carry the same manifest and the same arrays, and the same input gives the same bytes.
"""

import hashlib
import json
import zipfile
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
            "sha256": hashlib.sha256(self.array.tobytes()).hexdigest(),
        }

    @property
    def array(self) -> np.ndarray:
        """Its values C-ordered and little-endian, of the type the dtype is stored as."""
        return np.asarray(self.values, dtype=NUMPY_TYPES[self.dtype], order="C")


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
            dtype=SAFETENSORS_TYPES[record.dtype],
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
