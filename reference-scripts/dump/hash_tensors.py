"""Adds the SHA-256 of each tensor to the index of a folder with safetensors, and makes an index where there is none.

Who reads parts of the weights from elsewhere (`xcheck run --model https://.../folder`) cannot hold them against a hash of the
whole file. With `tensor_sha256` in model.safetensors.index.json each tensor is held against its own. Other programs ignore it.

Needs nothing but Python.
"""

import argparse
import hashlib
import json
from pathlib import Path

INDEX = "model.safetensors.index.json"


def hashes(file: Path) -> dict[str, str]:
    """SHA-256 of each tensor of a safetensors file, as it is stored."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        found = {}
        for name, tensor in header.items():
            start, end = tensor["data_offsets"]
            stream.seek(8 + length + start)
            digest, left = hashlib.sha256(), end - start
            while left:
                piece = stream.read(min(left, 1 << 20))
                if not piece:
                    raise EOFError(f"{file}: tensor {name} is cut short")
                digest.update(piece)
                left -= len(piece)
            found[name] = digest.hexdigest()
    return found


def main() -> None:
    """Reads all weights, and writes the index."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with config.json and safetensors, whole or in shards")
    folder = parser.parse_args().folder
    path = folder / INDEX
    index = json.loads(path.read_text()) if path.exists() else {"metadata": {}, "weight_map": {}}
    files = sorted(set(index["weight_map"].values())) or ["model.safetensors"]
    found = {name: (file, sha256) for file in files for name, sha256 in hashes(folder / file).items()}
    index["weight_map"] = index["weight_map"] or {name: file for name, (file, _) in found.items()}
    index["tensor_sha256"] = {name: sha256 for name, (_, sha256) in found.items()}
    path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    print(f"{path}: {len(found)} tensors of {len(files)} files")


if __name__ == "__main__":
    main()
