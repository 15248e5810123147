#!/usr/bin/env python3
"""A Llama in torch, and what it takes to have it judged: the lines with `xcheck`. The engine itself has none.

    pip install ./python && cd examples/ten-lines
    python llama_torch.py ../../checkpoints/tiny-llama2c/tiny-llama2c-v0.bin run.safetensors [--mistake]
    xcheck check --model tiny-llama2c-v0 --candidate run.safetensors

It reads llama2.c's files of version 0, and runs a prompt. With --mistake scores of attention are not divided by √D.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import xcheck


class RMSNorm(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int, scale: float):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.scale = heads, kv_heads, dim // heads, scale
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, self.head_dim * kv_heads, bias=False) for _ in "kv")

    def rotated(self, x):
        """RoPE: neighbours [T, H, D / 2, 2] are complex numbers that are turned."""
        frequencies = 10000.0 ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)
        angles = (torch.arange(len(x))[:, None] * frequencies).float()[:, None]
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk, self.wv))
        k, v = (each.repeat_interleave(self.heads // self.kv_heads, 1) for each in (self.rotated(k), v))
        q, k, v = (each.transpose(0, 1) for each in (self.rotated(q), k, v))
        return self.wo(
            F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale).transpose(0, 1).flatten(1)
        )


class FeedForward(nn.Module):
    def __init__(self, dim: int, ffn: int):
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(*s, bias=False) for s in ((dim, ffn), (ffn, dim), (dim, ffn)))

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self, dim: int, ffn: int, heads: int, kv_heads: int, scale: float):
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(dim), Attention(dim, heads, kv_heads, scale)
        self.ffn_norm, self.feed_forward = RMSNorm(dim), FeedForward(dim, ffn)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """The model of a file: its sizes, then each kind of matrix of all layers."""

    ORDER = ("attention_norm", "attention.wq", "attention.wk", "attention.wv", "attention.wo", "ffn_norm")
    ORDER += ("feed_forward.w1", "feed_forward.w2", "feed_forward.w3")

    def __init__(self, path: str, scale: float | None):
        super().__init__()
        data = bytearray(Path(path).read_bytes())
        dim, ffn, n_layers, heads, kv_heads, vocab, _ = torch.frombuffer(data, dtype=torch.int32, count=7).tolist()
        self.heads = {"n_heads": heads, "n_kv_heads": kv_heads, "head_dim": dim // heads}
        self.tok_embeddings = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(
            Layer(dim, ffn, heads, kv_heads, scale or 1 / math.sqrt(dim // heads)) for _ in range(n_layers)
        )
        self.norm, self.output = RMSNorm(dim), nn.Linear(dim, vocab, bias=False)
        modules = [layer.get_submodule(name) for name in self.ORDER for layer in self.layers]
        weights, at = torch.frombuffer(data, dtype=torch.float32, offset=28), 0
        for module in [self.tok_embeddings, *modules, self.norm]:
            module.weight.data = weights[at : at + module.weight.numel()].view_as(module.weight)
            at += module.weight.numel()
        self.output.weight = self.tok_embeddings.weight

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


@torch.inference_mode()
def main(path: str, out: str, scale: float | None) -> None:
    model = Llama(path, scale)
    places = xcheck.guess_map(model)  # print it to see which module is taken for what
    with xcheck.hook(model, out, places, architecture="llama", rope_pairing="interleaved", **model.heads):
        logits = model(torch.tensor([1, 403, 407, 393, 395]))
    print(f"then comes {logits[-1].argmax()}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], 1.0 if "--mistake" in sys.argv else None)
