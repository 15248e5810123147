#!/usr/bin/env python3
"""Writes tests/data/sampling.json: what the logits processors of transformers leave of some logits.

usage: make_sampling_vectors.py [OUT]

Needs torch and transformers. The processors are applied in the order in which transformers' `generate` applies them:
temperature, top-k, top-p, min-p. A token that is left has a probability above 0 in the softmax of the result.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.3, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.05},
    {"temperature": 0.8, "min_p": 0.1},
    {"temperature": 1.0, "top_k": 12, "top_p": 0.6},
    {"temperature": 2.0, "top_k": 20, "top_p": 0.95, "min_p": 0.2},
    {"temperature": 0.1, "top_k": 40, "top_p": 0.99, "min_p": 0.001},
]


def left_of(logits: torch.Tensor, setting: dict) -> torch.Tensor:
    scores = TemperatureLogitsWarper(setting["temperature"])(None, logits[None])
    for key, warper in [("top_k", TopKLogitsWarper), ("top_p", TopPLogitsWarper), ("min_p", MinPLogitsWarper)]:
        if key in setting:
            scores = warper(setting[key])(None, scores)
    return torch.softmax(scores[0].double(), dim=-1)


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[2] / "tests/data/sampling.json")
    torch.manual_seed(20261121)
    logits = [torch.randn(size) * scale for size, scale in [(16, 1.0), (40, 3.0), (64, 0.2)]]
    cases = []
    for index, values in enumerate(logits):
        for setting in SETTINGS:
            probabilities = left_of(values, setting)
            kept = probabilities.nonzero().flatten()
            cases.append({"logits": index, **setting, "kept": kept.tolist(), "probabilities": probabilities[kept].tolist()})
    vectors = {
        "made_by": f"reference-scripts/vectors/make_sampling_vectors.py, transformers {transformers.__version__}, torch {torch.__version__}",
        "logits": [values.tolist() for values in logits],
        "cases": cases,
    }
    out.write_text(json.dumps(vectors) + "\n")


main()
