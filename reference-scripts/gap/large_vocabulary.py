#!/usr/bin/env python3
"""Writes pairs of f32 log-probabilities over a large vocabulary: an exact log-softmax and torch's.

The logits are random. torch's side has logits with noise of 4e-6, as another kernel gives it. The sum of the softmax
in f32 has an error that grows with the vocabulary and has one sign.
`xcheck gap FILE --columns exact,torch --dtype f32` must not fail.
"""

import argparse
import json
from pathlib import Path

import torch

STEPS = 20


def row(vocabulary: int) -> dict:
    logits = torch.randn(STEPS, vocabulary) * 2.5
    logits[torch.arange(STEPS), torch.randint(vocabulary, (STEPS,))] += torch.rand(STEPS) * 14 + 4
    exact = torch.log_softmax(logits.double(), -1)
    ids = torch.multinomial(exact.exp().float(), 1)
    # Rounding of the logits, as another kernel gives it.
    moved = torch.log_softmax(logits + torch.randn_like(logits) * 4e-6, -1)
    columns = {"exact": exact.float(), "torch": moved}
    values = {name: column.gather(1, ids)[:, 0].tolist() for name, column in columns.items()}
    return {"tokens": [1, *ids[:, 0].tolist()], "prompt_length": 1, **values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--sequences", type=int, default=24)
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rows = [row(options.vocabulary) for _ in range(options.sequences)]
    options.out.write_text("".join(json.dumps(line) + "\n" for line in rows))


if __name__ == "__main__":
    main()
