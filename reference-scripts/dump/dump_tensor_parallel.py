#!/usr/bin/env python3
"""Dumps a greedy run of a transformers model whose layers are split over several processes (tensor parallelism, gloo).

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 dump_tensor_parallel.py --model DIR --tokens 1,2,3 --out FILE.safetensors

transformers' own plan is used: columns of q, k, v, gate and up, rows of o and down, whose products `dist.all_reduce` adds in the
model's type. What a process has a part of is gathered in the order of ranks. Nothing is written unless all ranks and a run without
hooks agree bit for bit in every logit. `--nproc-per-node 1` is the same without tensor parallelism.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
import xcheck
from dump_transformers import (
    DTYPES,
    FAMILIES,
    Pass,
    Recorder,
    check_passes,
    input_tokens,
    instrument,
    load_config,
    run_passes,
    same_bits,
    sampling_taps,
    sha256,
    token_list,
    weight_files,
)
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.distributed import DistributedConfig

# Of what each rank has a part, and along which axis.
SHARDED = {
    **dict.fromkeys(("q", "k", "v", "q_norm", "k_norm", "q_rope", "k_rope", "k_cache", "v_cache"), 1),
    **dict.fromkeys(("attn_scores", "attn_weights"), 0),
    **dict.fromkeys(("attn_context", "ffn_gate", "ffn_up", "ffn_act"), 1),
}
WRITTEN = (
    "embed attn_norm q k v q_norm k_norm attn_context attn_out attn_post_norm attn_residual ffn_norm ffn_gate ffn_up ffn_act "
    "ffn_out ffn_post_norm block_out final_norm logits"
).split()


def gathered(value: Tensor, axis: int) -> Tensor:
    """The parts of all ranks, in their order."""
    parts = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, value)
    return torch.cat(parts, axis)


class WholeRecorder(Recorder):
    """Keeps whole arrays, on every rank."""

    def keep(self, tap: str, layer: int | None, value: Tensor) -> None:
        value = value[0].detach().clone(memory_format=torch.contiguous_format)
        if tap in SHARDED and dist.get_world_size() > 1:
            value = gathered(value, SHARDED[tap])
        self.taps[tap, layer] = value


def load_model(arguments: argparse.Namespace) -> PreTrainedModel:
    """The model, split over the ranks as its own plan says if there are several."""
    ranks = dist.get_world_size()
    split = {"distributed_config": DistributedConfig(tp_size=ranks)} if ranks > 1 else {}
    return AutoModelForCausalLM.from_pretrained(
        arguments.model, dtype=DTYPES[arguments.dtype], attn_implementation=arguments.attention, **split
    ).eval()


def check_ranks(passes: list[Pass]) -> None:
    """All ranks have the same logits."""
    for index, current in enumerate(passes):
        everyone = [torch.empty_like(current.logits) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, current.logits.contiguous())
        if not all(same_bits(current.logits, other) for other in everyone):
            sys.exit(f"error: pass {index}: the ranks' logits differ; nothing written")


def settings(arguments: argparse.Namespace) -> dict[str, object]:
    """What changes the numbers."""
    return {
        "dtype": arguments.dtype,
        "attention": arguments.attention,
        "kv_cache": arguments.dtype,
        "tensor_parallel": dist.get_world_size(),
        "all_reduce": "gloo",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def write(arguments: argparse.Namespace, config: object, passes: list[Pass], taps: list[dict]) -> None:
    """The dump of what was recorded."""
    with xcheck.Dump(
        arguments.out,
        producer="transformers",
        version=transformers.__version__,
        model=arguments.name or Path(arguments.model).resolve().name,
        sha256=sha256(weight_files(arguments.model)),
        config=config,
        rope_pairing="half" if FAMILIES[config.model_type].rope else None,
        settings=settings(arguments),
        tokens=passes[0].tokens,
    ) as dump:
        for current, its in zip(passes, taps, strict=True):
            with dump.forward(current.tokens, position=range(current.position, current.position + len(current.tokens))):
                for (tap, layer), value in its.items():
                    if tap in arguments.taps:
                        dump.tap(tap, value, layer)
        dump.generated([current.greedy for current in passes])
    print(f"{arguments.out}: {len(passes)} passes, generated {[current.greedy for current in passes]}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model directory")
    parser.add_argument("--tokens", type=token_list, required=True, help="token ids: 1,2,3")
    parser.add_argument("--decode", type=int, default=1, help="greedy passes after the prompt's (default: 1)")
    parser.add_argument("--dtype", choices=DTYPES, default="f32", help="of weights and activations (default: f32)")
    parser.add_argument("--attention", choices=("eager", "sdpa"), default="eager")
    parser.add_argument("--taps", type=lambda text: text.split(","), default=WRITTEN, help="write these alone: attn_out,logits")
    parser.add_argument("--name", help="the model's name in the manifest (default: the last part of --model)")
    parser.add_argument("--out", type=Path, required=True, help="a directory or FILE.safetensors")
    return parser.parse_args()


@torch.inference_mode()
def main() -> None:
    arguments = parse_arguments()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.use_deterministic_algorithms(True)
    config = load_config(arguments.model)
    tokens = input_tokens(arguments, config)
    dist.init_process_group("gloo")
    model = load_model(arguments)
    plain = list(run_passes(model, tokens, arguments.decode))
    recorder = instrument(model, FAMILIES[config.model_type], WholeRecorder)
    passes, taps = [], []
    for current in run_passes(model, tokens, arguments.decode):
        passes.append(current)
        taps.append(recorder.take() | sampling_taps(current.logits))
    check_passes(plain, passes)
    check_ranks(passes)
    if dist.get_rank() == 0:
        write(arguments, config, passes, taps)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
