#!/usr/bin/env python3
"""Dumps every intermediate value of a greedy run by mlx-lm that its modules show, in xcheck's dump format.

The model is mlx-lm's own, on the CPU. It runs twice: plainly, and with modules that also copy what enters or leaves
them. Nothing is written unless both runs agree bit for bit in every logit, and mlx-lm's generate_step chooses the same
tokens.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.utils import load_model, load_tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from dump_writer import Record, prepare, write_dump
from model_files import load_config, sha256, weight_files

DTYPES = {"f32": mx.float32, "bf16": mx.bfloat16, "f16": mx.float16}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()} | {mx.uint32: "u32"}

# ---------------------------------------------------------------------------------------------------
# Where each family keeps what the taps name. T = tokens of the pass, S = tokens so far, D = head size.


@dataclass(frozen=True)
class Port:
    """One side of a module of a decoder layer, where a tap's value passes by."""

    module: str
    is_input: bool = False
    third: int | None = None  # a fused q-k-v projection: which third of the last axis
    heads_first: bool = False  # batch, heads, T, D instead of batch, T, heads, D

    def read(self, value: mx.array) -> mx.array:
        """batch 1 x T x ... as the tap's T x ..."""
        value = value[0]
        if self.third is not None:
            value = mx.split(value, 3, axis=-1)[self.third]
        return value.swapaxes(0, 1) if self.heads_first else value


def input_of(module: str) -> Port:
    """What enters the module."""
    return Port(module, is_input=True)


def output_of(module: str, third: int | None = None, heads_first: bool = False) -> Port:
    """What leaves the module."""
    return Port(module, third=third, heads_first=heads_first)


@dataclass(frozen=True)
class Family:
    """The modules of one model family; `taps` are relative to a decoder layer."""

    final_norm: str
    taps: dict[str, Port]
    rope: str | None = "self_attn.rope"  # called with the queries and then with the keys


LLAMA = Family(
    final_norm="norm",
    taps={
        "attn_norm": output_of("input_layernorm"),
        "q": output_of("self_attn.q_proj"),
        "k": output_of("self_attn.k_proj"),
        "v": output_of("self_attn.v_proj"),
        "attn_context": input_of("self_attn.o_proj"),
        "attn_out": output_of("self_attn.o_proj"),
        "attn_residual": input_of("post_attention_layernorm"),
        "ffn_norm": output_of("post_attention_layernorm"),
        "ffn_gate": output_of("mlp.gate_proj"),
        "ffn_up": output_of("mlp.up_proj"),
        "ffn_act": input_of("mlp.down_proj"),
        "ffn_out": output_of("mlp.down_proj"),
    },
)
QWEN3 = replace(
    LLAMA,
    taps=LLAMA.taps | {"q_norm": output_of("self_attn.q_norm"), "k_norm": output_of("self_attn.k_norm")},
)
GEMMA3 = replace(
    LLAMA,
    taps=LLAMA.taps
    | {
        "q_norm": output_of("self_attn.q_norm", heads_first=True),
        "k_norm": output_of("self_attn.k_norm", heads_first=True),
        "attn_post_norm": output_of("post_attention_layernorm"),
        "attn_residual": input_of("pre_feedforward_layernorm"),
        "ffn_norm": output_of("pre_feedforward_layernorm"),
        "ffn_post_norm": output_of("post_feedforward_layernorm"),
    },
)
GPT2 = Family(
    final_norm="ln_f",
    taps={
        "attn_norm": output_of("ln_1"),
        "q": output_of("attn.c_attn", third=0),
        "k": output_of("attn.c_attn", third=1),
        "v": output_of("attn.c_attn", third=2),
        "attn_context": input_of("attn.c_proj"),
        "attn_out": output_of("attn.c_proj"),
        "attn_residual": input_of("ln_2"),
        "ffn_norm": output_of("ln_2"),
        "ffn_up": output_of("mlp.c_fc"),
        "ffn_act": input_of("mlp.c_proj"),
        "ffn_out": output_of("mlp.c_proj"),
    },
    rope=None,
)
FAMILIES = {"llama": LLAMA, "qwen3": QWEN3, "gemma3_text": GEMMA3, "gpt2": GPT2}

