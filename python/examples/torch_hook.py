#!/usr/bin/env python3
"""Dumps what a transformers model computes while it generates: torch_hook.py MODEL OUT [PROMPT...]

MODEL is a directory or a hub id. Several prompts are a batch.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import xcheck


@torch.inference_mode()
def main(path: str, out: str, prompts: list[str]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(path)
    inputs = tokenizer(prompts, return_tensors="pt", padding=len(prompts) > 1)
    with xcheck.hook(model, out, prompt=prompts):
        output = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    for text in tokenizer.batch_decode(output, skip_special_tokens=True):
        print(text)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:] or ["Once upon a time, there was"])
