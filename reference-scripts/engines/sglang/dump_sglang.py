#!/usr/bin/env python3
"""Dumps a greedy run of SGLang on the CPU for xcheck, of what its own `debug_tensor_dump_output_folder` writes.

SGLang writes a file for each pass, with what leaves each module; of logits it writes those of the pass before, which is set
right here. The attention backend is `torch_native`. Nothing is written unless the tokens are those of a run without it, and
log-probabilities of the largest logits are the same in both.
"""

import argparse
import json
import shutil
import sys
import tempfile
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import sglang
import torch
import xcheck

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lib"))
from model_files import sha256, weight_files

# Of a layer's module, the taps that it gives: what it puts out first, and second. A norm that adds also gives the sum. All
# layers have one module for RoPE, and under the name of each SGLang writes what the last layer had of it: it has no tap.
TAPS = {
    "input_layernorm": ("attn_norm", "block_out"),  # the sum is what the layer before puts out
    "self_attn.qkv_proj": ("qkv",),
    "self_attn.q_norm": ("q_norm",),
    "self_attn.k_norm": ("k_norm",),
    "self_attn.attn": ("attn_context",),
    "self_attn.o_proj": ("attn_out",),
    "post_attention_layernorm": ("ffn_norm", "attn_residual"),
    "mlp.gate_up_proj": ("gate_up",),
    "mlp.act_fn": ("ffn_act",),
    "mlp.down_proj": ("ffn_out",),
}
PARTS = {"qkv": {"q", "k", "v"}, "gate_up": {"ffn_gate", "ffn_up"}}
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "ernie4_5", "seed_oss")
TOP = 20


def generate(arguments: argparse.Namespace, folder: str | None) -> tuple[list[int], list]:
    """The tokens chosen, and for each the largest log-probabilities."""
    engine = sglang.Engine(
        model_path=str(arguments.model),
        skip_tokenizer_init=True,
        device="cpu",
        dtype={"f32": "float32", "bf16": "bfloat16"}[arguments.dtype],
        attention_backend="torch_native",
        sampling_backend="pytorch",
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
        disable_radix_cache=True,
        skip_server_warmup=True,
        max_total_tokens=1024,
        log_level="error",
        debug_tensor_dump_output_folder=folder,
    )
    sampling = {"temperature": 0, "max_new_tokens": arguments.decode + 2, "ignore_eos": True}
    try:
        output = engine.generate(
            input_ids=arguments.tokens, sampling_params=sampling, return_logprob=True, top_logprobs_num=TOP
        )
    finally:
        engine.shutdown()
    return output["output_ids"], output["meta_info"]["output_top_logprobs"]


def passes(folder: str) -> list[dict]:
    """What each pass wrote, by the modules' names, with its own logits: those that the next file holds."""
    files = [torch.load(file, map_location="cpu") for file in sorted(Path(folder).rglob("Pass*.pt"))]
    return [one | {"logits": after["logits_processor"]} for one, after in pairwise(files)]


def unpadded(tap: str, value: torch.Tensor, size: int) -> torch.Tensor:
    """Returns an array of the feed-forward block without the columns by which SGLang widens it on the CPU."""
    if tap == "gate_up":
        return value.view(len(value), 2, -1)[..., :size].flatten(1)
    return value[..., :size] if tap == "ffn_act" else value


def write(dump: xcheck.Dump, values: dict, size: int, wanted: set[str] | None) -> None:
    """Writes the taps of one pass; `size` is the feed-forward width."""

    def tap(tap: str, value: torch.Tensor, layer: int | None = None, **manner: object) -> None:
        if wanted is None or PARTS.get(tap, {tap}) & wanted:
            dump.tap(tap, value, layer, **manner)

    count = dump.n_layers
    width = dump.heads.head_dim
    tap("embed", values["model.embed_tokens"])
    for layer in range(count):
        for module, taps in TAPS.items():
            output = values.get(f"model.layers.{layer}.{module}")
            for name, value in zip(taps, output if isinstance(output, (tuple, list)) else (output,), strict=False):
                if value is None:
                    continue
                if name in ("q_norm", "k_norm"):  # [T H, D]
                    value = value.reshape(len(values["model.embed_tokens"]), -1, width)
                tap(name, unpadded(name, value, size), layer - 1 if name == "block_out" else layer)
    tap("final_norm", values["model.norm"][0])
    tap("block_out", values["model.norm"][1], count - 1)
    tap("last_logits", values["logits"][-1])
    tap("argmax", values["logits"][-1].argmax())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model directory")
    tokens = parser.add_argument("--tokens", required=True, help="token ids: 1,2,3")
    tokens.type = lambda text: [int(token) for token in text.split(",")]
    parser.add_argument("--decode", type=int, default=1, help="greedy passes after the prompt's (default: 1)")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--taps", help="write these alone: q_rope,last_logits")
    parser.add_argument("--name", help="the model's name in the manifest (default: the last part of --model)")
    parser.add_argument(
        "--raw", type=Path, help="FILE.pt: SGLang's own file of the prompt's pass besides, for --map sglang"
    )
    parser.add_argument("--out", type=Path, required=True, help="a directory or FILE.safetensors")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    config = json.loads((arguments.model / "config.json").read_text())
    if config["model_type"] not in FAMILIES:
        raise ValueError(f"{arguments.model}: family {config['model_type']!r} is not one of {', '.join(FAMILIES)}")
    expected = generate(arguments, None)
    with tempfile.TemporaryDirectory() as folder:
        seen = generate(arguments, folder)
        read = passes(folder)
        if arguments.raw:
            shutil.copyfile(min(Path(folder).rglob("Pass*.pt")), arguments.raw)
    if seen != expected:
        raise ValueError("the tokens or log-probabilities are not those of a run that dumps nothing; nothing written")
    chosen = seen[0][: arguments.decode + 1]
    with xcheck.Dump(
        arguments.out,
        producer="sglang",
        version=version("sglang"),
        model=arguments.name or arguments.model.resolve().name,
        sha256=sha256(weight_files(arguments.model)),
        config=config,
        rope_pairing="half",
        settings={
            "dtype": arguments.dtype,
            "kv_cache": arguments.dtype,
            "device": "cpu",
            "attention": "torch_native",
            "torch": torch.__version__,
        },
        tokens=arguments.tokens,
        cut_fused=True,
    ) as dump:
        for values in read[: arguments.decode + 1]:
            with dump.forward(values["model.forward_batch_info.input_ids"].tolist()):
                wanted = set(arguments.taps.split(",")) if arguments.taps else None
                write(dump, values, config["intermediate_size"], wanted)
        dump.generated(chosen)
    print(f"{arguments.out}: {len(chosen)} passes, generated {chosen}")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, xcheck.DumpError) as error:
        sys.exit(f"error: {error}")
