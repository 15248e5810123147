#!/usr/bin/env python3
"""Dumps every intermediate value of a GPT-2 model's greedy run by tinygrad, in xcheck's dump format.

The model has the structure of tinygrad's own GPT-2 example and is made of tinygrad's layers and operations;
scaled_dot_product_attention is written as its three steps, so that scores and weights can be seen. It runs three times:

- fused: tinygrad makes one kernel of whatever it likes, and simplifies across the operations in it,
- cut: every tap is the output of a kernel, as it has to be if it is to be seen,
- recorded: every tap is computed by itself and copied.

Nothing is written unless cut and recorded agree bit for bit in every logit, and fused chooses the same tokens with
logits that are no more than FUSED_TOLERANCE away. How far they are is in the manifest.
"""

import argparse
import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tinygrad import Tensor, dtypes, nn
from tinygrad.helpers import DEV
from tinygrad.nn.state import load_state_dict, safe_load, torch_load
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from dump_writer import Record, prepare, write_dump

LOADERS = {"model.safetensors": safe_load, "pytorch_model.bin": torch_load}
CONV1D = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
MASKS = (".attn.bias", ".attn.masked_bias")  # constants that some files hold

FUSED_TOLERANCE = 1e-4  # of the largest logit: the last bits of f32, after a model's worth of operations

# A tap: its name, its layer (None outside of layers), and the value, which it gives back.
Tap = Callable[[str, int | None, Tensor], Tensor]


def fuse(tap: str, layer: int | None, value: Tensor) -> Tensor:
    """Leaves what makes the value and what uses it to tinygrad."""
    return value


def cut(tap: str, layer: int | None, value: Tensor) -> Tensor:
    """Makes the value the output of a kernel, whenever it is computed."""
    return value.contiguous()


# ---------------------------------------------------------------------------------------------------
# The model. B = batch (1), T = tokens of the pass, S = tokens so far, d = hidden size, H = heads, D = head size.


