#!/usr/bin/env python3
"""Writes tests/data/float8.json: torch's float8_e4m3fn and float8_e5m2.

usage: make_float8_vectors.py [OUT]

Needs torch. `numbers`: what each of the 256 patterns is. `rounded`: for some f32, among them every tie between neighbours and
what lies beside it, the pattern that torch's cast makes of it.
"""

import json
import math
import sys
from pathlib import Path

import torch

TYPES = {"f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2}


def shown(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def vectors(dtype: torch.dtype) -> dict:
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    finite = numbers[numbers.isfinite()].unique()
    ties = (finite[1:] + finite[:-1]) / 2
    infinity = torch.tensor(math.inf)
    random = torch.randn(200, generator=torch.Generator().manual_seed(20261122)) * 2.0 ** torch.arange(-20, 20).repeat(5)
    given = torch.cat([ties, ties.nextafter(infinity), ties.nextafter(-infinity), random]).clamp(finite.min(), finite.max())
    patterns = given.to(dtype).view(torch.uint8)
    return {
        "numbers": [shown(value) for value in numbers.tolist()],
        "rounded": [[value, pattern] for value, pattern in zip(given.tolist(), patterns.tolist())],
    }


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[2] / "tests/data/float8.json")
    made_by = f"reference-scripts/vectors/make_float8_vectors.py, torch {torch.__version__}"
    out.write_text(json.dumps({"made_by": made_by} | {name: vectors(dtype) for name, dtype in TYPES.items()}) + "\n")


main()
