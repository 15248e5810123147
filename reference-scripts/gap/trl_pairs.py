#!/usr/bin/env python3
"""Judges pairs of log-probabilities: rollouts of transformers or of another engine against TRL's trainer.

By default, transformers samples left-padded batches. The rollout's log-probabilities are a log-softmax of generate's
scores (`scores`) and those of compute_transition_scores (`transition`). --rollouts names a file of another engine instead,
as vllm_rollouts.py writes it. The trainer's are those of GRPOTrainer's method, of selective_log_softmax, and of one forward
pass of transformers. All pairs differ by rounding alone: each verdict other than pass is a false alarm. Prints a Markdown
table.
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
TRAINERS = ("grpo", "selective", "forward")


def generated(model: torch.nn.Module, prompts: list[list[int]], steps: int, temperature: float) -> list[dict]:
    """Samples a left-padded batch; returns the sequences and their log-probabilities in two ways."""
    ids, mask = padded(prompts)
    settings = transformers.GenerationConfig(
        do_sample=True, temperature=temperature, top_k=0, top_p=1.0, max_new_tokens=steps,
        pad_token_id=0, output_scores=True, return_dict_in_generate=True,
    )
    out = model.generate(ids, attention_mask=mask, generation_config=settings)
    transition = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    scores = chosen(torch.stack(out.scores, 1), out.sequences[:, ids.shape[1] :])
    rows = []
    for n, prompt in enumerate(prompts):
        row = {"tokens": out.sequences[n, -len(prompt) - steps :].tolist(), "prompt_length": len(prompt)}
        rows.append(row | {"scores": numbers(scores[n]), "transition": numbers(transition[n])})
    return rows


def padded(sequences: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ids and mask of a left-padded batch."""
    width = max(map(len, sequences))
    pad = [width - len(tokens) for tokens in sequences]
    ids = [[0] * n + tokens for n, tokens in zip(pad, sequences)]
    return torch.tensor(ids), torch.tensor([[0] * n + [1] * (width - n) for n in pad])


def numbers(values: torch.Tensor) -> list[float]:
    return shown(values.float().tolist())


@torch.no_grad()
def scored(model: torch.nn.Module, rows: list[dict], steps: int, temperature: float) -> list[dict]:
    """Adds the trainer's log-probabilities to a batch of rollouts."""
    trainer = SimpleNamespace(accelerator=Accelerator(cpu=True))
    batch = padded([row["tokens"] for row in rows])
    grpo, *_ = GRPOTrainer._get_per_token_logps_and_entropies(trainer, model, *batch, steps)
    for row, values in zip(rows, grpo):
        tokens = torch.tensor([row["tokens"]])
        logits = model(tokens).logits[:, -steps - 1 : -1]
        last = tokens[:, -steps:]
        row["grpo"] = numbers(values)
        row["selective"] = numbers(selective_log_softmax(logits, last, temperature)[0])
        row["forward"] = numbers(chosen(logits / temperature, last)[0])
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
    parser.add_argument("--rollouts", type=Path, help="file with the rollouts of another engine")
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
    rows = []
    if options.rollouts:
        rows = [json.loads(line) for line in options.rollouts.open()]
    for at in range(0, 0 if rows else options.sequences, BATCH):
        rows += generated(model, subject.prompts[at : at + BATCH], options.steps, options.temperature)
    ways = [name for name in rows[0] if name not in ("tokens", "prompt_length")]
    steps = len(rows[0][ways[0]])
    with file.open("w") as opened:
        for at in range(0, len(rows), BATCH):
            for row in scored(model, rows[at : at + BATCH], steps, options.temperature):
                opened.write(json.dumps(row) + "\n")
    print(f"TRL {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}", file=sys.stderr)
    pairs = [pair for one, other in itertools.product(ways, TRAINERS) for pair in ((one, other), (other, one))]
    for columns in map(",".join, pairs):
        verdict = judged(options.xcheck, file, columns, options.dtype)
        cells = [options.name, options.dtype, options.temperature, columns, len(rows), verdict]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
