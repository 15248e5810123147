#!/usr/bin/env python3
"""Times `xcheck compare` and numpy in turns on two dumps, from the page cache, and prints ratios.

    cargo build --release
    python3 benches/against_numpy.py target/release/xcheck [FOLDER]

numpy computes three figures per array (largest and mean absolute error, cosine) on memory-mapped arrays; xcheck all of
its own. Of each the least of all rounds counts. Sums of f16 overflow in numpy, whose cosine is then no number. Dumps of
1.4 GB each are made in FOLDER (or a temporary one), which takes 3 GB; they stay in FOLDER. Resident memory is the
high-water mark of the system (Linux).
"""

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

LAYERS, TOKENS, WIDTH = 48, 2048, 3584
VERDICTS = (0, 1, 3)  # exit codes of a comparison that was made: pass, fail, inconclusive
STORED = {"f32": np.float32, "f64": np.float64, "f16": np.float16}


def write_dump(path: Path, dtype: str, noise: float) -> None:
    """A dump of `block_out` alone: rows of one array, moved on by each layer."""
    rng = np.random.default_rng(1)
    base = rng.standard_normal((TOKENS, WIDTH), dtype=np.float32)
    error = np.float32(noise) * rng.standard_normal((TOKENS, WIDTH), dtype=np.float32)
    layers = LAYERS if dtype != "f64" else LAYERS // 2
    size = base.size * np.dtype(STORED[dtype]).itemsize
    keys = [f"p0/l{layer}/block_out" for layer in range(layers)]
    shape = [TOKENS, WIDTH]
    manifest = {
        "format": "xcheck-dump", "version": 1, "producer": {"name": "numpy"}, "model": {"architecture": "llama"},
        "input": {"tokens": [1] * TOKENS, "decode": "forced"}, "passes": [{"position": 0, "tokens": [1] * TOKENS}],
        "tensors": [
            {"tap": "block_out", "layer": layer, "pass": 0, "dtype": dtype, "shape": shape, "file": key}
            for layer, key in enumerate(keys)
        ],
    }
    header = {
        key: {"dtype": dtype.upper(), "shape": shape, "data_offsets": [at * size, (at + 1) * size]}
        for at, key in enumerate(keys)
    }
    text = json.dumps({"__metadata__": {"xcheck": json.dumps(manifest)}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for layer in range(layers):
            file.write((np.roll(base, 7919 * layer) + error).astype(STORED[dtype]).tobytes())


def arrays(path: Path, dtype: str) -> dict[str, np.ndarray]:
    data = np.memmap(path, dtype=np.uint8, mode="r")
    length = int(data[:8].view("<u8")[0])
    header = json.loads(data[8 : 8 + length].tobytes())
    header.pop("__metadata__")
    at = lambda entry: slice(*(8 + length + offset for offset in entry["data_offsets"]))
    return {key: data[at(entry)].view(STORED[dtype]) for key, entry in header.items()}


def numpys(one: Path, other: Path, dtype: str) -> float:
    start = time.perf_counter()
    candidates, references = arrays(one, dtype), arrays(other, dtype)
    for key, candidate in candidates.items():
        reference = references[key]
        error = np.abs(candidate - reference)
        figures = error.max(), error.mean()
        sizes = np.sqrt(np.dot(candidate, candidate)) * np.sqrt(np.dot(reference, reference))
        figures += (np.dot(candidate, reference) / sizes,)
    return time.perf_counter() - start


def ours(xcheck: Path, one: Path, other: Path) -> tuple[float, int]:
    """Seconds, and the most resident kilobytes of the process while it ran."""
    start = time.perf_counter()
    child = subprocess.Popen([xcheck, "compare", one, other, "--no-report"], stdout=subprocess.DEVNULL)
    status, memory = Path(f"/proc/{child.pid}/status"), 0
    while child.poll() is None:
        peak = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        memory = max([memory, *map(int, peak)])
        time.sleep(0.005)
    seconds = time.perf_counter() - start
    if child.returncode not in VERDICTS:
        sys.exit(f"error: {xcheck} compare: exit code {child.returncode}, there is nothing to time")
    return seconds, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("xcheck", type=Path)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{'':6}{'ours, s':>9}{'GB/s':>7}{'MB':>6}{'numpy, s':>10}{'ratio':>7}")
        for dtype in STORED:
            one, other = (folder / f"{name}.{dtype}.safetensors" for name in ("candidate", "reference"))
            for path, noise in ((one, 1e-5), (other, 0.0)):
                if not path.exists():
                    write_dump(path, dtype, noise)
            rounds = [(ours(args.xcheck, one, other), numpys(one, other, dtype)) for _ in range(args.rounds)]
            (mine, memory), theirs = min(first for first, _ in rounds), min(second for _, second in rounds)
            speed = (one.stat().st_size + other.stat().st_size) / mine / 1e9
            print(f"{dtype:6}{mine:9.3f}{speed:7.1f}{memory // 1024:6}{theirs:10.3f}{theirs / mine:7.2f}", flush=True)
            if not args.folder:
                one.unlink(), other.unlink()


if __name__ == "__main__":
    sys.exit(main())