# ---------------------------------------------------------------------------------------------------
# Recording.


def to_numpy(value: mx.array) -> np.ndarray:
    """The values; of bf16, which NumPy has not, the bits."""
    return np.array(value.view(mx.uint16) if value.dtype == mx.bfloat16 else value)


class Recorder:
    """Collects the taps of one forward pass, in the order in which they are computed."""

    def __init__(self, head_dim: int):
        self.head_dim = head_dim
        self.taps: dict[tuple[str, int | None], tuple[str, np.ndarray]] = {}

    def keep(self, tap: str, layer: int | None, value: mx.array) -> None:
        """Copies the value at once: MLX computes it then, and `+=` on an array writes into it later."""
        self.taps[tap, layer] = DTYPE_NAMES[value.dtype], to_numpy(value)

    def keep_port(self, tap: str, layer: int, port: Port, value: mx.array) -> None:
        """A module's input or output as its tap; the per-head taps become T x heads x D."""
        value = port.read(value)
        if tap in ("q", "k", "v", "q_norm", "k_norm"):
            value = value.reshape(value.shape[0], -1, self.head_dim)
        self.keep(tap, layer, value)

    def keep_rope(self, layer: int, value: mx.array) -> None:
        """1 x heads x T x D: the queries of this pass, or, if they are there already, the keys."""
        self.keep("k_rope" if ("q_rope", layer) in self.taps else "q_rope", layer, value[0].swapaxes(0, 1))

    def keep_cache(self, layer: int, fetched: tuple[mx.array, mx.array]) -> None:
        """Twice 1 x Hkv x S x D."""
        for tap, value in zip(("k_cache", "v_cache"), fetched, strict=True):
            self.keep(tap, layer, value[0].swapaxes(0, 1))

    def take(self) -> dict[tuple[str, int | None], tuple[str, np.ndarray]]:
        """The taps since the last call, by (tap, layer)."""
        taps, self.taps = self.taps, {}
        return taps


def watch(owner: Any, method: str, before: Callable = lambda value: None, after: Callable = lambda value: None) -> None:
    """Calls `before` with the first argument of `owner.method` and `after` with its result.

    Python looks a method such as __call__ up in the class: so this one object gets a class derived from its own.
    """
    original = getattr(type(owner), method)

    def watched(self, value, *args, **kwargs):
        before(value)
        result = original(self, value, *args, **kwargs)
        after(result)
        return result

    derived = type(type(owner).__name__, (type(owner),), {method: watched})
    object.__setattr__(owner, "__class__", derived)  # nn.Module's own __setattr__ would make it a parameter


def submodule(module: nn.Module, path: str) -> nn.Module:
    """a.b of a module."""
    for name in path.split("."):
        module = getattr(module, name)
    return module


def watch_port(recorder: Recorder, block: nn.Module, tap: str, layer: int, port: Port) -> None:
    """Records `tap` of decoder layer `block` whenever it runs."""
    side = "before" if port.is_input else "after"
    keep = {side: lambda value: recorder.keep_port(tap, layer, port, value)}
    watch(submodule(block, port.module), "__call__", **keep)


def watch_layer(recorder: Recorder, block: nn.Module, layer: int, family: Family) -> None:
    """Records every tap of one decoder layer, its input too if it is the first."""
    if layer == 0:
        watch(block, "__call__", before=lambda value: recorder.keep("embed", None, value[0]))
    for tap, port in family.taps.items():
        watch_port(recorder, block, tap, layer, port)
    if family.rope:
        watch(submodule(block, family.rope), "__call__", after=lambda value: recorder.keep_rope(layer, value))
    watch(block, "__call__", after=lambda value: recorder.keep("block_out", layer, value[0]))


