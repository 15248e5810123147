#!/usr/bin/env python3
"""Sends a dump as an engine would while it runs: stream_dump.py DUMP.safetensors | xcheck check --model M --candidate -

Each layer is one message (docs/dump-format.md, "Streams"), and no more than one is held. With --stop-after N it dies after
so many layers, to see what is told then.

Needs numpy and safetensors (requirements.txt).
"""

import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np

from dump_writer import HEAD, NUMPY_TYPES, Record, StreamWriter


def read(path: Path) -> tuple[dict, list[dict], dict, np.memmap]:
    """The manifest, its rows in the order in which they are sent, the header, and the data, of which nothing is read yet."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    manifest = json.loads(header["__metadata__"]["xcheck"])
    rows = manifest.pop("tensors")
    rows.sort(key=lambda row: -1 if row["tap"] == "embed" else row.get("layer", HEAD))  # stable: passes stay in order
    return manifest, rows, header, np.memmap(path, mode="r", offset=8 + length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", type=Path)
    parser.add_argument("--stop-after", type=int, metavar="N", help="die when N layers were sent")
    args = parser.parse_args()
    manifest, rows, header, data = read(args.dump)
    with StreamWriter(sys.stdout.buffer, manifest) as writer:
        for row in rows:
            if args.stop_after is not None and row.get("layer", -1) >= args.stop_after:
                writer.flush_layer()
                os._exit(1)
            start, end = header[row["file"].removesuffix(".npy")]["data_offsets"]
            values = data[start:end].view(NUMPY_TYPES[row["dtype"]]).reshape(row["shape"])
            writer.add(Record(row["tap"], row.get("pass"), row.get("layer"), row["dtype"], values))


if __name__ == "__main__":
    main()
