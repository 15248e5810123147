#!/usr/bin/env python3
"""Makes pairs of log-probabilities as a rollout engine and a trainer compute them, with transformers on the CPU.

The rollout samples with a KV cache, in left-padded batches. The trainer reads the finished sequences in one forward
pass. One JSONL file for each model has the tokens of a sequence in a line, and one column of log-probabilities for each
way to compute them: correct ones (types, attention kernels, batches) and ones with a fault (temperature, weights, ...).
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXTS = [
    "The capital of France is", "def fibonacci(n):", "Once upon a time, in a small village,",
    "To solve 12 * 17, we first", "Water boils at", "The three laws of thermodynamics state that",
    "Dear Sir or Madam,", "import numpy as np\n", "In 1969, the first people", "Q: Why is the sky blue?\nA:",
    "Ingredients: 2 eggs, 100 g of flour,", "She opened the door and", "The derivative of x^3 is",
    "Bonjour, je m'appelle", "List five animals: cat, dog,", "The stock market fell today because",
]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Subject:
    """A model in all types and kernels, and the prompts that it continues."""

    def __init__(self, name: str, folder: Path, gguf: str | None, sequences: int) -> None:
        self.name, self.source, self.loaded = name, (folder, gguf), {}
        generator = torch.Generator().manual_seed(7)
        if gguf:
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf)
            self.prompts = [tokenizer(TEXTS[i % len(TEXTS)])["input_ids"] for i in range(sequences)]
        else:
            vocabulary = self.model("f32").config.vocab_size
            lengths = [4 + i % 9 for i in range(sequences)]
            self.prompts = [torch.randint(3, vocabulary, (n,), generator=generator).tolist() for n in lengths]

    def model(self, dtype: str, attention: str = "sdpa") -> torch.nn.Module:
        """Returns the model in this type. Both kernels share its weights: the last call sets the kernel."""
        if dtype not in self.loaded:
            folder, gguf = self.source
            more = {"gguf_file": gguf} if gguf else {}
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **more)
            self.loaded[dtype] = model.to(DTYPES[dtype]).eval()
        self.loaded[dtype].set_attn_implementation(attention)
        return self.loaded[dtype]


def chosen(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of ids, with the softmax in f32 as vLLM, verl and NeMo-RL compute it."""
    return torch.log_softmax(logits.float(), -1).gather(-1, ids[..., None])[..., 0]


@torch.no_grad()
def rollout(model: torch.nn.Module, prompts: list[list[int]], steps: int, seed: int) -> list[tuple[list, list]]:
    """Samples a left-padded batch with a KV cache; returns the tokens and log-probabilities of each completion."""
    generator = torch.Generator().manual_seed(seed)
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    cache, tokens, logprobs = None, [], []
    for _ in range(steps):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1]:]
        out = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
        cache, last = out.past_key_values, out.logits[:, -1].float()
        ids = torch.multinomial(torch.softmax(last, -1), 1, generator=generator)
        tokens.append(ids[:, 0])
        logprobs.append(chosen(last, ids[:, 0]))
        mask = torch.cat([mask, torch.ones_like(ids)], 1)
    return list(zip(torch.stack(tokens, 1).tolist(), torch.stack(logprobs, 1).tolist()))


@torch.no_grad()
def full(model: torch.nn.Module, tokens: list[int], more: dict | None = None) -> torch.Tensor:
    """Logits of one forward pass over a sequence, for the tokens from the second on."""
    return model(torch.tensor([tokens]), **(more or {})).logits[0, :-1]


@torch.no_grad()
def padded(model: torch.nn.Module, batch: list[list[int]]) -> list[torch.Tensor]:
    """Logits of a right-padded batch."""
    width = max(map(len, batch))
    ids = torch.tensor([t + [0] * (width - len(t)) for t in batch])
    mask = torch.tensor([[1] * len(t) + [0] * (width - len(t)) for t in batch])
    logits = model(ids, attention_mask=mask).logits
    return [row[: len(t) - 1] for row, t in zip(logits, batch)]


@contextmanager
def moved(model: torch.nn.Module, size: float, seed: int = 3) -> Iterator[None]:
    """Weights of another training step: each matrix moves by `size` of its own norm."""
    generator = torch.Generator().manual_seed(seed)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                noise = torch.randn(weight.shape, generator=generator)
                weight += (noise * weight.float().std() * size).to(weight.dtype)
    yield
    model.load_state_dict(kept)


def top_p(logits: torch.Tensor, ids: torch.Tensor, keep: float) -> torch.Tensor:
    """Log-probabilities after top-p, renormalised: what a sampler reports as processed ones."""
    order = logits.float().softmax(-1).sort(-1, descending=True)
    cut = order.values.cumsum(-1) - order.values > keep
    dropped = torch.zeros_like(cut).scatter(-1, order.indices, cut)
    dropped.scatter_(-1, ids[..., None], False)
    return chosen(logits.float().masked_fill(dropped, float("-inf")), ids)


