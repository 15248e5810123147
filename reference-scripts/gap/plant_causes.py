#!/usr/bin/env python3
"""Plants causes of `xcheck gap` into pairs of log-probabilities, and counts which are named.

--pairs has a folder for each type, bf16 and f32, with the files that `make_pairs.py --dtype TYPE` wrote: one JSONL file
for each model. Faults that need logits are computed there by torch. Faults that only move numbers are made here. All
correct pairs of the same type are judged, too. The script prints two Markdown tables.

A fault counts as hidden if it moves the log-odds less than rounding does in this model and type: nothing can see it.
"""

import argparse
import itertools
import json
import math
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

Rows = list[list[float]]

# Columns of make_pairs.py, and the causes that name them. An empty set: no cause can be named without a model.
COLUMNS = {
    "temperature 0.7": ("temperature_0.7", {"temperature"}),
    "temperature 0.9": ("temperature_0.9", {"temperature"}),
    "temperature 1.2": ("temperature_1.2", {"temperature"}),
    "top-p 0.9": ("top_p_0.9", {"processed"}),
    "softmax over padded vocabulary": ("vocabulary_padded", {"vocabulary-range", "one-sided"}),
    "softmax without added tokens": ("vocabulary_cut", {"vocabulary-range", "one-sided"}),
    "minimum length masks the end token": ("end_masked", {"processed", "vocabulary-range", "one-sided"}),
    "log-probability of the greedy token": ("greedy_token", {"other-token", "far-tokens"}),
    "stale prefix cache": ("stale_prefix", {"position-step"}),
    "positions jump": ("positions_from_25", {"position-step"}),
    "packing without a mask": ("packed", {"outlier-sequences"}),
    "stale weights, with versions": ("versions", {"stale-weights"}),
    "other weights": ("weights_0.1", set()),
    "weights moved by 1 %": ("weights_0.01", set()),
    "dropout left on": ("dropout", set()),
    "RoPE base": ("rope_base", set()),
}
# Causes that say no more than the size of the differences.
SIZES = {"large-size", "unexplained-size", "far-tokens", "bias"}


def moved(rows: Rows, change: Callable[[int, list[float]], list[float]]) -> Rows:
    return [change(index, row) for index, row in enumerate(rows)]


def as_bf16(value: float) -> float:
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0]


def number_faults(rows: Rows, dtype: str) -> dict[str, tuple[Rows, set[str]]]:
    """Faults that move numbers of correct rows."""
    half = len(rows) // 2
    faults = {
        "shifted to the left": (moved(rows, lambda _, r: [*r[1:], r[-1]]), {"shifted"}),
        "shifted to the right": (moved(rows, lambda _, r: [r[0], *r[:-1]]), {"shifted"}),
        "sequences rotated": (rows[1:] + rows[:1], {"permuted"}),
        "sequences sorted by another key": (rows[:half][::-1] + rows[half:], {"permuted"}),
        "zeros for the prompt": (moved(rows, lambda _, r: [0.0] * 5 + r[5:]), {"prompt-included"}),
        "zeros for padding": (moved(rows, lambda _, r: r[:-6] + [0.0] * 6), {"padding-included"}),
        "negative log-probabilities": (moved(rows, lambda _, r: [-v for v in r]), {"positive"}),
        "base 10": (moved(rows, lambda _, r: [v / math.log(10) for v in r]), {"logarithm-base"}),
        "all zero": (moved(rows, lambda _, r: [0.0] * len(r)), {"constant"}),
        "minus infinity": (moved(rows, lambda i, r: [-1e300 if i % 7 == 3 and n == 4 else v for n, v in enumerate(r)]), {"infinite"}),
    }
    if dtype == "f32":
        faults["stored in bf16"] = (moved(rows, lambda _, r: [as_bf16(v) for v in r]), {"coarse-numbers"})
    return faults


def scale(one: Rows, other: Rows) -> float:
    """Root mean square difference of the log-odds."""

    def odds(v: float) -> float:
        v = min(v, -1e-7)
        return v - math.log(-math.expm1(v)) if v > -700 else v

    pairs = [(a, b) for r, s in zip(one, other) for a, b in zip(r, s)]
    return math.sqrt(sum((odds(a) - odds(b)) ** 2 for a, b in pairs) / len(pairs))


