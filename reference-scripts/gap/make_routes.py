#!/usr/bin/env python3
"""Makes pairs of log-probabilities of a mixture of experts, with the experts that each side chose (routing replay data).

The rollout decodes in bf16 with a KV cache; the trainer reads the finished sequences in one forward pass in f32. Both sides
record the experts of every token and layer ([tokens][layers][experts], as vLLM, SGLang, verl, slime and NeMo-RL do). Columns,
all with transformers on the CPU:

  rollout, trainer    correct, each with its own choices
  replayed            the trainer with the rollout's choices (R3)
  temperature         a trainer that divides its logits by 0.7
  router              a trainer whose router drops its scale: the logits are multiplied by 0.2 and moved by noise
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from make_pairs import chosen, shown
from transformers import AutoModelForCausalLM


class Routes:
    """Records the experts of each router, or replaces them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.given, self.found = model, None, {}
        self.used = model.config.num_experts_per_tok
        self.change: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits
        self.routers = [m for m in model.modules() if type(m).__name__.endswith("TopKRouter")]
        for layer, router in enumerate(self.routers):
            router.register_forward_hook(lambda _m, _i, out, layer=layer: self.chosen(layer, out))

    def chosen(self, layer: int, out: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Chooses by the logits (first of out), and computes the weights as the router does: softmax, then division by the sum."""
        logits = self.change(out[0].float())
        ids = logits.topk(self.used, -1).indices if self.given is None else self.given[:, layer]
        self.found[layer] = ids
        weights = logits.softmax(-1).gather(-1, ids)
        weights = weights / weights.sum(-1, keepdim=True)
        if self.given is None and logits.equal(out[0].float()):
            assert ids.sort(-1).values.equal(out[2].sort(-1).values), "the router chooses otherwise"
            near = torch.allclose(weights.sort(-1).values, out[1].float().sort(-1).values, atol=1e-2)
            assert near, "the router's weights do not have the sum 1"
            return out
        return out[0], weights.to(out[1].dtype), ids

    def taken(self) -> torch.Tensor:
        """Returns the experts of the last forward pass, [tokens, layers, experts]."""
        return torch.stack([self.found[layer] for layer in range(len(self.routers))], 1)


@torch.no_grad()
def decoded(routes: Routes, prompt: list[int], steps: int, seed: int) -> tuple[list, list, list]:
    """Samples with a KV cache; returns the tokens, their log-probabilities, and the experts of all but the last token."""
    generator = torch.Generator().manual_seed(seed)
    tokens, logprobs, experts, cache = list(prompt), [], [], None
    ids = torch.tensor([prompt])
    for _ in range(steps):
        out = routes.model(ids, past_key_values=cache, use_cache=True)
        cache, last = out.past_key_values, out.logits[0, -1:].float()
        experts += routes.taken().tolist()
        ids = torch.multinomial(torch.softmax(last, -1), 1, generator=generator)
        logprobs += chosen(last, ids[:, 0]).tolist()
        tokens.append(int(ids))
    return tokens, logprobs, experts


@torch.no_grad()
def scored(routes: Routes, tokens: list[int], given: list | None = None, temperature=1.0):
    """Log-probabilities of one forward pass, and its experts."""
    routes.given = None if given is None else torch.tensor(given)
    out = routes.model(torch.tensor([tokens[:-1]])).logits[0].float() / temperature
    routes.given = None
    return chosen(out, torch.tensor(tokens[1:])).tolist(), routes.taken().tolist()


def row(sides: list[Routes], prompt: list[int], steps: int, seed: int) -> dict:
    tokens, rollout, experts = decoded(sides[0], prompt, steps, seed)
    routes = sides[1]
    trainer, own = scored(routes, tokens)
    noise = torch.Generator().manual_seed(1)
    routes.change = lambda logits: 0.2 * logits + 0.5 * torch.randn(logits.shape, generator=noise)
    router, wrong = scored(routes, tokens)
    routes.change = lambda logits: logits
    columns = {"rollout": rollout, "trainer": trainer, "router": router}
    columns["replayed"] = scored(routes, tokens, experts)[0]
    columns["temperature"] = scored(routes, tokens, temperature=0.7)[0]
    line = {"tokens": tokens, "prompt_length": len(prompt), "dtype": "bf16"}
    line |= {name: shown(values[-steps:]) for name, values in columns.items()}
    return line | {"rollout_routes": experts, "trainer_routes": own, "router_routes": wrong}


def loaded(folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.to(dtype).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the model")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sides = [Routes(loaded(options.folder, dtype)) for dtype in (torch.bfloat16, torch.float32)]
    vocabulary = sides[0].model.config.vocab_size
    generator = torch.Generator().manual_seed(7)
    with open(options.out, "w") as file:
        for number in range(options.sequences):
            prompt = torch.randint(3, vocabulary, (4 + number % 5,), generator=generator).tolist()
            file.write(json.dumps(row(sides, prompt, options.steps, number)) + "\n")


if __name__ == "__main__":
    main()