def instrument(model: nn.Module, family: Family, config: dict) -> Recorder:
    """Watches the model's modules."""
    heads = config.get("n_head") or config["num_attention_heads"]
    width = config.get("n_embd") or config["hidden_size"]
    recorder = Recorder(config.get("head_dim") or width // heads)
    for layer, block in enumerate(model.layers):
        watch_layer(recorder, block, layer, family)
    watch(
        submodule(model.model, family.final_norm),
        "__call__",
        after=lambda value: recorder.keep("final_norm", None, value[0]),
    )
    return recorder


def watch_caches(recorder: Recorder, caches: list) -> None:
    """Records what attention reads, except where the cache turns: its rows are not the positions in order then."""
    for layer, cache in enumerate(caches):
        if isinstance(cache, KVCache):
            watch(cache, "update_and_fetch", after=lambda fetched, layer=layer: recorder.keep_cache(layer, fetched))


# ---------------------------------------------------------------------------------------------------
# Running.


@dataclass(frozen=True)
class Pass:
    """One forward pass: its first position, its tokens, and their logits, T x V."""

    position: int
    tokens: list[int]
    logits: mx.array

    @property
    def greedy(self) -> int:
        """The next token: the lowest id among the largest logits of the last row."""
        return int(np.argmax(np.array(self.logits[-1].astype(mx.float32))))


def run_passes(
    model: nn.Module, prompt: list[list[int]], decode: int, recorder: Recorder | None = None
) -> Iterator[Pass]:
    """The prompt's passes, then `decode` greedy passes of one token each, on one KV cache."""
    caches, position = make_prompt_cache(model), 0
    if recorder:
        watch_caches(recorder, caches)
    pending = list(prompt)
    while pending:
        tokens = pending.pop(0)
        logits = model(mx.array([tokens]), cache=caches)[0]
        mx.eval(logits)
        current = Pass(position, tokens, logits)
        yield current
        position += len(tokens)
        if not pending and decode:
            pending, decode = [[current.greedy]], decode - 1


def sampling_taps(current: Pass) -> dict[tuple[str, None], tuple[str, np.ndarray]]:
    """What follows from a pass's logits."""
    last = current.logits[-1]
    shares = np.exp((wide := np.array(last.astype(mx.float32), np.float64)) - wide.max())
    return {
        ("logits", None): (DTYPE_NAMES[last.dtype], to_numpy(current.logits)),
        ("last_logits", None): (DTYPE_NAMES[last.dtype], to_numpy(last)),
        ("argmax", None): ("u32", np.array(current.greedy)),
        ("probs", None): ("f32", shares / shares.sum()),
    }


def record_passes(
    model: nn.Module, recorder: Recorder, prompt: list[list[int]], decode: int
) -> tuple[list[Pass], list[Record]]:
    """Runs the watched model: its passes, and every tap of each."""
    passes, records = [], []
    for index, current in enumerate(run_passes(model, prompt, decode, recorder)):
        taps = recorder.take() | sampling_taps(current)
        records += [Record(tap, index, layer, dtype, values) for (tap, layer), (dtype, values) in taps.items()]
        passes.append(current)
    return passes, records


# ---------------------------------------------------------------------------------------------------
# Checking.


def check_passes(plain: list[Pass], recorded: list[Pass]) -> None:
    """Recording must not have changed a bit of any logit."""
    for index, (a, b) in enumerate(zip(plain, recorded, strict=True)):
        if a.tokens != b.tokens or to_numpy(a.logits).tobytes() != to_numpy(b.logits).tobytes():
            sys.exit(f"error: pass {index}: recording changed the logits; nothing written")


def check_generated(generated: list[int], model: nn.Module, tokens: list[int]) -> None:
    """generate_step, which feeds the prompt's last token by itself, must choose the tokens that the passes chose."""
    theirs = [int(token) for token, _ in generate_step(mx.array(tokens), model, max_tokens=len(generated))]
    if theirs != generated:
        sys.exit(f"error: generate_step gives {theirs}, the passes gave {generated}; nothing written")


# ---------------------------------------------------------------------------------------------------
# The command line.


def build_manifest(
    arguments: argparse.Namespace, config: dict, tokens: list[int], passes: list[Pass], generated: list[int]
) -> dict:
    """The manifest without its tensors; generated[i] is the argmax of the i-th pass from the prompt's last one on."""
    prompt = {} if arguments.prompt is None else {"prompt": arguments.prompt}
    return {
        "format": "xcheck-dump",
        "version": 1,
        "producer": {
            "name": "mlx-lm",
            "version": version("mlx-lm"),
            "settings": {
                "dtype": arguments.dtype,
                "attention": "mx.fast.scaled_dot_product_attention",
                "kv_cache": arguments.dtype,
                "mlx": version("mlx"),
                "device": "cpu",
            },
        },
        "model": {
            "name": arguments.name or arguments.model.resolve().name,
            "architecture": config["model_type"].removesuffix("_text"),
            "sha256": sha256(weight_files(arguments.model)),
        },
        "layout": {"rope_pairing": "half"} if FAMILIES[config["model_type"]].rope else {},
        "input": {**prompt, "tokens": tokens, "decode": "greedy"},
        "passes": [{"position": current.position, "tokens": current.tokens} for current in passes],
        "generated": generated,
    }


def input_tokens(arguments: argparse.Namespace, config: dict) -> list[int]:
    """The token ids given, or the prompt's; they must be the model's, and fit its context."""
    tokens = arguments.tokens or load_tokenizer(arguments.model).encode(arguments.prompt)
    context = config.get("n_positions") or config["max_position_embeddings"]
    if unknown := [token for token in tokens if not 0 <= token < config["vocab_size"]]:
        sys.exit(f"error: token {unknown[0]} is outside the vocabulary of {config['vocab_size']}")
    if not 0 < len(tokens) <= context - arguments.decode:
        sys.exit(f"error: {len(tokens)} + {arguments.decode} tokens do not fit into {context}")
    return tokens


def load(arguments: argparse.Namespace) -> nn.Module:
    """mlx-lm's model, with weights of the type asked for."""
    try:
        model, _ = load_model(arguments.model)
    except (TypeError, ValueError) as error:  # what its ModelArgs say of a configuration
        sys.exit(f"error: {arguments.model}: mlx-lm refuses the model: {error}")
    model.set_dtype(DTYPES[arguments.dtype])
    return model


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model directory")
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--prompt", help="text, tokenized as the model's tokenizer does by default")
    start.add_argument("--tokens", type=lambda text: [int(token) for token in text.split(",")], help="token ids: 1,2,3")
    parser.add_argument("--one-by-one", action="store_true", help="feed the prompt in passes of one token each")
    parser.add_argument("--decode", type=int, default=4, help="greedy passes after the prompt's (default: 4)")
    parser.add_argument("--dtype", choices=DTYPES, default="f32", help="of weights and activations (default: f32)")
    parser.add_argument(
        "--taps", type=lambda text: text.split(","), help="write these alone, of those there are: q_rope,logits"
    )
    parser.add_argument("--name", help="model.name in the manifest (default: the last part of --model)")
    parser.add_argument("--out", type=Path, required=True, help="a directory, FILE.safetensors or FILE.npz")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    mx.set_default_device(mx.cpu)
    prepare(arguments.out)
    config = load_config(arguments.model)
    if config["model_type"] not in FAMILIES:
        sys.exit(f"error: {arguments.model}: family {config['model_type']!r} is not one of {', '.join(FAMILIES)}")
    tokens = input_tokens(arguments, config)
    prompt = [[token] for token in tokens] if arguments.one_by_one else [tokens]
    model = load(arguments)

    plain = list(run_passes(model, prompt, arguments.decode))
    generated = [current.greedy for current in plain[len(prompt) - 1 :]]
    check_generated(generated, model, tokens)
    passes, records = record_passes(
        model, instrument(model, FAMILIES[config["model_type"]], config), prompt, arguments.decode
    )
    check_passes(plain, passes)
    records.append(Record("generated", None, None, "u32", np.array(generated)))
    if arguments.taps is not None:
        records = [record for record in records if record.tap in arguments.taps]
    write_dump(arguments.out, build_manifest(arguments, config, tokens, passes, generated), records)
    print(f"{arguments.out}: {len(passes)} passes, {len(records)} tensors; prompt {tokens}, generated {generated}")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"error: {error}")
