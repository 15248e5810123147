#!/usr/bin/env python3
"""Makes pairs of log-probabilities by transformers' own generate and TRL's own trainer, and judges each with xcheck.

transformers samples left-padded batches. The rollout's log-probabilities are a log-softmax of generate's scores
(`scores`) and those of compute_transition_scores (`transition`). The trainer's are those of GRPOTrainer's method, of
selective_log_softmax, and of one forward pass of transformers. All pairs differ by rounding alone: each verdict other
than pass is a false alarm. Prints a Markdown table.
"""

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
import trl
from accelerate import Accelerator
from make_pairs import DTYPES, Subject, chosen, shown
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head, selective_log_softmax

BATCH = 8
ROLLOUTS = ("scores", "transition")
TRAINERS = ("grpo", "selective", "forward")


def generated(model: torch.nn.Module, prompts: list[list[int]], steps: int, temperature: float) -> tuple:
    """Returns ids and mask of a left-padded batch with its completions, and their log-probabilities in two ways."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    settings = transformers.GenerationConfig(
        do_sample=True, temperature=temperature, top_k=0, top_p=1.0, max_new_tokens=steps,
        pad_token_id=0, output_scores=True, return_dict_in_generate=True,
    )
    out = model.generate(ids, attention_mask=mask, generation_config=settings)
    transition = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    scores = chosen(torch.stack(out.scores, 1), out.sequences[:, width:])
    return out.sequences, torch.cat([mask, torch.ones_like(scores, dtype=mask.dtype)], 1), scores, transition


@torch.no_grad()
def batch(model: torch.nn.Module, prompts: list[list[int]], steps: int, temperature: float) -> list[dict]:
    ids, mask, scores, transition = generated(model, prompts, steps, temperature)
    trainer = SimpleNamespace(accelerator=Accelerator(cpu=True))
    grpo, *_ = GRPOTrainer._get_per_token_logps_and_entropies(trainer, model, ids, mask, steps)
    rows = []
    for n, prompt in enumerate(prompts):
        tokens = ids[n, -len(prompt) - steps :]
        logits = model(tokens[None]).logits[:, -steps - 1 : -1]
        last = tokens[None, -steps:]
        ways = {
            "scores": scores[n], "transition": transition[n], "grpo": grpo[n],
            "selective": selective_log_softmax(logits, last, temperature)[0],
            "forward": chosen(logits / temperature, last)[0],
        }
        row = {"tokens": tokens.tolist(), "prompt_length": len(prompt)}
        rows.append(row | {name: shown(values.float().tolist()) for name, values in ways.items()})
    return rows


def judged(xcheck: str, file: Path, columns: str, dtype: str) -> str:
    words = [xcheck, "gap", str(file), "--columns", columns, "--dtype", dtype, "--format", "json"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode not in (0, 1, 3):
        sys.exit(done.stderr)
    report = json.loads(done.stdout)
    return report["verdict"] + "".join(f", {finding['cause']}" for finding in report["findings"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="name of the model")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the model")
    parser.add_argument("--gguf", help="file of the model in the folder, if it is GGUF")
    parser.add_argument("--dtype", choices=DTYPES, required=True)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--sequences", type=int, default=104)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--xcheck", default="xcheck", help="the program")
    parser.add_argument("--out", type=Path, required=True, help="folder for the pairs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(9)
    subject = Subject(options.name, options.folder, options.gguf, options.sequences)
    model = subject.model(options.dtype)
    # No token ends a sequence: min_new_tokens would change the distribution.
    model.generation_config.eos_token_id = None
    add_fused_lm_head(model, temperature=options.temperature)
    file = options.out / f"{options.name}-{options.dtype}-{options.temperature}.jsonl"
    with file.open("w") as opened:
        for at in range(0, options.sequences, BATCH):
            prompts = subject.prompts[at : at + BATCH]
            for row in batch(model, prompts, options.steps, options.temperature):
                opened.write(json.dumps(row) + "\n")
    print(f"TRL {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}", file=sys.stderr)
    pairs = [pair for one, other in itertools.product(ROLLOUTS, TRAINERS) for pair in ((one, other), (other, one))]
    for columns in map(",".join, pairs):
        verdict = judged(options.xcheck, file, columns, options.dtype)
        cells = [options.name, options.dtype, options.temperature, columns, options.sequences, verdict]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
