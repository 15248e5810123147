"""A dump of module outputs or taps: one .safetensors or .npz file, or a directory with manifest.json."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Callable

import numpy as np
import torch

from .errors import EvaluatorError
from .tap_rows import TapRow, read_tap

TYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i32": torch.int32,
    "u32": torch.int32,
    "i64": torch.int64,
}
SAFETENSORS = {
    "F32": torch.float32,
    "F64": torch.float64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.int32,
    "I64": torch.int64,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
COMPUTED = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}


@dataclass
class Row:
    """One recorded array."""

    module: str
    call: int
    pass_number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    file: str

    @property
    def site(self) -> tuple[str, int, int]:
        return self.module, self.call, self.pass_number


@dataclass
class Dump:
    """The manifest of a dump, and a reader of its arrays."""

    manifest: dict[str, Any]
    rows: dict[tuple[str, int, int], Row]
    read_file: Callable[[str], torch.Tensor]
    dtype: torch.dtype
    passes: list[list[int]]
    positions: list[int]  # of the first token of each pass
    modules: set[str] = field(default_factory=set)
    taps: dict[tuple[str, int | None, int], TapRow] = field(default_factory=dict)
    autocast: torch.dtype | None = None  # type that products are computed in

    def inputs(self, pass_number: int) -> dict[str, torch.Tensor]:
        """Reads the arrays that the model was given in a pass besides its tokens, by the names of the arguments."""
        found = {}
        for name, entries in self.manifest.get("inputs", {}).items():
            for entry in entries if isinstance(entries, list) else [entries]:
                if int(entry.get("pass", 0)) == pass_number:
                    found[name] = self.input(entry)
        tokens = self.passes[pass_number]
        given = found.get("input_ids")
        if given is not None and tokens and given.reshape(-1).tolist() != tokens:
            raise broken(f"inputs.input_ids: other tokens than those of pass {pass_number}, expected the same")
        return found

    def input(self, entry: dict[str, Any]) -> torch.Tensor:
        values = self.read_file(entry["file"])
        dtype = TYPES[entry["dtype"]]
        if values.dtype != dtype and values.element_size() == dtype.itemsize:
            values = values.view(dtype)
        shape = [int(length) for length in entry["shape"]]
        if values.numel() != int(np.prod(shape)):
            raise broken(f"{entry['file']}: {values.numel()} values, expected the shape {shape}")
        values = values.reshape(shape)
        if entry.get("type") == "bool":
            return values.bool()
        return values if values.is_floating_point() else values.long()

    def value(self, row: Row) -> torch.Tensor:
        """Reads the values of one row in their stored type."""
        values = self.read_file(row.file)
        if values.dtype != row.dtype and values.element_size() == row.dtype.itemsize:
            values = values.view(row.dtype)
        if values.numel() != int(np.prod(row.shape)):
            raise broken(f"{row.file}: {values.numel()} values, expected the shape {list(row.shape)}")
        return values.reshape(row.shape)


def broken(text: str) -> EvaluatorError:
    return EvaluatorError("dump", f"{text}; record the dump again")


def open_dump(path: str) -> Dump:
    """Opens a dump, and checks its manifest."""
    try:
        manifest, read_file = open_container(Path(path))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise broken(f"cannot read the dump {path}: {error}") from error
    if manifest.get("format") != "xcheck-dump":
        raise broken(f"{path}: format {manifest.get('format')!r}, expected 'xcheck-dump'")
    try:
        return parsed(manifest, read_file)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise broken(f"{path}: invalid manifest: {type(error).__name__}: {error}") from error


def parsed(manifest: dict[str, Any], read_file: Callable[[str], torch.Tensor]) -> Dump:
    rows, taps = {}, {}
    for entry in manifest["tensors"]:
        if "module" not in entry:
            if entry["tap"] == "generated":  # the program compares it with the tokens of the passes
                continue
            tap = read_tap(entry, TYPES)
            taps[tap.site] = tap
            continue
        if entry["dtype"] not in TYPES:
            raise broken(f"{entry['module']}: type {entry['dtype']!r}, expected one of {', '.join(TYPES)}")
        shape = tuple(int(length) for length in entry["shape"])
        number = int(entry.get("pass", 0))
        row = Row(entry["module"], int(entry.get("call", 0)), number, shape, TYPES[entry["dtype"]], entry["file"])
        rows[row.site] = row
    if not rows and not taps:
        raise broken("no values in the dump, expected tensor rows with 'module' or 'tap'")
    if any(set(entry.get("sequence", [0])) != {0} for entry in manifest["passes"]):
        raise EvaluatorError("dump", "the dump has several sequences, expected one; record each text in its own dump")
    stated = manifest.get("producer", {}).get("settings", {}).get("dtype", "f32")
    if stated not in COMPUTED:
        raise broken(f"producer.settings.dtype: {stated!r}, expected one of {', '.join(COMPUTED)}")
    passes = [[int(token) for token in entry["tokens"]] for entry in manifest["passes"]]
    ends = [0]
    for tokens in passes[:-1]:
        ends.append(ends[-1] + len(tokens))
    positions = [position_of(entry, end) for entry, end in zip(manifest["passes"], ends)]
    check_inputs(manifest.get("inputs", {}), len(passes))
    modules = {row.module for row in rows.values()}
    autocast = autocast_of(manifest.get("producer", {}))
    return Dump(manifest, rows, read_file, COMPUTED[stated], passes, positions, modules, taps, autocast)


def check_inputs(inputs: dict[str, Any], passes: int) -> None:
    """Refuses other inputs of passes that do not exist."""
    for name, entries in inputs.items():
        for entry in entries if isinstance(entries, list) else [entries]:
            number = int(entry.get("pass", 0))
            if not 0 <= number < passes:
                raise broken(f"inputs.{name}: pass {number}, expected a pass below {passes}")
            if entry.get("dtype") not in TYPES or "file" not in entry or "shape" not in entry:
                raise broken(f"inputs.{name}: {entry}, expected dtype ({', '.join(TYPES)}), shape and file")


def autocast_of(producer: dict[str, Any]) -> torch.dtype | None:
    """Returns the type of autocast. On other devices than a CPU it converts other operations, which are not known."""
    settings = producer.get("settings", {})
    stated = settings.get("autocast")
    like = str(producer.get("rounding", {}).get("like", ""))
    if stated is None and like.endswith("-autocast"):
        stated = like.split("-")[0]
    if stated is None:
        return None
    if stated not in ("bf16", "f16"):
        raise broken(f"producer.settings.autocast: {stated!r}, expected bf16 or f16")
    device = settings.get("device", "cpu")
    if device != "cpu":
        raise EvaluatorError(
            "dump", f"the model ran with autocast on the device {device!r}, expected cpu; load the model in {stated} "
            "and record it without autocast",
        )  # fmt: skip
    return COMPUTED[stated]


def position_of(entry: dict[str, Any], default: int) -> int:
    """Returns the position of a pass's first token."""
    position = entry.get("position", default)
    return int(position[0] if isinstance(position, list) else position)