class Attention:
    """Causal attention with a cache of keys and values."""

    def __init__(self, config: dict, layer: int):
        size = config["n_embd"]
        self.c_attn, self.c_proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.layer, self.heads = layer, config["n_head"]
        self.cache: list[Tensor] = []  # keys and values, B x S x H x D

    def __call__(self, x: Tensor, mask: Tensor | None, tap: Tap) -> Tensor:
        """x: B x T x d, normalised; mask: 1 x 1 x T x S, 0 or -inf."""
        parts = self.c_attn(x).chunk(3, dim=-1)
        query, key, value = (part.reshape(*x.shape[:2], self.heads, -1) for part in parts)
        query, key, value = (tap(name, self.layer, part) for name, part in zip("qkv", (query, key, value), strict=True))
        keys, values = self.extend_cache(key, value)
        tap("q_rope", self.layer, query)  # GPT-2 has no RoPE
        tap("k_rope", self.layer, key)
        keys, values = tap("k_cache", self.layer, keys), tap("v_cache", self.layer, values)
        context = self.attend(*(part.transpose(1, 2) for part in (query, keys, values)), mask, tap)
        context = tap("attn_context", self.layer, context.transpose(1, 2).reshape(x.shape))
        return tap("attn_out", self.layer, self.c_proj(context))

    def extend_cache(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Every key and value so far, B x S x H x D."""
        if self.cache:
            key, value = (old.cat(new, dim=1) for old, new in zip(self.cache, (key, value), strict=True))
        self.cache = [key.contiguous().realize(), value.contiguous().realize()]
        return self.cache[0], self.cache[1]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, tap: Tap) -> Tensor:
        """What scaled_dot_product_attention does: B x H x T x D of B x H x T x D and twice B x H x S x D."""
        scores = query.matmul(keys.transpose(-2, -1), dtype=dtypes.float32) / math.sqrt(query.shape[-1])
        scores = tap("attn_scores", self.layer, scores)
        if mask is not None:
            scores = scores + mask
        return tap("attn_weights", self.layer, scores.softmax(-1)) @ values


class FeedForward:
    """Two matrices with tinygrad's GELU, the tanh form, between them."""

    def __init__(self, config: dict, layer: int):
        size, inner = config["n_embd"], config.get("n_inner") or 4 * config["n_embd"]
        self.c_fc, self.c_proj, self.layer = nn.Linear(size, inner), nn.Linear(inner, size), layer

    def __call__(self, x: Tensor, tap: Tap) -> Tensor:
        """x: B x T x d, normalised."""
        up = tap("ffn_up", self.layer, self.c_fc(x))
        return tap("ffn_out", self.layer, self.c_proj(tap("ffn_act", self.layer, up.gelu())))


class Block:
    """One layer: attention and feed-forward, each on a normalised input and added to the stream."""

    def __init__(self, config: dict, layer: int):
        norms = (nn.LayerNorm(config["n_embd"], config["layer_norm_epsilon"]) for _ in range(2))
        self.ln_1, self.ln_2 = norms
        self.attn, self.mlp, self.layer = Attention(config, layer), FeedForward(config, layer), layer

    def __call__(self, x: Tensor, mask: Tensor | None, tap: Tap) -> Tensor:
        """x: B x T x d."""
        attention = self.attn(tap("attn_norm", self.layer, self.ln_1(x)), mask, tap)
        residual = tap("attn_residual", self.layer, x + attention)
        feed_forward = self.mlp(tap("ffn_norm", self.layer, self.ln_2(residual)), tap)
        return tap("block_out", self.layer, residual + feed_forward)


class Gpt2:
    """The model; its attributes are the names in the weight file."""

    def __init__(self, config: dict):
        self.wte = nn.Embedding(config["vocab_size"], config["n_embd"])
        self.wpe = nn.Embedding(config["n_positions"], config["n_embd"])
        self.h = [Block(config, layer) for layer in range(config["n_layer"])]
        self.ln_f = nn.LayerNorm(config["n_embd"], config["layer_norm_epsilon"])
        self.lm_head = nn.Linear(config["n_embd"], config["vocab_size"], bias=False)

    def __call__(self, tokens: list[int], position: int, tap: Tap) -> np.ndarray:
        """The logits, T x V, of tokens that begin at `position`."""
        count, end = len(tokens), position + len(tokens)
        positions = Tensor.arange(position, end).reshape(1, -1)
        mask = Tensor.full((1, 1, count, end), -math.inf).triu(position + 1).realize() if count > 1 else None
        x = tap("embed", None, self.wte(Tensor([tokens])) + self.wpe(positions))
        for block in self.h:
            x = block(x, mask, tap)
        return self.lm_head(tap("final_norm", None, self.ln_f(x)))[0].numpy()


def load_model(directory: Path, config: dict) -> Gpt2:
    """The model with the directory's weights."""
    path = weight_file(directory)
    weights = {name.removeprefix("transformer."): value for name, value in LOADERS[path.name](path).items()}
    weights = {name: value.to(None) for name, value in weights.items() if not name.endswith(MASKS)}
    weights |= {name: value.T.contiguous() for name, value in weights.items() if name.endswith(CONV1D)}
    weights.setdefault("lm_head.weight", weights["wte.weight"])
    model = Gpt2(config)
    load_state_dict(model, weights, verbose=False)
    return model


# ---------------------------------------------------------------------------------------------------
# Running.


@dataclass(frozen=True)
class Pass:
    """One forward pass: its first position, its tokens, and their logits, T x V."""

    position: int
    tokens: list[int]
    logits: np.ndarray

    @property
    def greedy(self) -> int:
        """The next token: the lowest id among the largest logits of the last row."""
        return int(self.logits[-1].argmax())


class Recorder:
    """Computes each tap by itself and keeps it; one pass at a time."""

    def __init__(self):
        self.records: list[Record] = []
        self.pass_index = 0

    def keep(self, tap: str, layer: int | None, values: np.ndarray) -> None:
        """Adds a tensor of the current pass."""
        dtype = {"float32": "f32", "uint32": "u32"}[values.dtype.name]
        self.records.append(Record(tap, self.pass_index, layer, dtype, values))

    def tap(self, tap: str, layer: int | None, value: Tensor) -> Tensor:
        """Keeps batch 1 x ... as the tap's ..."""
        value = value.contiguous().realize()
        self.keep(tap, layer, value[0].numpy())
        return value

    def end_pass(self, logits: np.ndarray) -> None:
        """Adds what follows from the pass's logits, T x V."""
        last = logits[-1]
        shares = np.exp(last.astype(np.float64) - last.max())
        self.keep("logits", None, logits)
        self.keep("last_logits", None, last)
        self.keep("argmax", None, np.array(last.argmax(), np.uint32))
        self.keep("probs", None, (shares / shares.sum()).astype(np.float32))
        self.pass_index += 1


def run(directory: Path, config: dict, tokens: list[int], decode: int, tap: Tap) -> Iterator[Pass]:
    """The prefill, then `decode` greedy passes of one token each, by a model that is loaded anew: its cache is empty."""
    model, position = load_model(directory, config), 0
    for _ in range(decode + 1):
        current = Pass(position, tokens, model(tokens, position, tap))
        yield current
        position += len(tokens)
        tokens = [current.greedy]


def check_recorded(plain: list[Pass], recorded: list[Pass]) -> None:
    """Recording must not have changed a bit of any logit."""
    for index, (a, b) in enumerate(zip(plain, recorded, strict=True)):
        if a.tokens != b.tokens or a.logits.tobytes() != b.logits.tobytes():
            sys.exit(f"error: pass {index}: recording changed the logits; nothing written")


def fused_difference(fused: list[Pass], recorded: list[Pass]) -> float:
    """The largest difference of a logit, if it is small enough for the two runs to be the same model's."""
    if [current.greedy for current in fused] != [current.greedy for current in recorded]:
        sys.exit("error: without the cuts between kernels tinygrad chooses other tokens; nothing written")
    difference = max(float(np.abs(a.logits - b.logits).max()) for a, b in zip(fused, recorded, strict=True))
    largest = max(float(np.abs(current.logits).max()) for current in recorded)
    if not difference <= FUSED_TOLERANCE * largest:
        sys.exit(f"error: the cuts between kernels change logits by {difference:.3g}; nothing written")
    return difference


# ---------------------------------------------------------------------------------------------------
# The manifest.


def weight_file(directory: Path) -> Path:
    """model.safetensors, or pytorch_model.bin."""
    paths = [directory / name for name in LOADERS if (directory / name).is_file()]
    return paths[0] if paths else sys.exit(f"error: {directory}: none of {', '.join(LOADERS)} is there")


def compiler() -> str:
    """The compiler that tinygrad runs, in its own words."""
    return subprocess.check_output(["clang", "--version"], text=True).splitlines()[0]


def build_manifest(arguments: argparse.Namespace, passes: list[Pass], difference: float) -> dict:
    """The manifest without its tensors; generated[i] is the argmax of pass i. Without RoPE there is no pairing."""
    prompt = {} if arguments.prompt is None else {"prompt": arguments.prompt}
    return {
        "format": "xcheck-dump",
        "version": 1,
        "producer": {
            "name": "tinygrad",
            "version": version("tinygrad"),
            "settings": {
                "dtype": "f32",
                "kv_cache": "f32",
                "device": str(DEV),
                "compiler": compiler(),
                "kernels": "cut at every tap",
                "fused_logits_difference": difference,
            },
        },
        "model": {
            "name": arguments.name or arguments.model.resolve().name,
            "architecture": "gpt2",
            "sha256": hashlib.sha256(weight_file(arguments.model).read_bytes()).hexdigest(),
        },
        "layout": {},
        "input": {**prompt, "tokens": passes[0].tokens, "decode": "greedy"},
        "passes": [{"position": current.position, "tokens": current.tokens} for current in passes],
        "generated": [current.greedy for current in passes],
    }


# ---------------------------------------------------------------------------------------------------
# The command line.


def load_config(directory: Path) -> dict:
    """config.json, if it is of a model that this script can run as it is meant to be run."""
    config = json.loads((directory / "config.json").read_text())
    if config["model_type"] != "gpt2" or config["activation_function"] != "gelu_new":
        sys.exit(f"error: {directory}: not a GPT-2 model with its GELU, gelu_new")
    return config


def input_tokens(arguments: argparse.Namespace, config: dict) -> list[int]:
    """The token ids given, or the prompt's; they must be the model's, and fit its context."""
    tokenizer = arguments.model / "tokenizer.json"
    tokens = arguments.tokens or Tokenizer.from_file(str(tokenizer)).encode(arguments.prompt).ids
    if unknown := [token for token in tokens if not 0 <= token < config["vocab_size"]]:
        sys.exit(f"error: token {unknown[0]} is outside the vocabulary of {config['vocab_size']}")
    if not 0 < len(tokens) <= config["n_positions"] - arguments.decode:
        sys.exit(f"error: {len(tokens)} + {arguments.decode} tokens do not fit into {config['n_positions']}")
    return tokens


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="directory of a GPT-2 model")
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--prompt", help="text; the directory must have tokenizer.json")
    start.add_argument("--tokens", type=lambda text: [int(token) for token in text.split(",")], help="token ids: 1,2,3")
    parser.add_argument("--decode", type=int, default=4, help="greedy passes after the prompt's (default: 4)")
    parser.add_argument("--name", help="model.name in the manifest (default: the last part of --model)")
    parser.add_argument("--out", type=Path, required=True, help="a directory, FILE.safetensors or FILE.npz")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    prepare(arguments.out)
    config = load_config(arguments.model)
    tokens = input_tokens(arguments, config)
    settings = arguments.model, config, tokens, arguments.decode
    recorder = Recorder()
    recorded = []
    for current in run(*settings, recorder.tap):
        recorder.end_pass(current.logits)
        recorded.append(current)
    check_recorded(list(run(*settings, cut)), recorded)
    manifest = build_manifest(arguments, recorded, fused_difference(list(run(*settings, fuse)), recorded))
    recorder.records.append(Record("generated", None, None, "u32", np.array(manifest["generated"])))
    write_dump(arguments.out, manifest, recorder.records)
    print(f"{arguments.out}: {len(recorded)} passes, {len(recorder.records)} tensors; {manifest['generated']}")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"error: {error}")
