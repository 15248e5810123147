#!/usr/bin/env python3
"""Writes the sketch of a dump: sketch_dump.py DUMP.safetensors OUT

Of every tap twelve numbers a token are written instead of its values (docs/reference/dump-format.md, "Sketches"). The logits after a
pass are written whole; token ids, too.

Needs numpy and safetensors (requirements.txt).
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from dump_reader import read
from dump_writer import NOT_SKETCHED, prepare, write_dump


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    prepare(args.out)
    manifest, records = read(args.dump)
    if "sequences" in manifest["input"]:
        sys.exit(f"error: {args.dump}: it is of several sequences, whose rows are not told apart here")
    whole = (*NOT_SKETCHED, "last_logits")
    kept = (record for record in records if record.tap != "attn_scores")
    sketches = [replace(record, sketch=record.tap not in whole) for record in kept]
    write_dump(args.out, manifest, sketches)


if __name__ == "__main__":
    main()
