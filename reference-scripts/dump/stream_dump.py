#!/usr/bin/env python3
"""Sends a dump as an engine would while it runs: stream_dump.py DUMP.safetensors | xcheck check --model M --candidate -

Each layer is one message (docs/reference/dump-format.md, "Streams"), and no more than one is held. With --stop-after N it dies after
so many layers, to see what is told then.

Needs numpy and safetensors (requirements.txt).
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from dump_reader import read
from dump_writer import HEAD, Record, StreamWriter


def place(record: Record) -> int:
    """Where it is sent: embeddings before the layers, what has no layer after them."""
    if record.tap == "embed":
        return -1
    return HEAD if record.layer is None else record.layer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", type=Path)
    parser.add_argument("--stop-after", type=int, metavar="N", help="die when N layers were sent")
    args = parser.parse_args()
    manifest, records = read(args.dump)
    with StreamWriter(sys.stdout.buffer, manifest) as writer:
        for record in sorted(records, key=place):  # stable: passes stay in order
            if args.stop_after is not None and record.layer is not None and record.layer >= args.stop_after:
                writer.flush_layer()
                os._exit(1)
            writer.add(record)


if __name__ == "__main__":
    main()
