#!/usr/bin/env python3
"""An engine in numpy that runs a Llama, with taps, and the dump of a run: numpy_engine.py MODEL_DIRECTORY OUT

The engine is `Llama`; what it takes to dump it are the calls of `dump.tap`, and `main`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import xcheck


def load(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a .safetensors file in f32."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, values = json.loads(data[8 : 8 + length]), data[8 + length :]
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(values, "<f4", np.prod(entry["shape"]), entry["data_offsets"][0]).reshape(entry["shape"])
        for name, entry in header.items()
    }


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps)) * weight


def softmax(x: np.ndarray) -> np.ndarray:
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


class Llama:
    """T = tokens of the pass, S = tokens so far, H = heads (as many for keys), D = head size."""

    def __init__(self, directory: Path):
        self.config = json.loads((directory / "config.json").read_text())
        self.weights = load(directory / "model.safetensors")
        self.heads, self.eps = self.config["num_attention_heads"], self.config["rms_norm_eps"]
        self.cache: list[tuple[np.ndarray, np.ndarray]] = [None] * self.config["num_hidden_layers"]

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return rms_norm(x, self.weights[f"{name}.weight"], self.eps)

    def rope(self, x: np.ndarray, position: int) -> np.ndarray:
        """T x H x D, from that position on: the two halves of a head rotate together."""
        half = x.shape[-1] // 2
        theta = self.config["rope_parameters"]["rope_theta"]
        frequency = 1.0 / theta ** (np.arange(half, dtype=np.float32) / half)
        angle = (np.arange(position, position + len(x), dtype=np.float32)[:, None] * frequency)[:, None]
        cos, sin = np.cos(angle), np.sin(angle)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, x: np.ndarray, layer: int, position: int, dump: xcheck.Dump) -> np.ndarray:
        name = f"model.layers.{layer}.self_attn"
        q, k, v = (self.linear(x, f"{name}.{part}_proj").reshape(len(x), self.heads, -1) for part in "qkv")
        dump.tap("q", q, layer)
        dump.tap("k", k, layer)
        dump.tap("v", v, layer)
        q = dump.tap("q_rope", self.rope(q, position), layer)
        k = dump.tap("k_rope", self.rope(k, position), layer)
        if position:
            k, v = (np.concatenate([old, new]) for old, new in zip(self.cache[layer], (k, v)))
        self.cache[layer] = k, v
        scores = dump.tap("attn_scores", np.einsum("thd,shd->hts", q, k) / np.float32(np.sqrt(q.shape[-1])), layer)
        unseen = np.arange(len(k)) > np.arange(position, position + len(q))[:, None]
        weights = dump.tap("attn_weights", softmax(np.where(unseen, np.float32(-np.inf), scores)), layer)
        context = np.einsum("hts,shd->thd", weights, v)
        dump.tap("attn_context", context, layer, axes=("token", "head", "head_dim"))
        return dump.tap("attn_out", self.linear(context.reshape(len(x), -1), f"{name}.o_proj"), layer)

    def feed_forward(self, x: np.ndarray, layer: int, dump: xcheck.Dump) -> np.ndarray:
        name = f"model.layers.{layer}.mlp"
        gate = dump.tap("ffn_gate", self.linear(x, f"{name}.gate_proj"), layer)
        up = dump.tap("ffn_up", self.linear(x, f"{name}.up_proj"), layer)
        act = dump.tap("ffn_act", gate / (1 + np.exp(-gate)) * up, layer)
        return dump.tap("ffn_out", self.linear(act, f"{name}.down_proj"), layer)

    def forward(self, tokens: list[int], position: int, dump: xcheck.Dump) -> np.ndarray:
        """The last token's logits."""
        x = dump.tap("embed", self.weights["model.embed_tokens.weight"][tokens])
        for layer in range(len(self.cache)):
            name = f"model.layers.{layer}"
            normed = dump.tap("attn_norm", self.norm(x, f"{name}.input_layernorm"), layer)
            x = x + self.attention(normed, layer, position, dump)
            normed = dump.tap("ffn_norm", self.norm(x, f"{name}.post_attention_layernorm"), layer)
            x = dump.tap("block_out", x + self.feed_forward(normed, layer, dump), layer)
        x = dump.tap("final_norm", self.norm(x, "model.norm"))
        logits = dump.tap("logits", self.linear(x, "lm_head"))
        dump.tap("probs", softmax(dump.tap("last_logits", logits[-1])))
        return logits[-1]


def main(directory: Path, out: str, tokens: list[int], decode: int = 4) -> list[int]:
    """Runs the prompt and a few greedy passes; gives what was generated."""
    engine, generated = Llama(directory), []
    with xcheck.Dump(
        out, producer="numpy-engine", model="tiny-llama2", config=engine.config, tokens=tokens, rope_pairing="half"
    ) as dump:
        read, position = tokens, 0
        for _ in range(decode + 1):
            with dump.forward(read, position=position):
                choice = int(dump.tap("argmax", engine.forward(read, position, dump).argmax()))
            position, read = position + len(read), [choice]
            generated.append(choice)
        dump.generated(generated)
    return generated


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), sys.argv[2], [1, 393, 395, 260, 394, 486, 263, 305]))
