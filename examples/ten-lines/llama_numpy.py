#!/usr/bin/env python3
"""A Llama in numpy, and the ten lines that have it judged: those with `xcheck` or `dump`.

    pip install ./python && cd examples/ten-lines
    python llama_numpy.py ../../checkpoints/tiny-llama2c/tiny-llama2c-v0.bin run.safetensors [--mistake]
    xcheck check --model tiny-llama2c-v0 --candidate run.safetensors

It reads llama2.c's files of version 0, and runs a prompt. With --mistake RoPE has the base of Llama 3.
"""

from __future__ import annotations

import sys

import numpy as np

import xcheck


def load(path: str) -> dict:
    """The matrices of all layers, as they lie in the file."""
    dim, ffn, layers, heads, kv_heads, vocab, _ = (int(size) for size in np.fromfile(path, "<i4", 7))
    weights, at, kv = np.fromfile(path, "<f4", offset=28), 0, dim // heads * kv_heads
    shapes = {
        "embedding": (vocab, dim), "attn_norm": (layers, dim), "q": (layers, dim, dim), "k": (layers, kv, dim),
        "v": (layers, kv, dim), "out": (layers, dim, dim), "ffn_norm": (layers, dim), "gate": (layers, ffn, dim),
        "down": (layers, dim, ffn), "up": (layers, ffn, dim), "norm": (dim,),
    }  # fmt: skip
    model = {"layers": layers, "heads": heads, "kv_heads": kv_heads, "head_dim": dim // heads}
    for name, shape in shapes.items():
        model[name], at = weights[at : at + np.prod(shape)].reshape(shape), at + np.prod(shape)
    return model


def rms_norm(x, gain):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5)) * gain


def rotated(x, base: float):
    """RoPE: neighbours [T, H, D / 2, 2] are complex numbers that are turned."""
    frequencies = base ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    turns = np.exp(1j * np.arange(len(x))[:, None, None] * frequencies).astype(np.complex64)
    return (np.ascontiguousarray(x).view(np.complex64) * turns).view(np.float32)


def softmax(x):
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def attention(h, m: dict, layer: int, base: float):
    q, k, v = (np.reshape(h @ m[name][layer].T, (len(h), -1, m["head_dim"])) for name in ("q", "k", "v"))
    k, v = (np.repeat(each, m["heads"] // m["kv_heads"], 1) for each in (rotated(k, base), v))
    scores = np.einsum("thd,shd->hts", rotated(q, base), k) / np.float32(np.sqrt(m["head_dim"]))
    unseen = np.triu(np.ones((len(h), len(h)), bool), 1)
    context = np.einsum("hts,shd->thd", softmax(np.where(unseen, np.float32(-np.inf), scores)), v)
    return context.reshape(len(h), -1) @ m["out"][layer].T


def feed_forward(h, m: dict, layer: int):
    gate = h @ m["gate"][layer].T
    return (gate / (1 + np.exp(-gate)) * (h @ m["up"][layer].T)) @ m["down"][layer].T


def main(path: str, out: str, base: float) -> None:
    m, tokens = load(path), [1, 403, 407, 393, 395]
    with xcheck.Dump(out, producer="llama-numpy", architecture="llama") as dump, dump.forward(tokens):
        x = m["embedding"][tokens]
        dump.tap("embed", x)
        for layer in range(m["layers"]):
            x = x + attention(rms_norm(x, m["attn_norm"][layer]), m, layer, base)
            dump.tap("attn_residual", x, layer)
            x = x + feed_forward(rms_norm(x, m["ffn_norm"][layer]), m, layer)
            dump.tap("block_out", x, layer)
        logits = rms_norm(x, m["norm"]) @ m["embedding"].T
        dump.tap("logits", logits)
    print(f"after {tokens} comes {logits[-1].argmax()}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], 5e5 if "--mistake" in sys.argv else 1e4)