def correct(subject: Subject, runs: list[list[int]]) -> dict[str, list[list[float]]]:
    """Columns that differ by rounding alone."""
    columns: dict[str, list[list[float]]] = {}
    for dtype in DTYPES:
        for kernel in ("eager", "sdpa"):
            model = subject.model(dtype, kernel)
            columns[f"{dtype}_{kernel}"] = each(runs, lambda t: chosen(full(model, t), torch.tensor(t[1:])))
        rows = [row for at in range(0, len(runs), 8) for row in padded(subject.model(dtype), runs[at : at + 8])]
        columns[f"{dtype}_padded"] = [chosen(r, torch.tensor(t[1:])).tolist() for r, t in zip(rows, runs)]
    # f32 weights against weights that were rounded: autocast keeps f32 masters.
    with torch.autocast("cpu", torch.bfloat16):
        model = subject.model("f32")
        columns["bf16_autocast"] = each(runs, lambda t: chosen(full(model, t), torch.tensor(t[1:])))
    trl = trl_logprobs()
    if trl:
        for dtype in ("f32", "bf16"):
            model = subject.model(dtype)
            columns[f"{dtype}_trl"] = each(runs, lambda t: trl(full(model, t)[None], torch.tensor([t[1:]]))[0].float())
    return columns


def trl_logprobs() -> Callable | None:
    """TRL's own function, if TRL is installed."""
    try:
        from trl.trainer.utils import selective_log_softmax
    except ImportError as error:
        print(f"SKIPPED: TRL's columns: {error}", file=sys.stderr)
        return None
    return selective_log_softmax


def each(runs: list[list[int]], of: Callable[[list[int]], torch.Tensor]) -> list[list[float]]:
    return [of(tokens).tolist() for tokens in runs]


