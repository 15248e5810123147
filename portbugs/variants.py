"""Correct ways to compute the same model. Each is a function that changes an engine; runs name them in `features`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from engine import Engine, Rows, patch
from torch import Tensor

FEATURES: dict[str, Callable[..., None]] = {}


def feature(function: Callable[..., None]) -> Callable[..., None]:
    FEATURES[function.__name__] = function
    return function


def apply(engine: Engine, features: dict[str, Any]) -> None:
    """Applies the features of a run, in their order."""
    for name, value in features.items():
        FEATURES[name](engine, value)


# --- rounding ---


@feature
def fused(e: Engine, on: bool) -> None:
    """Kernels that compute in f32 and round their result once; scores and weights exist inside of them only."""
    e.fused, e.record_scores = on, False


@feature
def stream(e: Engine, dtype: str) -> None:
    """Keeps the residual stream in f32."""
    e.stream = lambda x: x
    patch(e, embed=lambda old, rows: old(rows))
    e.wide = ("embed", "attn_residual", "block_out")
    e.settings["residual"] = dtype


@feature
def kv(e: Engine, dtype: str) -> None:
    """Stores keys and values in another type."""
    e.kv = dtype


@feature
def operands(e: Engine, dtype: str) -> None:
    """Rounds both operands of products with weights, as matrix units do."""
    def rounded(x: Tensor) -> Tensor:
        if dtype != "tf32":
            return x.to({"bf16": torch.bfloat16, "f16": torch.float16}[dtype]).float()
        bits = x.contiguous().view(torch.int32)
        return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)

    patch(e, matmul=lambda old, a, b: old(rounded(a), rounded(b)))
    e.settings["dtype"] = dtype if dtype == "tf32" else e.dtype


# --- order of sums ---


@feature
def sums(e: Engine, order: str) -> None:
    """Adds the terms of products in another order, or in f64."""
    def matmul(old: Callable[..., Tensor], a: Tensor, b: Tensor) -> Tensor:
        if order == "f64":
            return (a.double() @ b.double()).float()
        if order == "reversed":
            return old(a.flip(-1), b.flip(-2))
        if order == "shuffled":
            places = torch.randperm(a.shape[-1], generator=torch.Generator().manual_seed(1))
            return old(a[..., places], b[..., places, :])
        if order == "one-by-one":
            total = torch.zeros(*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
            for k in range(a.shape[-1]):
                total = total + a[..., k, None] * b[..., k, None, :]
            return total
        raise ValueError(order)

    patch(e, matmul=matmul)


@feature
def split_k(e: Engine, parts: int) -> None:
    """Adds f32 sums of parts."""
    patch(e, matmul=lambda old, a, b: sum(old(x, y) for x, y in zip(a.chunk(parts, -1), b.chunk(parts, -2))))


@feature
def ranks(e: Engine, count: int) -> None:
    """Tensor parallelism: `o` and `down` add the results of all ranks, each in the engine's type."""
    def linear(old: Callable[..., Tensor], layer: int | None, name: str, x: Tensor, w: tuple[Tensor, Tensor | None]) -> Tensor:
        if name not in ("o", "down"):
            return old(layer, name, x, w)
        parts = zip(x.chunk(count, -1), w[0].chunk(count, -1))
        return e.all_reduce(name, [e.inner(e.matmul(a, b.T)) for a, b in parts], w[1])

    def all_reduce(name: str, parts: list[Tensor], bias: Tensor | None) -> Tensor:
        total = parts[0]
        for part in parts[1:]:
            total = e.store(total + part)
        return total if bias is None else e.result(total + bias)

    e.all_reduce = all_reduce
    patch(e, linear=linear)


# --- attention ---


@feature
def flash(e: Engine, block: int) -> None:
    """Flash attention: blocks of keys, a running maximum, one division at the end."""
    e.record_scores = False

    def attend(old: Callable[..., Tensor], layer: int, q: Tensor, rows: Rows, sequence: int) -> Tensor:
        keys, values, positions = e.read(layer, sequence)
        mask = e.visible(layer, rows.position, positions)
        best = torch.full((e.n_heads, len(q), 1), -torch.inf)
        total, context = torch.zeros_like(best), torch.zeros(e.n_heads, len(q), e.head_dim)
        for start in range(0, len(positions), block):
            part = slice(start, start + block)
            scores = wide_scores(e, q, keys[part]).masked_fill(~mask[:, part], -torch.inf)
            peak = torch.maximum(best, scores.amax(-1, keepdim=True))
            safe = peak.masked_fill(peak == -torch.inf, 0.0)
            weights, old_share = e.exp(scores - safe), e.exp(best - safe)
            total = total * old_share + weights.sum(-1, keepdim=True)
            context = context * old_share + e.matmul(e.store(weights), e.grouped(values[part]))
            best = peak
        return e.result((context / total).transpose(0, 1).flatten(1))

    e.exp = torch.exp
    patch(e, attend=attend)


