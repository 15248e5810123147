"""Turns a dump that is a directory of .npy files into one .safetensors or .npz file: the same manifest, the same arrays.

    python pack_dump.py DIRECTORY OUT.safetensors

A dump without `probs` gets them: the softmax of its own `last_logits`, in f64, as the other scripts take it. The manifest
says so under `derived`.
"""

import json
import sys
from pathlib import Path

import numpy as np

from dump_writer import Record, prepare, write_dump


def probabilities(last_logits: Record) -> Record:
    """The softmax of a pass's last logits."""
    logits = last_logits.values.astype(np.float64)
    exponentials = np.exp(logits - logits.max())
    probabilities = (exponentials / exponentials.sum()).astype(np.float32)
    return Record("probs", last_logits.pass_index, None, "f32", probabilities)


def main() -> None:
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    manifest = json.loads((source / "manifest.json").read_text())
    records = [
        Record(row["tap"], row.get("pass"), row.get("layer"), row["dtype"], np.load(source / row["file"]))
        for row in manifest.pop("tensors")
    ]
    if not any(record.tap == "probs" for record in records):
        records += [probabilities(record) for record in records if record.tap == "last_logits"]
        manifest["derived"] = {"probs": "softmax of last_logits in f64, by pack_dump.py"}
    prepare(out)
    write_dump(out, manifest, records)


if __name__ == "__main__":
    main()
