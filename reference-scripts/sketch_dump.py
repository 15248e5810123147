#!/usr/bin/env python3
"""Writes the sketch of a dump: sketch_dump.py DUMP.safetensors OUT

Of every tap twelve numbers a token are written instead of its values (docs/dump-format.md, "Sketches"). The logits after a
pass are written whole; token ids, too.

Needs numpy and safetensors (requirements.txt).
"""

import argparse
import json
import struct
from pathlib import Path

import numpy as np

from dump_writer import NOT_SKETCHED, NUMPY_TYPES, Record, prepare, write_dump


def read(path: Path) -> tuple[dict, list[Record]]:
    """The manifest of a .safetensors dump, and its arrays."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    manifest = json.loads(header["__metadata__"]["xcheck"])
    records = []
    for row in manifest.pop("tensors"):
        start, end = header[row["file"].removesuffix(".npy")]["data_offsets"]
        values = np.frombuffer(data[8 + length + start : 8 + length + end], NUMPY_TYPES[row["dtype"]])
        shape, tap = row["shape"], row["tap"]
        records.append(Record(tap, row.get("pass"), row.get("layer"), row["dtype"], values.reshape(shape)))
    return manifest, records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    prepare(args.out)
    manifest, records = read(args.dump)
    kept = [record for record in records if record.tap != "attn_scores"]
    whole = (*NOT_SKETCHED, "last_logits")
    sketches = [
        Record(record.tap, record.pass_index, record.layer, record.dtype, record.values, record.tap not in whole)
        for record in kept
    ]
    write_dump(args.out, manifest, sketches)


if __name__ == "__main__":
    main()