def wide_scores(e: Engine, q: Tensor, keys: Tensor) -> Tensor:
    """Returns scores in f32, as kernels keep them."""
    s = e.matmul(q.transpose(0, 1), e.grouped(keys).transpose(1, 2)) * e.scale
    return torch.tanh(s / e.score_cap) * e.score_cap if e.score_cap else s


@feature
def merge(e: Engine, on: bool) -> None:
    """Attention over cached and over new keys apart, merged by the logarithms of their sums."""
    e.record_scores = False

    def attend(old: Callable[..., Tensor], layer: int, q: Tensor, rows: Rows, sequence: int) -> Tensor:
        keys, values, positions = e.read(layer, sequence)
        mask = e.visible(layer, rows.position, positions)
        first = min(rows.position)
        parts = [[i for i, p in enumerate(positions) if (p < first) == past] for past in (True, False)]
        outs, sums = [], []
        for part in parts:
            scores = wide_scores(e, q, keys[part]).masked_fill(~mask[:, part], -torch.inf)
            lse = torch.logsumexp(scores, -1, keepdim=True) if part else torch.full((e.n_heads, len(q), 1), -torch.inf)
            safe = lse.masked_fill(lse == -torch.inf, 0.0)
            outs.append(e.matmul(e.store(torch.exp(scores - safe)), e.grouped(values[part])))
            sums.append(lse)
        shares = e.shares(torch.stack(sums))
        return e.result((outs[0] * shares[0] + outs[1] * shares[1]).transpose(0, 1).flatten(1))

    e.shares = lambda sums: torch.softmax(sums, 0)
    patch(e, attend=attend)


@feature
def exponentials(e: Engine, kind: str) -> None:
    """Other exponentials in softmax: base 2, or wrong by up to 2 units in the last place."""
    def exp(x: Tensor) -> Tensor:
        if kind == "base-2":
            return torch.exp2(x * 1.4426950408889634)
        y = torch.exp(x)
        noise = torch.randint(-2, 3, y.shape, generator=torch.Generator().manual_seed(y.numel()))
        return torch.where(y > 0, (y.view(torch.int32) + noise.int()).view(torch.float32), y) if kind == "2-ulp" else y

    def softmax(old: Callable[..., Tensor], layer: int, scores: Tensor, mask: Tensor) -> Tensor:
        scores = scores.masked_fill(~mask, -torch.inf)
        weights = exp(scores - (0.0 if kind == "no-maximum" else scores.amax(-1, keepdim=True)))
        return e.inner(weights / weights.sum(-1, keepdim=True))

    patch(e, softmax=softmax)


@feature
def scaled(e: Engine, what: str) -> None:
    """Multiplies the queries, or queries and keys, with the attention scale before their product."""
    e.record_scores = False

    def scores(old: Callable[..., Tensor], layer: int, q: Tensor, keys: Tensor) -> Tensor:
        a, b = (q * e.scale, keys) if what == "queries" else (q * e.scale**0.5, keys * e.scale**0.5)
        s = e.matmul(a.transpose(0, 1), e.grouped(b).transpose(1, 2))
        return e.capped(s, e.score_cap) if e.score_cap else s

    patch(e, scores=scores)


# --- layout ---


