#!/usr/bin/env python3
"""Writes tests/data/model-files/end-tokens.json: where transformers' `generate` ends, by the files of a model folder.

usage: make_end_token_vectors.py [OUT]

Each case is tiny-llama2 with other end tokens in `config.json` and `generation_config.json`. The text is greedy.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "checkpoints/tiny-llama2/hf"
PROMPT = [1, 393]
TOKENS = 12

# `config` changes keys of config.json; `generation` is the content of generation_config.json, null for no such file.
CASES = [
    {"name": "the file's list", "config": {}, "generation": {"bos_token_id": 1, "eos_token_id": [2, 263]}},
    {"name": "the file's id", "config": {"eos_token_id": 263}, "generation": {"eos_token_id": 2}},
    {"name": "no id in the file", "config": {"eos_token_id": 263}, "generation": {"bos_token_id": 1}},
    {"name": "null in the file", "config": {"eos_token_id": 263}, "generation": {"eos_token_id": None}},
    {"name": "no file", "config": {"eos_token_id": [2, 263]}, "generation": None},
    {"name": "no file and no id", "config": {"eos_token_id": None}, "generation": None},
]


def generated(case: dict) -> list[int]:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        shutil.copy(MODEL / "model.safetensors", model)
        config = json.loads((MODEL / "config.json").read_text()) | case["config"]
        (model / "config.json").write_text(json.dumps(config))
        if case["generation"] is not None:
            (model / "generation_config.json").write_text(json.dumps(case["generation"]))
        engine = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        ids = engine.generate(torch.tensor([PROMPT]), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
        end = engine.generation_config.eos_token_id
    ids = ids[0, len(PROMPT) :].tolist()
    ends = [end] if isinstance(end, int) else end or []
    # The end token itself is no part of the text.
    return ids[:-1] if ids[-1] in ends else ids


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests/data/model-files/end-tokens.json"
    document = {
        "made_by": f"make_end_token_vectors.py, transformers {transformers.__version__}, torch {torch.__version__}",
        "prompt": PROMPT,
        "tokens": TOKENS,
        "cases": [case | {"generated": generated(case)} for case in CASES],
    }
    out.write_text(json.dumps(document, indent=1) + "\n")


main()
