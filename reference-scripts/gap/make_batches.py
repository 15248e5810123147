#!/usr/bin/env python3
"""Writes pairs of make_pairs.py as the batches that verl, NeMo-RL and TRL hold, and statistics of them by torch."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

SAMPLES = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, required=True, help="file of make_pairs.py")
    parser.add_argument("--routes", type=Path, required=True, help="file of make_routes.py")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = [json.loads(line) for line in open(options.pairs)]
    samples = rows[:SAMPLES]
    rollout, trainer = (torch.tensor([row[name] for row in samples]) for name in ("bf16_cache", "bf16_sdpa"))
    verl(samples, rollout, trainer, options.out)
    nemo_rl(samples, rollout, trainer, options.out)
    trl(samples, options.out)
    routes([json.loads(line) for line in open(options.routes)], options.out)
    (options.out / "statistics.json").write_text(json.dumps(statistics(rows)) + "\n")


def verl(rows: list[dict], rollout: torch.Tensor, trainer: torch.Tensor, out: Path) -> None:
    """Left-padded prompts, as in a DataProto of verl 0.9.1."""
    width = max(row["prompt_length"] for row in rows)
    starts = [row["prompt_length"] for row in rows]
    prompts = torch.tensor([[0] * (width - start) + row["tokens"][:start] for start, row in zip(starts, rows)])
    responses = torch.tensor([row["tokens"][row["prompt_length"] :] for row in rows])
    batch = {"prompts": prompts, "responses": responses, "input_ids": torch.cat([prompts, responses], 1)}
    batch["response_mask"] = torch.ones_like(responses)
    batch |= {"rollout_log_probs": rollout, "old_log_probs": trainer}
    torch.save(batch, out / "verl.pt")


def nemo_rl(rows: list[dict], rollout: torch.Tensor, trainer: torch.Tensor, out: Path) -> None:
    """Right-padded sequences with log-probabilities for all tokens, 0 at the prompt."""
    width = max(len(row["tokens"]) for row in rows)
    names = ("generation_logprobs", "prev_logprobs", "token_mask")
    arrays = {name: np.zeros((len(rows), width), np.float32) for name in names}
    ids = np.zeros((len(rows), width), np.int64)
    for n, row in enumerate(rows):
        start, end = row["prompt_length"], len(row["tokens"])
        ids[n, :end] = row["tokens"]
        arrays["generation_logprobs"][n, start:end] = rollout[n]
        arrays["prev_logprobs"][n, start:end] = trainer[n]
        arrays["token_mask"][n, start:end] = 1
    lengths = np.array([len(row["tokens"]) for row in rows])
    np.savez(out / "nemo_rl.npz", input_ids=ids, input_lengths=lengths, **arrays)


def routes(rows: list[dict], out: Path) -> None:
    """Right-padded sequences with the experts of each token, [sequences, tokens, layers, experts]; -1: no data."""
    width = max(len(row["tokens"]) for row in rows)
    arrays = {"input_ids": np.zeros((len(rows), width), np.int64), "token_mask": np.zeros((len(rows), width), np.float32)}
    layers, used = np.shape(rows[0]["rollout_routes"])[1:]
    for side, name in (("rollout", "generation_logprobs"), ("trainer", "prev_logprobs")):
        arrays[name] = np.zeros((len(rows), width), np.float32)
        arrays[f"{side}_routed_experts"] = np.full((len(rows), width, layers, used), -1, np.int16)
        for n, row in enumerate(rows):
            start, end = row["prompt_length"], len(row["tokens"])
            arrays["input_ids"][n, :end] = row["tokens"]
            arrays["token_mask"][n, start:end] = 1
            arrays[name][n, start:end] = row[side]
            arrays[f"{side}_routed_experts"][n, : end - 1] = row[f"{side}_routes"]
    np.savez_compressed(out / "routes.npz", input_lengths=np.array([len(row["tokens"]) for row in rows]), **arrays)


def trl(rows: list[dict], out: Path) -> None:
    """One line for each sample, with the names of TRL 1.16.0's GRPO trainer."""
    with open(out / "trl.jsonl", "w") as file:
        for row in rows:
            start = row["prompt_length"]
            line = {"prompt_ids": row["tokens"][:start], "completion_ids": row["tokens"][start:]}
            line |= {"completion_mask": [1] * len(row["bf16_cache"])}
            line |= {"sampling_per_token_logps": row["bf16_cache"], "old_per_token_logps": row["bf16_sdpa"]}
            file.write(json.dumps(line) + "\n")


def statistics(rows: list[dict]) -> dict[str, float]:
    """Importance ratios and KL estimates in f64 of a rollout and a trainer with another temperature."""
    names = ("bf16_cache", "temperature_0.7")
    rollout, trainer = (torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in names)
    log_ratio = trainer - rollout
    ratio = log_ratio.exp()
    return {
        "clip_fraction": ((ratio - 1).abs() > 0.2).double().mean().item(),
        "mean_ratio": ratio.mean().item(),
        "effective_sample_size": (ratio.sum() ** 2 / (ratio**2).sum() / ratio.numel()).item(),
        "kl_k1": -log_ratio.mean().item(),
        "kl_k3": (ratio - 1 - log_ratio).mean().item(),
        "mean_abs": log_ratio.abs().mean().item(),
        "max_abs": log_ratio.abs().max().item(),
    }


if __name__ == "__main__":
    main()
