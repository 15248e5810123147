#!/usr/bin/env python3
"""Dumps a greedy run of vLLM on the CPU, in its own process and without compiled graphs, for xcheck.

Hooks on vLLM's modules give the taps; a pass begins where the model is called and ends where its logits are made, which are
of the last row alone. A norm that adds also gives the sum, which is the residual stream. Nothing is written unless vLLM gives
the same log-probabilities of the whole vocabulary, bit for bit, without hooks.
"""

import argparse
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
import vllm
import xcheck
from vllm import LLM, SamplingParams

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lib"))
from model_files import sha256, weight_files

# Of a layer's module, the taps that it gives: what it puts out first, and second.
LLAMA = {
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
GEMMA = LLAMA | {
    "post_attention_layernorm": ("attn_post_norm",),
    "pre_feedforward_layernorm": ("ffn_norm", "attn_residual"),
    "post_feedforward_layernorm": ("ffn_post_norm",),
}
LIKE_LLAMA = ("llama", "qwen2", "qwen3", "mistral", "seed_oss", "ernie4_5", "internlm3")
FAMILIES = {**dict.fromkeys(LIKE_LLAMA, LLAMA), "gemma3_text": GEMMA}


class Watcher:
    """The hooks of one model, writing to one dump."""

    def __init__(self, dump: xcheck.Dump, wanted: set[str] | None):
        self.dump, self.wanted, self.open = dump, wanted, ExitStack()

    def tap(self, tap: str, value: torch.Tensor, layer: int | None = None, **manner: object) -> None:
        parts = {"qkv": {"q", "k", "v"}, "gate_up": {"ffn_gate", "ffn_up"}}.get(tap, {tap})
        if self.wanted is None or parts & self.wanted:
            self.dump.tap(tap, value, layer, **manner)

    def begin(self, _: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        ids, positions = (
            kwargs.get(name, args[i] if i < len(args) else None) for i, name in ((0, "input_ids"), (1, "positions"))
        )
        self.open.enter_context(self.dump.forward(ids.tolist(), position=positions.tolist()))

    def enter_layers(self, _: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        self.tap("embed", args[1] if len(args) > 1 else kwargs["hidden_states"])

    def enter_attention(self, layer: int, args: tuple) -> None:
        for tap, value in zip(("q_rope", "k_rope"), args, strict=False):
            self.tap(tap, value, layer, axes=("token", "hidden"))

    def leave(self, layer: int | None, taps: tuple[str, ...], output: object) -> None:
        values = output if isinstance(output, tuple) else (output,)
        for tap, value in zip(taps, values, strict=False):
            per_head = tap in ("q_norm", "k_norm") and value.ndim == 2
            axes = ("token", "hidden") if per_head else None
            self.tap(tap, value, layer - 1 if (tap, taps[0]) == ("block_out", "attn_norm") else layer, axes=axes)

    def end(self, _: torch.nn.Module, args: tuple, output: torch.Tensor) -> None:
        self.tap("last_logits", output[-1])
        self.tap("argmax", output[-1].argmax())
        self.open.close()

    def attach(self, model: torch.nn.Module, taps: dict[str, tuple[str, ...]]) -> list:
        """All hooks; a table's module that the model lacks is left out."""
        inner, last = model.model, len(model.model.layers) - 1
        hooks = [
            model.register_forward_pre_hook(self.begin, with_kwargs=True),
            inner.layers[0].register_forward_pre_hook(self.enter_layers, with_kwargs=True),
            inner.norm.register_forward_hook(lambda m, a, out: self.leave(None, ("final_norm",), out)),
            inner.norm.register_forward_hook(lambda m, a, out: self.tap("block_out", out[1], last)),
            model.logits_processor.register_forward_hook(self.end),
        ]
        for layer, block in enumerate(inner.layers):
            modules = dict(block.named_modules())
            for name, its in taps.items():
                if name in modules:
                    hook = lambda m, a, out, layer=layer, its=its: self.leave(layer, its, out)
                    hooks.append(modules[name].register_forward_hook(hook))
            hook = lambda m, args, layer=layer: self.enter_attention(layer, args)
            hooks.append(block.self_attn.attn.register_forward_pre_hook(hook))
        return hooks


def generate(llm: LLM, tokens: list[int], decode: int) -> tuple[list[int], list[dict[int, float]]]:
    """The tokens chosen, and for each the log-probabilities of the vocabulary."""
    sampling = SamplingParams(temperature=0, max_tokens=decode + 1, ignore_eos=True, detokenize=False, logprobs=-1)
    output = llm.generate({"prompt_token_ids": tokens}, sampling, use_tqdm=False)[0].outputs[0]
    return list(output.token_ids), [{id: p.logprob for id, p in row.items()} for row in output.logprobs]


def save_everything(llm: LLM, model: torch.nn.Module, tokens: list[int], file: Path) -> None:
    """The output of every module in the prompt's pass under its name, as anybody would save it."""
    seen = {"input_ids": torch.tensor(tokens)}

    def save(name: str, output: object) -> None:
        parts = {f"{name}.{i}": part for i, part in enumerate(output)} if isinstance(output, tuple) else {name: output}
        seen.update({key: part.clone() for key, part in parts.items() if torch.is_tensor(part)})

    hooks = [
        module.register_forward_hook(lambda m, a, output, name=name: save(name, output))
        for name, module in model.named_modules()
        if name
    ]
    generate(llm, tokens, 0)
    for hook in hooks:
        hook.remove()
    torch.save(seen, file)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model directory")
    tokens = parser.add_argument("--tokens", required=True, help="token ids: 1,2,3")
    tokens.type = lambda text: [int(token) for token in text.split(",")]
    parser.add_argument("--decode", type=int, default=1, help="greedy passes after the prompt's (default: 1)")
    parser.add_argument("--dtype", choices=("f32", "bf16", "f16"), default="f32")
    parser.add_argument("--taps", help="write these alone: q_rope,last_logits")
    parser.add_argument("--name", help="the model's name in the manifest (default: the last part of --model)")
    parser.add_argument(
        "--hooked", type=Path, help="FILE.pt: every module's output under its name besides, for --map vllm"
    )
    parser.add_argument("--out", type=Path, required=True, help="a directory or FILE.safetensors")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    config = json.loads((arguments.model / "config.json").read_text())
    if config["model_type"] not in FAMILIES:
        raise ValueError(f"{arguments.model}: family {config['model_type']!r} is not one of {', '.join(FAMILIES)}")
    length = len(arguments.tokens) + arguments.decode + 1
    llm = LLM(
        model=str(arguments.model),
        skip_tokenizer_init=True,
        dtype={"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[arguments.dtype],
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=length,
        max_num_batched_tokens=max(length, 64),
        max_logprobs=-1,
    )
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    model = worker.model_runner.model
    if arguments.hooked:
        save_everything(llm, model, arguments.tokens, arguments.hooked)
    expected = generate(llm, arguments.tokens, arguments.decode)
    with xcheck.Dump(
        arguments.out,
        producer="vllm",
        version=vllm.__version__,
        model=arguments.name or arguments.model.resolve().name,
        sha256=sha256(weight_files(arguments.model)),
        config=config,
        rope_pairing="half",
        settings={"dtype": arguments.dtype, "kv_cache": arguments.dtype, "device": "cpu", "torch": torch.__version__},
        tokens=arguments.tokens,
        cut_fused=True,
    ) as dump:
        watcher = Watcher(dump, set(arguments.taps.split(",")) if arguments.taps else None)
        hooks = watcher.attach(model, FAMILIES[config["model_type"]])
        seen = generate(llm, arguments.tokens, arguments.decode)
        for hook in hooks:
            hook.remove()
        if seen != expected:
            raise ValueError("the log-probabilities are not those of a run without hooks; nothing written")
        dump.generated(seen[0])
    print(f"{arguments.out}: {len(seen[0])} passes, generated {seen[0]}")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, xcheck.DumpError) as error:
        sys.exit(f"error: {error}")