@feature
def pairing(e: Engine, kind: str) -> None:
    """Permutes q and k so that neighbours rotate together, as in llama.cpp's files."""
    e.pairing = kind
    width = e.head_dim
    order = torch.arange(width).view(2, width // 2).T.flatten()
    for w in e.layers:
        for name, heads in (("q", e.n_heads), ("k", e.n_kv)):
            weight, bias = w[name]
            places = torch.cat([head * width + order for head in range(heads)])
            w[name] = (weight[places], None if bias is None else bias[places])
            if f"{name}_norm" in w:
                norm = w[f"{name}_norm"][0]
                w[f"{name}_norm"] = (norm[order if norm.numel() == width else places], None)


@feature
def fused_weights(e: Engine, on: bool) -> None:
    """Multiplies with q, k and v, and with gate and up, as one matrix each."""
    def linear(old: Callable[..., Tensor], layer: int | None, name: str, x: Tensor, w: tuple[Tensor, Tensor | None]) -> Tensor:
        group = next((g for g in (("q", "k", "v"), ("gate", "up")) if name in g), None)
        if group is None or layer is None or any(part not in e.layers[layer] for part in group):
            return old(layer, name, x, w)
        weights = [e.layers[layer][part] for part in group]
        start = sum(part[0].shape[0] for part in weights[: group.index(name)])
        whole = torch.cat([part[0] for part in weights])
        bias = None if w[1] is None else torch.cat([part[1] for part in weights])
        return old(layer, name, x, (whole, bias))[:, start : start + w[0].shape[0]]

    patch(e, linear=linear)


@feature
def ring(e: Engine, on: bool) -> None:
    """Drops keys that no later query sees in layers with a window."""
    def attention(old: Callable[..., Tensor], layer: int, q: Tensor, k: Tensor, v: Tensor, rows: Rows) -> Tensor:
        out, cache, window = old(layer, q, k, v, rows), e.caches[layer], e.windows[layer]
        if window is not None:
            last = {s: max(p for o, p in zip(cache.sequence, cache.position) if o == s) for s in set(cache.sequence) if s is not None}
            kept = [i for i, (s, p) in enumerate(zip(cache.sequence, cache.position)) if s is not None and p > last[s] - window]
            cache.keys, cache.values = cache.keys[kept], cache.values[kept]
            cache.sequence, cache.position = [cache.sequence[i] for i in kept], [cache.position[i] for i in kept]
        return out

    patch(e, attention=attention)


# --- elementwise ---


@feature
def tiny(e: Engine, kind: str) -> None:
    """Flushes values below the smallest normal number to zero in every result."""
    patch(e, result=lambda old, x: torch.where(x.abs() < 2.0**-126, torch.zeros_like(x), old(x)))


@feature
def silu_form(e: Engine, kind: str) -> None:
    """Computes SiLU and GELU by another formula."""
    def activation(old: Callable[..., Tensor], layer: int, x: Tensor) -> Tensor:
        if e.act == "silu":
            return x / (1 + torch.exp(-x)) if kind == "division" else x * (0.5 * torch.tanh(x * 0.5) + 0.5)
        if e.act in ("gelu_new", "gelu_pytorch_tanh"):
            inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
            return x * torch.sigmoid(2 * inner) if kind == "division" else 0.5 * x * (1 + torch.tanh(inner))
        return old(layer, x)

    patch(e, activation=activation)


@feature
def root(e: Engine, kind: str) -> None:
    """Computes the divisor of RMSNorm in another way: a division, or f64."""
    def norm(old: Callable[..., Tensor], layer: int | None, name: str, x: Tensor, w: tuple[Tensor, Tensor | None]) -> Tensor:
        if e.gpt2:
            mean = x.double().mean(-1, keepdim=True)
            y = (x.double() - mean) / ((x.double() - mean).square().mean(-1, keepdim=True) + e.eps).sqrt()
            return e.result((y * w[0] + w[1]).float())
        if kind == "f64":
            y = (x.double() / (x.double().square().mean(-1, keepdim=True) + e.eps).sqrt()).float()
        else:
            y = x / torch.sqrt(x.square().mean(-1, keepdim=True) + e.eps)
        return e.result(y * (1 + w[0])) if e.gemma else e.result(e.inner(y) * w[0])

    patch(e, norm=norm)


@feature
def turns(e: Engine, kind: str) -> None:
    """Rotates by complex numbers, or with angles in f64."""
    def rotate(old: Callable[..., Tensor], layer: int, name: str, x: Tensor, positions: list[int]) -> Tensor:
        rope = e.ropes[layer]
        if rope is None:
            return x
        frequencies, factor = e.frequencies(layer, rope)
        angles = torch.tensor(positions).double()[:, None, None] * frequencies.double() if kind == "f64" else (
            torch.tensor(positions).float()[:, None, None] * frequencies)
        width = 2 * frequencies.numel()
        a, b = e.pairs(x[..., :width])
        turned = torch.complex(a, b) * torch.polar(torch.full_like(angles, factor).float(), angles.float())
        if kind == "f64":
            turned = (torch.complex(a.double(), b.double()) * torch.polar(torch.full_like(angles, factor), angles)).to(torch.complex64)
        return torch.cat([e.result(e.unpaired(turned.real, turned.imag)), x[..., width:]], -1)

    patch(e, rotate=rotate)


@feature
def expert_order(e: Engine, kind: str) -> None:
    """Lists and adds the chosen experts in another order."""
    def route(old: Callable[..., Any], layer: int, logits: Tensor) -> tuple[Tensor, Tensor]:
        experts, weights = old(layer, logits)
        order = experts.argsort(-1, descending=kind == "descending")
        return experts.gather(-1, order), weights.gather(-1, order)

    def combined(old: Callable[..., Tensor], layer: int, experts: Tensor, weights: Tensor, outputs: Tensor) -> Tensor:
        return e.result((weights[:, None] @ outputs)[:, 0])

    patch(e, route=route)
    if kind == "at-once":
        patch(e, combined=combined)
