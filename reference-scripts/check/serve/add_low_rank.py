#!/usr/bin/env python3
"""Adds a random rank-8 update, like a merged LoRA step, to the attention weights of an f32 GGUF file.

The result is another checkpoint for `xcheck probe --audit --against`. Needs numpy and gguf.
"""

import argparse
import shutil
from pathlib import Path

import gguf
import numpy as np

WEIGHTS = ("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight")
RANK = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file with f32 weights")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--size", type=float, default=0.03, help="norm of the update, relative to that of the weights")
    options = parser.parse_args()
    shutil.copy(options.model, options.out)
    random = np.random.default_rng(11)
    changed = [t.data for t in gguf.GGUFReader(options.out, "r+").tensors if t.name.endswith(WEIGHTS)]
    if not changed or any(data.dtype != np.float32 for data in changed):
        parser.error(f"{options.model}: attention weights must be there, in f32")
    for data in changed:
        rows, columns = data.shape
        left, right = random.standard_normal((rows, RANK)), random.standard_normal((RANK, columns))
        update = left.astype(np.float32) @ right.astype(np.float32)
        data += update * (options.size * np.linalg.norm(data) / np.linalg.norm(update))
        data.flush()


if __name__ == "__main__":
    main()
