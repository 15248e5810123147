"""Dumps as plain bytes, right or wrong, in each container: what make_conformance.py makes them of. Needs nothing but Python."""

import copy
import json
import struct
import zipfile
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

# Bytes of an element, and its name in safetensors and in NumPy, which has no bf16: its bits are kept.
TYPES = {"f32": (4, "F32", "<f4"), "f64": (8, "F64", "<f8"), "f16": (2, "F16", "<f2"), "bf16": (2, "BF16", "<u2"),
         "u32": (4, "U32", "<u4"), "f8_e4m3": (1, "F8_E4M3", "|u1"), "f8_e5m2": (1, "F8_E5M2", "|u1")}  # fmt: skip

# Of types of 8 bits: bits of the fraction, the bias of the exponent, and how many numbers of one sign are finite.
EIGHTHS = {"f8_e4m3": (3, 7, 0x7F), "f8_e5m2": (2, 15, 0x7C)}


@dataclass(frozen=True)
class Array:
    """Elements as they are stored, row-major."""

    dtype: str
    shape: list[int]
    data: bytes

    def cut(self, axis: int, start: int, end: int) -> "Array":
        """A range of one axis."""
        outer, inner = prod(self.shape[:axis]), prod(self.shape[axis + 1 :]) * TYPES[self.dtype][0]
        row = self.shape[axis] * inner
        parts = [self.data[at * row + start * inner : at * row + end * inner] for at in range(outer)]
        return Array(self.dtype, [*self.shape[:axis], end - start, *self.shape[axis + 1 :]], b"".join(parts))

    def joined(self, axis: int, others: list["Array"]) -> "Array":
        """With others behind it along an axis."""
        arrays = [self, *others]
        outer = prod(self.shape[:axis])
        rows = [(array.data, len(array.data) // outer) for array in arrays]
        data = b"".join(data[at * row : (at + 1) * row] for at in range(outer) for data, row in rows)
        length = sum(array.shape[axis] for array in arrays)
        return Array(self.dtype, [*self.shape[:axis], length, *self.shape[axis + 1 :]], data)

    def seen_as(self, *shape: int) -> "Array":
        """The same elements in another shape."""
        return Array(self.dtype, list(shape), self.data)

    def transposed(self) -> "Array":
        """A matrix with its axes changed about."""
        size, (rows, columns) = TYPES[self.dtype][0], self.shape
        places = ((row * columns + column) * size for column in range(columns) for row in range(rows))
        return Array(self.dtype, [columns, rows], b"".join(self.data[at : at + size] for at in places))

    def widened(self) -> "Array":
        """bf16 as f32."""
        halves = (self.data[at : at + 2] for at in range(0, len(self.data), 2))
        return Array("f32", self.shape, b"".join(b"\0\0" + half for half in halves))

    def eighth(self, dtype: str, by_row: bool = False) -> tuple["Array", "Array"]:
        """f32 in 8 bits, and the scales by which it was divided: of all, or of each entry of the outermost axis."""
        sizes = eighths(dtype)
        values = struct.unpack(f"<{prod(self.shape)}f", self.data)
        count = self.shape[0] if by_row else 1
        row = len(values) // count
        codes, scales = bytearray(), []
        for part in (values[at * row : (at + 1) * row] for at in range(count)):
            (scale,) = struct.unpack("<f", struct.pack("<f", max(map(abs, part)) / sizes[-1]))
            scales.append(scale)
            codes += bytes(nearest(sizes, abs(value) / scale) | (0x80 if value < 0 else 0) for value in part)
        shape = [count] + [1] * (len(self.shape) - 1)
        return Array(dtype, self.shape, bytes(codes)), Array("f32", shape, struct.pack(f"<{count}f", *scales))

    def times(self, factor: float) -> "Array":
        """f32, each element by a factor."""
        values = struct.unpack(f"<{prod(self.shape)}f", self.data)
        return Array("f32", self.shape, struct.pack(f"<{len(values)}f", *(value * factor for value in values)))


def eighths(dtype: str) -> list[float]:
    """The finite numbers of a type of 8 bits that are not negative, by their patterns."""
    fraction, bias, count = EIGHTHS[dtype]
    parts = [divmod(pattern, 1 << fraction) for pattern in range(count)]
    return [(rest + (exponent > 0) * 2**fraction) * 2.0 ** (max(exponent, 1) - bias - fraction) for exponent, rest in parts]


def nearest(sizes: list[float], size: float) -> int:
    """The pattern of the nearest; of two the even one."""
    return min(range(len(sizes)), key=lambda pattern: (abs(sizes[pattern] - size), pattern % 2))


@dataclass
class Dump:
    """A manifest and its arrays by key (`p0/l00/q`)."""

    manifest: dict
    arrays: dict[str, Array]
    npy: dict[str, bytes] = field(default_factory=dict)  # files whose bytes are made by hand

    def copy(self) -> "Dump":
        """One that may be changed."""
        return copy.deepcopy(self)

    def row(self, tap: str) -> dict:
        """What the manifest says of a tap of the first pass."""
        return next(row for row in self.manifest["tensors"] if row["tap"] == tap)

    def put(self, tap: str, array: Array, **fields: object) -> None:
        """Changes a tap's array, and what the manifest says of it."""
        row = self.row(tap)
        self.arrays[row["file"].removesuffix(".npy")] = array
        row.update(dtype=array.dtype, shape=array.shape, **fields)

    def only(self, *taps: str) -> "Dump":
        """With these taps alone."""
        self.manifest["tensors"] = [row for row in self.manifest["tensors"] if row["tap"] in taps]
        kept = {row["file"].removesuffix(".npy") for row in self.manifest["tensors"]}
        self.arrays = {key: array for key, array in self.arrays.items() if key in kept}
        return self


# ---- containers ------------------------------------------------------------------------------------------------


def npy(array: Array, descr: str | None = None, cut_off: int = 0) -> bytes:
    """A .npy file of version 1.0."""
    lengths = "".join(f"{length}," for length in array.shape)
    header = f"{{'descr': '{descr or TYPES[array.dtype][2]}', 'fortran_order': False, 'shape': ({lengths}), }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    data = array.data[: len(array.data) - cut_off]
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def safetensors(arrays: dict[str, Array], metadata: dict[str, str] | None) -> bytes:
    """A .safetensors file: what is wide goes first, so that every element is aligned."""
    header: dict = {} if metadata is None else {"__metadata__": metadata}
    offset, body = 0, []
    for key, array in sorted(arrays.items(), key=lambda item: -TYPES[item[1].dtype][0]):
        end = offset + len(array.data)
        header[key] = {"dtype": TYPES[array.dtype][1], "shape": array.shape, "data_offsets": [offset, end]}
        body.append(array.data)
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(body)


def write_folder(out: Path, dump: Dump) -> None:
    """.npy files and manifest.json."""
    files = {f"{key}.npy": npy(array) for key, array in dump.arrays.items()} | dump.npy
    for name, data in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    out.mkdir(parents=True, exist_ok=True)
    (out / "manifest.json").write_text(json.dumps(dump.manifest, indent=1) + "\n")


def write_file(out: Path, dump: Dump) -> None:
    """One .safetensors file."""
    out.write_bytes(safetensors(dump.arrays, {"xcheck": json.dumps(dump.manifest)}))


def write_archive(out: Path, dump: Dump) -> None:
    """One .npz file: a zip archive without compression and without clock times."""
    with zipfile.ZipFile(out, "w") as archive:
        for key, array in dump.arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{key}.npy"), npy(array))
        archive.writestr(zipfile.ZipInfo("manifest.json"), json.dumps(dump.manifest))
