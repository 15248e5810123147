#!/usr/bin/env python3
"""Samples sequences with vLLM, and writes their log-probabilities for `trl_pairs.py --rollouts`.

The environment is that of ../engines/vllm. The prompts of a model with a tokenizer are texts, those of other models are
random tokens. vLLM batches all sequences as it likes; no token ends a sequence. --top-p below 1 makes a fault, since TRL does
not apply it.
"""

import argparse
import json
import os
import random
import sys
from pathlib import Path

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
import vllm
from make_pairs import TEXTS, shown
from vllm import LLM, SamplingParams

DTYPES = {"f32": "float32", "bf16": "bfloat16"}


def prompts_of(llm: LLM, texts: bool, count: int) -> list[list[int]]:
    if texts:
        tokenizer = llm.get_tokenizer()
        return [tokenizer(TEXTS[n % len(TEXTS)])["input_ids"] for n in range(count)]
    vocabulary, chance = llm.model_config.get_vocab_size(), random.Random(7)
    return [[chance.randrange(3, vocabulary) for _ in range(4 + n % 9)] for n in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the model")
    parser.add_argument("--texts", action="store_true", help="prompts are texts; needs the model's tokenizer")
    parser.add_argument("--dtype", choices=DTYPES, required=True)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    llm = LLM(
        str(options.folder), dtype=DTYPES[options.dtype], max_model_len=128, max_num_seqs=16, enforce_eager=True, seed=9,
        generation_config="vllm", logprobs_mode="processed_logprobs", skip_tokenizer_init=not options.texts,
    )
    prompts = prompts_of(llm, options.texts, options.sequences)
    settings = [
        SamplingParams(
            temperature=options.temperature, top_p=options.top_p, max_tokens=options.steps, ignore_eos=True,
            detokenize=False, logprobs=0, seed=n,
        )
        for n in range(len(prompts))
    ]
    results = llm.generate([{"prompt_token_ids": p} for p in prompts], settings, use_tqdm=False)
    with options.out.open("w") as file:
        for prompt, result in zip(prompts, results):
            ids = list(result.outputs[0].token_ids)
            values = [row[token].logprob for token, row in zip(ids, result.outputs[0].logprobs)]
            row = {"tokens": prompt + ids, "prompt_length": len(prompt), "vllm": shown(values)}
            file.write(json.dumps(row) + "\n")
    print(f"vLLM {vllm.__version__}, torch {torch.__version__}", file=sys.stderr)


if __name__ == "__main__":
    main()