def open_container(path: Path) -> tuple[dict[str, Any], Callable[[str], torch.Tensor]]:
    """Returns the manifest and a function that reads an array."""
    if path.is_dir():
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        return manifest, lambda name: read_member(path, name)
    if path.suffix == ".npz":
        archive = zipfile.ZipFile(path)
        manifest = json.loads(archive.read("manifest.json"))
        return manifest, lambda name: read_npy(io.BytesIO(archive.read(with_suffix(name))))
    header, start = read_header(path)
    metadata = header.pop("__metadata__", {})
    if "xcheck" not in metadata:
        raise ValueError("no manifest in the metadata, expected the key 'xcheck'")
    return json.loads(metadata["xcheck"]), lambda name: read_tensor(path, header, start, without_suffix(name))


def read_member(folder: Path, name: str) -> torch.Tensor:
    """Reads an array of a directory: an .npy file, or a tensor of a .safetensors file."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
        raise broken(f"file {name!r}: outside of the dump, expected a path inside {folder}")
    if "#" in name:
        file, key = name.split("#", 1)
        header, start = read_header(folder / file)
        return read_tensor(folder / file, header, start, without_suffix(key))
    try:
        return read_npy(folder / with_suffix(name))
    except (OSError, ValueError) as error:
        raise broken(f"cannot read {name}: {error}") from error


def with_suffix(name: str) -> str:
    return name if name.endswith(".npy") else f"{name}.npy"


def without_suffix(name: str) -> str:
    return name[:-4] if name.endswith(".npy") else name


def read_npy(source: Any) -> torch.Tensor:
    values = np.load(source)
    if values.dtype == np.uint16:
        values = values.view(np.int16)
    if values.dtype == np.uint32:
        values = values.view(np.int32)
    return torch.from_numpy(np.ascontiguousarray(values))


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length < 1 << 30:
            raise ValueError(f"header length {length}, expected a .safetensors file")
        return json.loads(file.read(length)), 8 + length


def read_tensor(path: Path, header: dict[str, Any], start: int, key: str) -> torch.Tensor:
    """Reads one tensor of a .safetensors file."""
    entry = header.get(key) or header.get(f"{key}.npy")
    if entry is None:
        raise broken(f"no tensor {key!r} in {path.name}")
    first, last = entry["data_offsets"]
    with path.open("rb") as file:
        file.seek(start + first)
        content = bytearray(file.read(last - first))
    if len(content) != last - first:
        raise broken(f"{path.name} ends within {key!r}")
    dtype = SAFETENSORS[entry["dtype"]]
    if not content:
        return torch.zeros(entry["shape"], dtype=dtype)
    return torch.frombuffer(content, dtype=dtype).reshape(entry["shape"])
