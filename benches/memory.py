#!/usr/bin/env python3
"""Measures how much memory a check takes: memory.py XCHECK MODEL FOLDER [--tokens N] [OPTION ...]

Dumps a run of the model into FOLDER (unless it is there), checks the model against it, and prints the high-water marks of
both: everything resident, and what of it is the process's own (the rest is of mapped files, which the system may take back).
It also prints the time on the clock and of all processors.
Large models are made by reference-scripts/make/make_random_gguf.py: 7b, or 70b with --sparse, whose layers are holes in a file.
Where a dump of all layers does not fit the disk, --layers of that script makes a model with a few; layers
run one after the other.
What follows is given to `xcheck run`. Linux; needs nothing but Python.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VERDICTS = (0, 1, 3)  # exit codes of a run that was made: pass, fail, inconclusive
MARKS = {"VmHWM": "resident", "RssAnon": "own"}


def processor_seconds() -> float:
    """Processor time of all ended children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measured(command: list[str]) -> None:
    """Runs a command and prints what it took."""
    before = processor_seconds()
    start, said = time.monotonic(), tempfile.TemporaryFile("w+")  # a pipe that nobody reads would fill up
    child = subprocess.Popen(command, stdout=said)
    status, most = Path(f"/proc/{child.pid}/status"), dict.fromkeys(MARKS, 0)
    while child.poll() is None:
        for line in status.read_text().splitlines():
            name, _, value = line.partition(":")
            if name in most:
                most[name] = max(most[name], int(value.split()[0]))
        time.sleep(0.02)
    said.seek(0)
    verdict = [line for line in said.read().splitlines() if line][-1:]
    marks = ", ".join(f"{MARKS[name]} {kilobytes / 1024:.0f} MB" for name, kilobytes in most.items())
    times = f"{time.monotonic() - start:.0f} s, {processor_seconds() - before:.0f} processor seconds"
    print(f"{command[1]}: exit {child.returncode}, {times}, {marks}; {verdict}", flush=True)
    if child.returncode not in VERDICTS:
        sys.exit(f"error: {command[1]} did not come to its end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("xcheck")
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=512)
    args, options = parser.parse_known_args()
    dump = args.folder / f"{args.model.stem}-{args.tokens}"
    tokens = ",".join(str(1 + index * 37 % 1000) for index in range(args.tokens))
    print(f"{args.model}: {args.model.stat().st_size / 2**20:.0f} MB")
    if not dump.exists():
        words = ["--numerics", "llama.cpp", "--tokens", tokens, "--decode", "0", "--out", str(dump)]
        measured([args.xcheck, "dump", "--model", str(args.model), *words])
    measured([args.xcheck, "run", "--model", str(args.model), "--reference", str(dump), "--no-report", *options])


if __name__ == "__main__":
    main()
