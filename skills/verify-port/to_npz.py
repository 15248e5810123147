#!/usr/bin/env python3
"""Writes what porters save as one .npz file that xcheck reads: to_npz.py IN OUT.npz [--tokens 1,15043]

IN is one of:

- data/llamacpp-NAME.bin or data/pytorch-NAME.bin of llama.cpp's examples/model-conversion: the logits of the last token as f32.
  The tokens come from NAME-tokens.bin beside it, or from --tokens.
- a JSON file: an object of names and nested lists of numbers, e.g. {"layers.0.self_attn.q_proj": [[0.1, ...]]}. Objects may be
  nested; their names are joined by dots.

Needs numpy.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np


def from_bin(path: Path) -> dict[str, np.ndarray]:
    arrays = {"last_logits": np.fromfile(path, "<f4")}
    tokens = path.with_name(f"{path.stem}-tokens.bin")
    if tokens.exists():
        arrays["input_ids"] = np.fromfile(tokens, "<i4")
    return arrays


def from_json(value: object, name: str = "") -> dict[str, np.ndarray]:
    if isinstance(value, dict):
        parts = [from_json(part, f"{name}.{key}" if name else key) for key, part in value.items()]
        return {key: array for part in parts for key, array in part.items()}
    if not isinstance(value, list):
        return {}
    try:
        return {name: np.array(value, "<i4" if name == "input_ids" else "<f4")}  # null, as JavaScript writes NaN, becomes NaN
    except (ValueError, TypeError) as problem:
        sys.exit(f"error: {name}: expected nested lists of numbers with rows of equal lengths: {problem}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="IN", type=Path)
    parser.add_argument("out", metavar="OUT.npz", type=Path)
    parser.add_argument("--tokens", help="the token ids that the model read")
    args = parser.parse_args()
    is_json = args.source.suffix == ".json"
    arrays = from_json(json.loads(args.source.read_text())) if is_json else from_bin(args.source)
    if args.tokens:
        arrays["input_ids"] = np.array([int(token) for token in args.tokens.split(",")], "<i4")
    if "input_ids" not in arrays:
        print("note: no tokens; give them to xcheck with --tokens", file=sys.stderr)
    np.savez(args.out, **arrays)
    print(f"{args.out}: {', '.join(arrays)}")


if __name__ == "__main__":
    main()
