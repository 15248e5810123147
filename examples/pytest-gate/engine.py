"""A small Llama in numpy with a recorded run, in variants: two are right, four have a planted fault."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

MODEL = Path(__file__).parents[2] / "checkpoints" / "tiny-llama2c" / "tiny-llama2c-v0.bin"
TOKENS = [1, 403, 407, 393, 395, 260, 394, 486, 263, 305, 315, 17, 200, 77]


@dataclass(frozen=True)
class Variant:
    """The settings of an engine. The defaults are those of the model."""

    eps: float = 1e-5
    rope_base: float = 1e4
    scale: float = 8**-0.5
    kv_cache: str = "f32"


RIGHT = {"f32": Variant(), "bf16 cache": Variant(kv_cache="bf16")}
FAULTS = {
    "epsilon": Variant(eps=1e-6),
    "rope base": Variant(rope_base=1.02e4),
    "attention scale": Variant(scale=0.35),
    "epsilon, bf16 cache": Variant(eps=1e-6, kv_cache="bf16"),
}
VARIANTS = {**RIGHT, **FAULTS}


def load(path: Path) -> dict:
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


def rms_norm(x, gain, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps)) * gain


def rope(x, base):
    """Rotates neighbours [T, H, D / 2, 2] as complex numbers."""
    frequencies = base ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    turns = np.exp(1j * np.arange(len(x))[:, None, None] * frequencies).astype(np.complex64)
    return (np.ascontiguousarray(x).view(np.complex64) * turns).view(np.float32)


def softmax(x):
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def cached(x, dtype):
    """The values that a cache of this type returns; bf16 is the upper half of f32, rounded to even."""
    if dtype == "f32":
        return x
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


class Engine:
    """Runs a prompt. `tap(name, value, layer)` sees the values."""

    def __init__(self, variant: Variant):
        self.variant, self.model = variant, load(MODEL)

    def attention(self, h, layer, tap):
        m, variant = self.model, self.variant
        q, k, v = (np.reshape(h @ m[name][layer].T, (len(h), -1, m["head_dim"])) for name in ("q", "k", "v"))
        for name, value in {"q": q, "k": k, "v": v}.items():
            tap(name, value, layer)
        q, k = rope(q, variant.rope_base), rope(k, variant.rope_base)
        tap("q_rope", q, layer)
        tap("k_rope", k, layer)
        k, v = (np.repeat(cached(each, variant.kv_cache), m["heads"] // m["kv_heads"], 1) for each in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) * np.float32(variant.scale)
        tap("attn_scores", scores, layer)
        unseen = np.triu(np.ones((len(h), len(h)), bool), 1)
        context = np.einsum("hts,shd->thd", softmax(np.where(unseen, np.float32(-np.inf), scores)), v)
        tap("attn_context", context.reshape(len(h), -1), layer)
        return context.reshape(len(h), -1) @ m["out"][layer].T

    def feed_forward(self, h, layer):
        gate = h @ self.model["gate"][layer].T
        return (gate / (1 + np.exp(-gate)) * (h @ self.model["up"][layer].T)) @ self.model["down"][layer].T

    def logits(self, tokens, tap=lambda name, value, layer=None: None):
        m, eps = self.model, self.variant.eps
        x = m["embedding"][tokens]
        tap("embed", x)
        for layer in range(m["layers"]):
            h = rms_norm(x, m["attn_norm"][layer], eps)
            tap("attn_norm", h, layer)
            x = x + self.attention(h, layer, tap)
            tap("attn_residual", x, layer)
            x = x + self.feed_forward(rms_norm(x, m["ffn_norm"][layer], eps), layer)
            tap("block_out", x, layer)
        logits = rms_norm(x, m["norm"], eps) @ m["embedding"].T
        tap("logits", logits)
        return logits