def faults(subject: Subject, runs: list[list[int]], dtype: str) -> dict[str, list[list[float]]]:
    """Columns of a trainer of this type with one fault each."""
    columns: dict[str, list[list[float]]] = {}
    model = subject.model(dtype)
    ids = [torch.tensor(t[1:]) for t in runs]
    logits = [full(model, t) for t in runs]
    for temperature in (0.7, 0.9, 1.2):
        columns[f"temperature_{temperature}"] = [chosen(l / temperature, i).tolist() for l, i in zip(logits, ids)]
    columns["top_p_0.9"] = [top_p(l, i, 0.9).tolist() for l, i in zip(logits, ids)]
    size = logits[0].shape[-1]
    used = max(max(t) for t in runs) + 1
    columns["vocabulary_padded"] = [
        chosen(torch.cat([l, torch.zeros(len(l), max(64, size // 8))], 1), i).tolist() for l, i in zip(logits, ids)
    ]
    columns["vocabulary_cut"] = [chosen(l[:, : max(used, size - size // 4)], i).tolist() for l, i in zip(logits, ids)]
    columns["end_masked"] = [end_masked(model, l, i).tolist() for l, i in zip(logits, ids)]
    columns["greedy_token"] = [
        torch.where(torch.arange(len(i)) % 29 == 17, chosen(l, l.argmax(-1)), chosen(l, i)).tolist()
        for l, i in zip(logits, ids)
    ]
    # The cache holds the first tokens of another prompt from half of the sequence on.
    stale = (full(model, runs[(n + 1) % len(runs)][:8] + t[8:]) for n, t in enumerate(runs))
    columns["stale_prefix"] = [
        torch.where(torch.arange(len(i)) >= 30, chosen(o, i), chosen(l, i)).tolist()
        for l, o, i in zip(logits, stale, ids)
    ]
    jump = min(512, model.config.max_position_embeddings - max(map(len, runs)))
    late = [torch.arange(len(t))[None] + jump * (torch.arange(len(t)) >= 25)[None] for t in runs]
    columns["positions_from_25"] = [
        chosen(full(model, t, {"position_ids": p}), i).tolist() for t, p, i in zip(runs, late, ids)
    ]
    columns["packed"] = packed(model, runs)
    for size in (0.01, 0.03, 0.1):
        with moved(model, size):
            columns[f"weights_{size}"] = each(runs, lambda t: chosen(full(model, t), torch.tensor(t[1:])))
    columns["versions"] = versions(model, runs)
    columns["dropout"] = dropout(subject, runs, dtype)
    columns["rope_base"] = rope_base(subject.model(dtype), runs)
    return columns


def end_masked(model: torch.nn.Module, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities with a minimum length on one side: the end token is masked, except where it was sampled."""
    end = model.config.eos_token_id or 0
    masked = logits.clone()
    masked[ids != end, end] = float("-inf")
    return chosen(masked, ids)


def packed(model: torch.nn.Module, runs: list[list[int]]) -> list[list[float]]:
    """Every third sequence is read behind its predecessor, which it sees: packing without a mask."""
    found = []
    for n, tokens in enumerate(runs):
        room = model.config.max_position_embeddings - len(tokens)
        before = runs[n - 1][-room:] if n % 3 == 2 else []
        row = full(model, before + tokens)[len(before) :]
        found.append(chosen(row, torch.tensor(tokens[1:])).tolist())
    return found


def versions(model: torch.nn.Module, runs: list[list[int]]) -> list[list[float]]:
    """The trainer is 0 to 3 steps ahead of the rollout; column `version` of the file says how many."""
    found: list[list[float]] = [[] for _ in runs]
    for step in range(4):
        with moved(model, 0.03 * step):
            for n in range(step, len(runs), 4):
                found[n] = chosen(full(model, runs[n]), torch.tensor(runs[n][1:])).tolist()
    return found


def dropout(subject: Subject, runs: list[list[int]], dtype: str) -> list[list[float]]:
    """Attention dropout of 10 % stays on in the trainer."""
    model = subject.model(dtype, "eager")
    torch.manual_seed(5)
    layers = [m for m in model.modules() if hasattr(m, "attention_dropout")]
    if not layers:
        return []
    hooks = [
        m.register_forward_hook(lambda _m, _i, out: (torch.nn.functional.dropout(out[0], 0.1), *out[1:]))
        for m in layers
    ]
    found = each(runs, lambda t: chosen(full(model, t), torch.tensor(t[1:])))
    for hook in hooks:
        hook.remove()
    return found


def rope_base(model: torch.nn.Module, runs: list[list[int]]) -> list[list[float]]:
    """Frequencies of RoPE for a base four times as large."""
    rotary = next((m for m in model.modules() if hasattr(m, "inv_freq")), None)
    if rotary is None:
        return []
    kept = rotary.inv_freq.clone()
    exponent = torch.arange(len(kept)) / len(kept)
    rotary.inv_freq = kept * 4.0**-exponent
    found = each(runs, lambda t: chosen(full(model, t), torch.tensor(t[1:])))
    rotary.inv_freq = kept
    return found


def write(subject: Subject, out: Path, steps: int, sequences: int, wanted: list[str], dtype: str) -> None:
    """Writes the file; `wanted` are its columns, all if empty. `dtype` is the type of the trainer with faults."""
    rolls: dict[str, list[list[float]]] = {}
    runs: list[list[int]] = []
    for at in range(0, sequences, 8):
        prompts = subject.prompts[at : at + 8]
        runs += [p + t for p, (t, _) in zip(prompts, rollout(subject.model("bf16"), prompts, steps, at))]
    for own in DTYPES:
        rolls[f"{own}_cache"] = [row for at in range(0, sequences, 8) for row in replay(subject, own, runs, at)]
    starts = [len(p) for p in subject.prompts[:sequences]]
    columns = {**correct(subject, runs), **faults(subject, runs, dtype)}
    with open(out / f"{subject.name}.jsonl", "w") as file:
        for n, tokens in enumerate(runs):
            line = {"tokens": tokens, "prompt_length": starts[n], "version": n % 4}
            for name, rows in {**rolls, **columns}.items():
                if rows and (not wanted or name in wanted):
                    line[name] = shown(rows[n][-steps:])
            file.write(json.dumps(line) + "\n")
    released = {"torch": torch.__version__, "transformers": transformers.__version__}
    (out / f"{subject.name}.versions.json").write_text(json.dumps(released) + "\n")


@torch.no_grad()
def replay(subject: Subject, dtype: str, runs: list[list[int]], at: int) -> list[list[float]]:
    """Log-probabilities of decoding the same tokens with a KV cache, in a left-padded batch."""
    model, batch = subject.model(dtype), runs[at : at + 8]
    prompts = subject.prompts[at : at + 8]
    width, steps = max(map(len, prompts)), len(batch[0]) - len(prompts[0])
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    cache, found = None, []
    for step in range(steps):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1]:]
        out = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        ids = torch.tensor([[run[len(p) + step]] for run, p in zip(batch, prompts)])
        found.append(chosen(out.logits[:, -1], ids[:, 0]))
        mask = torch.cat([mask, torch.ones_like(ids)], 1)
    return torch.stack(found, 1).tolist()


def shown(values: list[float]) -> list[float]:
    """Numbers in the fewest digits that give the same f32."""
    return [float(f"{v:.9g}") for v in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="name of the written file")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the model")
    parser.add_argument("--gguf", help="file of the model in the folder, if it is GGUF")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="type of the trainer with a fault")
    parser.add_argument("--columns", help="columns to write, separated by commas; default: all")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    subject = Subject(options.name, options.folder, options.gguf, options.sequences)
    wanted = options.columns.split(",") if options.columns else []
    write(subject, options.out, options.steps, options.sequences, wanted, options.dtype)


if __name__ == "__main__":
    main()
