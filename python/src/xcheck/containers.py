"""What a dump is written into: a directory of .npy, one .safetensors, or a directory of one .safetensors a layer.

Arrays are written when they come. Everything lies under a name of its own until the dump is finished, and is moved into
place then: what stands under the final name is whole.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .arrays import Stored
from .errors import DumpError
from .safetensors import Spool


class Container(Protocol):
    """Where arrays go."""

    def write(self, key: str, layer: int | None, array: Stored, suffix: str = ".npy") -> str:
        """Writes a C-ordered array; says what the manifest calls its file.

        suffix: what follows the key there, if the container's own names have no suffix.
        """

    def finish(self, manifest: dict[str, Any]) -> None:
        """Adds the manifest, and moves all into place."""

    def discard(self) -> None:
        """Removes what has been written."""


def open_container(out: os.PathLike[str] | str, by_layer: bool) -> Container:
    """The container that the name asks for: its suffix, or a directory."""
    path = Path(out)
    if path.suffix == ".npz":
        raise DumpError(f"{path}: .npz is not written; name a .safetensors file or a directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        if by_layer:
            raise DumpError(f"{path}: files by layer lie in a directory; name one")
        if path.is_dir():
            raise DumpError(f"{path}: is a directory")
        return OneFile(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise DumpError(f"{path}: exists; a dump is not mixed with other files")
    return LayerFiles(path) if by_layer else NpyFiles(path)


def beside(path: Path) -> Path:
    """An unused name in the same directory, so that moving costs nothing."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


class OneFile:
    """One .safetensors file; the manifest is the metadata string `xcheck`."""

    def __init__(self, path: Path):
        self.path = path
        self.spool = Spool(beside(path))

    def write(self, key: str, layer: int | None, array: Stored, suffix: str = ".npy") -> str:
        self.spool.append(key, array)
        return f"{key}{suffix}"

    def finish(self, manifest: dict[str, Any]) -> None:
        whole = beside(self.path)
        try:
            self.spool.assemble(whole, {"xcheck": json.dumps(manifest)})
            os.replace(whole, self.path)
        finally:
            whole.unlink(missing_ok=True)

    def discard(self) -> None:
        self.spool.discard()


class Folder:
    """A directory that gets its name when it is whole."""

    def __init__(self, path: Path):
        self.path = path
        self.partial = beside(path)
        self.partial.mkdir()

    def finish(self, manifest: dict[str, Any]) -> None:
        (self.partial / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        if self.path.exists():
            self.path.rmdir()  # it is empty, and not every system moves onto a directory
        os.replace(self.partial, self.path)

    def discard(self) -> None:
        shutil.rmtree(self.partial, ignore_errors=True)


class NpyFiles(Folder):
    """One .npy file for each array."""

    def write(self, key: str, layer: int | None, array: Stored, suffix: str = ".npy") -> str:
        file = self.partial / f"{key}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, array.bits)
        return f"{key}.npy"


class LayerFiles(Folder):
    """One .safetensors file for each layer, and one for what belongs to none."""

    def __init__(self, path: Path):
        super().__init__(path)
        self.spools: dict[str, Spool] = {}

    def write(self, key: str, layer: int | None, array: Stored, suffix: str = ".npy") -> str:
        name = "rest.safetensors" if layer is None else f"l{layer:03}.safetensors"
        if name not in self.spools:
            self.spools[name] = Spool(self.partial / f"{name}.partial")
        self.spools[name].append(key, array)
        return f"{name}#{key}"

    def finish(self, manifest: dict[str, Any]) -> None:
        for name, spool in self.spools.items():
            spool.assemble(self.partial / name, {})
        super().finish(manifest)

    def discard(self) -> None:
        for spool in self.spools.values():
            spool.discard()
        super().discard()