class Judge:
    def __init__(self, xcheck: str, folder: str) -> None:
        self.xcheck, self.path = xcheck, Path(folder) / "pair.jsonl"

    def __call__(self, lines: list[dict], rollout: Rows, trainer: Rows, dtype: str) -> tuple[str, str | None]:
        """Returns the verdict and the first cause."""
        kept = ["tokens", "prompt_length", "version"]
        with open(self.path, "w") as file:
            for line, one, other in zip(lines, rollout, trainer):
                file.write(json.dumps({**{k: line[k] for k in kept}, "a": one, "b": other}) + "\n")
        words = [self.xcheck, "gap", str(self.path), "--columns", "a,b", "--dtype", dtype, "--format", "json"]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode not in (0, 1, 3):
            raise SystemExit(done.stderr)
        report = json.loads(done.stdout)
        return report["verdict"], next((finding["cause"] for finding in report["findings"]), None)


def outcome(verdict: str, cause: str | None, expected: set[str]) -> str:
    if cause in expected or (not expected and verdict != "pass" and cause in SIZES):
        return "named"
    if verdict == "fail" and cause not in SIZES:
        return "wrong"
    return "missed"


def plant(file: Path, dtype: str, judge: Judge, counts: dict[str, Counter], details: list[str]) -> None:
    lines = [json.loads(line) for line in file.open()]
    # Versions exist in the run with stale weights only.
    column = lambda name: [line[name] for line in lines]  # noqa: E731
    still = [{**line, "version": 0} for line in lines]
    rollout, trainer = column(f"{dtype}_cache"), column(f"{dtype}_sdpa")
    faults = {kind: (column(name), names) for kind, (name, names) in COLUMNS.items() if name in lines[0]}
    # A model without such layers has no fault.
    faults = {kind: fault for kind, fault in faults.items() if fault[0] != column(f"{dtype}_eager")}
    faults |= number_faults(trainer, dtype)
    if dtype == "f32":
        faults["bf16 in place of f32"] = (column("bf16_sdpa"), set())
    for kind, (rows, names) in faults.items():
        known = lines if kind.startswith("stale weights") else still
        verdict, cause = judge(known, rollout, rows, dtype)
        result = outcome(verdict, cause, names)
        if result == "missed" and scale(rows, trainer) <= scale(rollout, trainer):
            result = "hidden"
        counts.setdefault(kind, Counter())[result] += 1
        if result != "named":
            details.append(f"{file.stem} {dtype}: {kind}: {result}: {verdict}, {cause}")


def correct(file: Path, dtype: str, judge: Judge, details: list[str]) -> tuple[int, int, int]:
    """Judges all pairs of correct columns; returns the number of pairs, of sequences, and of false alarms."""
    lines = [{**json.loads(line), "version": 0} for line in file.open()]
    names = [f"{dtype}_{way}" for way in ("cache", "eager", "sdpa", "padded", "autocast", "trl")]
    names = [name for name in names if name in lines[0]]
    pairs = alarms = 0
    for one, other in itertools.permutations(names, 2):
        verdict, cause = judge(lines, [line[one] for line in lines], [line[other] for line in lines], dtype)
        pairs += 1
        if verdict != "pass":
            alarms += 1
            details.append(f"{file.stem} {dtype}: {one} against {other}: {verdict}, {cause}")
    return pairs, pairs * len(lines), alarms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, required=True, help="folder with bf16/*.jsonl and f32/*.jsonl")
    parser.add_argument("--xcheck", default="xcheck", help="the program")
    arguments = parser.parse_args()
    counts: dict[str, Counter] = {}
    details: list[str] = []
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(arguments.xcheck, folder)
        for dtype in ("f32", "bf16"):
            total = [0, 0, 0]
            for file in sorted((arguments.pairs / dtype).glob("*.jsonl")):
                plant(file, dtype, judge, counts, details)
                total = [a + b for a, b in zip(total, correct(file, dtype, judge, details))]
            rows.append((dtype, *total))
    print("| cause | named | wrong | missed | hidden by rounding |\n|---|---|---|---|---|")
    whole = Counter()
    for kind, found in counts.items():
        whole += found
        print(f"| {kind} | {found['named']} | {found['wrong']} | {found['missed']} | {found['hidden']} |")
    print(f"| all | {whole['named']} | {whole['wrong']} | {whole['missed']} | {whole['hidden']} |\n")
    print("| type | correct pairs of files | sequences | false alarms |\n|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print("\n" + "\n".join(details))


if __name__ == "__main__":
    main()
