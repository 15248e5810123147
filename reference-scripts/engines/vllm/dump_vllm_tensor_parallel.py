#!/usr/bin/env python3
"""Dumps a greedy run of vLLM on the CPU with its layers split over several processes (tensor parallelism).

Each worker is given hooks through `collective_rpc`; what a worker has a part of is gathered in the order of ranks, and rank 0 writes.
Fails unless the log-probabilities are those of a run without hooks.
"""

import argparse
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

from dump_vllm import FAMILIES, Watcher, generate  # sets vLLM's environment

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lib"))

import torch
import torch.distributed as dist
import vllm
import xcheck
from model_files import sha256, weight_files
from vllm import LLM
from vllm.distributed import get_tp_group

# Workers are processes of their own, and import this file.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")])

SHARDED = {"q_norm", "k_norm", "q_rope", "k_rope", "attn_context", "ffn_act"}


def gathered(value: torch.Tensor) -> torch.Tensor:
    """The parts of all ranks, in their order, along the axis behind the token."""
    group = get_tp_group()
    parts = [torch.empty_like(value) for _ in range(group.world_size)]
    dist.all_gather(parts, value.contiguous(), group=group.cpu_group)
    return torch.cat(parts, 1)


class Nothing:
    """What ranks behind the first write to."""

    def forward(self, *_: object, **__: object) -> nullcontext:
        return nullcontext()

    def tap(self, *_: object, **__: object) -> None:
        pass


class WholeWatcher(Watcher):
    """Taps whole arrays, on every rank."""

    sizes: tuple[int, int]

    def tap(self, tap: str, value: torch.Tensor, layer: int | None = None, **manner: object) -> None:
        value = value.detach()
        if get_tp_group().world_size > 1:
            if tap == "qkv":
                q, kv = self.sizes
                value = torch.cat([gathered(part) for part in value.split([q, kv, kv], -1)], 1)
            elif tap == "gate_up":
                value = torch.cat([gathered(part) for part in value.chunk(2, -1)], 1)
            elif tap in SHARDED:
                value = gathered(value)
        super().tap(tap, value, layer, **manner)

    def end(self, module: torch.nn.Module, args: tuple, output: torch.Tensor | None) -> None:
        if output is None:  # the logits are gathered by rank 0
            self.open.close()
        else:
            super().end(module, args, output)


class Taps:
    """What vLLM's workers are given besides: `LLM(worker_extension_cls=...)`."""

    def watch(self, out: str, described: dict, family: str, wanted: list[str] | None) -> None:
        """Hooks this worker's model."""
        model = self.model_runner.model
        attention = model.model.layers[0].self_attn
        self.dump = xcheck.Dump(out, **described) if get_tp_group().rank_in_group == 0 else Nothing()
        self.watcher = WholeWatcher(self.dump, set(wanted) if wanted else None)
        self.watcher.sizes = attention.q_size, attention.kv_size
        self.hooks = self.watcher.attach(model, FAMILIES[family])

    def unwatch(self, generated: list[int] | None) -> None:
        """Takes the hooks off, and finishes the dump unless there is nothing to finish it with."""
        for hook in self.hooks:
            hook.remove()
        if isinstance(self.dump, xcheck.Dump):
            if generated is None:
                self.dump.abort()
            else:
                self.dump.generated(generated)
                self.dump.close()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model directory")
    tokens = parser.add_argument("--tokens", required=True, help="token ids: 1,2,3")
    tokens.type = lambda text: [int(token) for token in text.split(",")]
    parser.add_argument("--ranks", type=int, default=2, help="tensor_parallel_size (default: 2)")
    parser.add_argument("--decode", type=int, default=1, help="greedy passes after the prompt's (default: 1)")
    parser.add_argument("--dtype", choices=("f32", "bf16", "f16"), default="f32")
    parser.add_argument("--taps", type=lambda text: text.split(","), help="write these alone: q_rope,last_logits")
    parser.add_argument("--name", help="the model's name in the manifest (default: the last part of --model)")
    parser.add_argument("--out", type=Path, required=True, help="a directory or FILE.safetensors")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    config = json.loads((arguments.model / "config.json").read_text())
    length = len(arguments.tokens) + arguments.decode + 1
    llm = LLM(
        model=str(arguments.model),
        skip_tokenizer_init=True,
        dtype={"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[arguments.dtype],
        tensor_parallel_size=arguments.ranks,
        distributed_executor_backend="mp" if arguments.ranks > 1 else None,
        worker_extension_cls=f"{Path(__file__).stem}.Taps",
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=length,
        max_num_batched_tokens=max(length, 64),
        max_logprobs=-1,
    )
    expected = generate(llm, arguments.tokens, arguments.decode)
    described = {
        "producer": "vllm",
        "version": vllm.__version__,
        "model": arguments.name or arguments.model.resolve().name,
        "sha256": sha256(weight_files(arguments.model)),
        "config": config,
        "rope_pairing": "half",
        "settings": {
            "dtype": arguments.dtype,
            "kv_cache": arguments.dtype,
            "device": "cpu",
            "tensor_parallel": arguments.ranks,
            "torch": torch.__version__,
        },
        "tokens": arguments.tokens,
        "cut_fused": True,
    }
    llm.collective_rpc("watch", args=(str(arguments.out.resolve()), described, config["model_type"], arguments.taps))
    seen = generate(llm, arguments.tokens, arguments.decode)
    same = seen == expected
    llm.collective_rpc("unwatch", args=(seen[0] if same else None,))
    if not same:
        raise ValueError("the log-probabilities are not those of a run without hooks; nothing written")
    print(f"{arguments.out}: {len(seen[0])} passes, generated {seen[0]}")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, xcheck.DumpError) as error:
        sys.exit(f"error: {error}")
