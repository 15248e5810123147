#!/usr/bin/env python3
"""Measures the size of rounding with the correct pairs of make_pairs.py, and how well the error model describes them.

For each pair of columns: the scale s, which is the root mean square difference of the log-odds, and quantiles of
|difference| / s in the classes of p. If the model holds, they do not depend on p.
"""

import argparse
import json
from pathlib import Path

import numpy as np

CLASSES = [
    ("p > 0.9", -0.105, 0.0), ("0.5 to 0.9", -0.693, -0.105),
    ("0.14 to 0.5", -2.0, -0.693), ("p < 0.14", -99.0, -2.0),
]
PAIRS = [
    ("f32_cache", "f32_sdpa"), ("f32_cache", "f32_trl"), ("f32_eager", "f32_padded"), ("f16_cache", "f16_sdpa"),
    ("f16_cache", "f32_sdpa"), ("f16_cache", "f16_eager"), ("bf16_cache", "bf16_sdpa"), ("bf16_cache", "bf16_eager"),
    ("bf16_cache", "f32_sdpa"), ("bf16_cache", "bf16_autocast"), ("bf16_eager", "bf16_autocast"),
]
STORAGE = 3e-6  # rounding of z - lse(z) in f32
SCALES = {"f32": 3.5e-5, "f16": 0.018, "bf16": 0.156}


def log_odds(logprob: np.ndarray) -> np.ndarray:
    return logprob - np.log(np.maximum(-np.expm1(np.minimum(logprob, 0)), STORAGE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path, nargs="+", help="files of make_pairs.py")
    options = parser.parse_args()
    classes = " | ".join(name for name, *_ in CLASSES)
    print(f"| model | pair | scale | mean abs Δ | {classes} | 99 % / s | max / s |")
    print("|---" * (6 + len(CLASSES)) + "|")
    largest: dict[str, float] = {}
    for path in options.pairs:
        rows = [json.loads(line) for line in open(path)]
        for one, other in PAIRS:
            if one in rows[0] and other in rows[0]:
                kind = max((one.split("_")[0], other.split("_")[0]), key=list(SCALES).index)
                scale, text = measured(rows, one, other, SCALES[kind])
                largest[kind] = max(largest.get(kind, 0), scale)
                print(f"| {path.stem} | {one}, {other} | {text}")
    print("\nlargest scales:", {kind: f"{scale:.2e}" for kind, scale in largest.items()})


def measured(rows: list[dict], one: str, other: str, usual: float) -> tuple[float, str]:
    a, b = (np.array([row[name] for row in rows], dtype=float).ravel() for name in (one, other))
    rest = np.maximum(-np.expm1(np.minimum(np.minimum(a, b), 0)), STORAGE)
    value = (log_odds(a) - log_odds(b)) * (usual * rest) / np.hypot(usual * rest, STORAGE)
    scale = float(np.sqrt(np.mean(value**2)))
    mean = (a + b) / 2
    classes = []
    for _, low, high in CLASSES:
        chosen = value[(mean > low) & (mean <= high)]
        classes.append(f"{np.sqrt(np.mean(chosen**2)) / scale:.2f}" if len(chosen) >= 20 else "–")
    tail = f"{np.quantile(np.abs(value), 0.99) / scale:.1f} | {np.abs(value).max() / scale:.1f}"
    return scale, f"{scale:.2e} | {np.abs(a - b).mean():.1e} | " + " | ".join(classes) + f" | {tail} |"


if __name__ == "__main__":
    main()
