"""The faults: what each public bug does to the engine. `faults.json` names the sources and the right answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from engine import Engine, Rows, decoded, patch
from torch import Tensor

FAULTS: dict[str, Callable[[Engine], None]] = {}


def fault(name: str) -> Callable[[Callable[[Engine], None]], Callable[[Engine], None]]:
    def add(function: Callable[[Engine], None]) -> Callable[[Engine], None]:
        if name in FAULTS:
            raise ValueError(f"two faults are called '{name}'")
        FAULTS[name] = function
        return function

    return add


def ropes(e: Engine, **changes: Any) -> None:
    """Changes RoPE parameters of every layer that has them."""
    for rope in e.ropes:
        if rope is not None:
            rope.update(changes)


# --- configuration words ---


@fault("rope-theta-unread")
def _(e: Engine) -> None:
    ropes(e, rope_theta=10000.0)


@fault("llama3-scaling-unread")
def _(e: Engine) -> None:
    ropes(e, rope_type="default")


@fault("norm-eps-constant")
def _(e: Engine) -> None:
    e.eps = 1e-6


@fault("score-cap-missing")
def _(e: Engine) -> None:
    e.score_cap = None


@fault("logit-cap-missing")
def _(e: Engine) -> None:
    e.logit_cap = None


@fault("logit-scale-missing")
def _(e: Engine) -> None:
    e.logit_scale = 1.0


@fault("logit-scale-inverted")
def _(e: Engine) -> None:
    e.logit_scale = 1 / e.logit_scale


@fault("gelu-erf-for-tanh")
def _(e: Engine) -> None:
    e.act = "gelu"


@fault("head-tied-by-default")
def _(e: Engine) -> None:
    e.head = (e.embedding, None)


@fault("one-rope-base-for-all-layers")
def _(e: Engine) -> None:
    ropes(e, rope_theta=10000.0)


@fault("qkv-bias-unloaded")
def _(e: Engine) -> None:
    for w in e.layers:
        w.update({name: (w[name][0], None) for name in "qkv"})


@fault("rope-in-nope-layers")
def _(e: Engine) -> None:
    e.ropes = [rope or e.ropes[0] for rope in e.ropes]


@fault("partial-rotation-unread")
def _(e: Engine) -> None:
    # the whole head rotates, with plain frequencies of the whole head
    ropes(e, partial_rotary_factor=1.0, rope_type="default")


@fault("yarn-factor-missing")
def _(e: Engine) -> None:
    patch(e, frequencies=lambda old, layer, rope: (old(layer, rope)[0], 1.0))


@fault("yarn-mscale-unread")
def _(e: Engine) -> None:
    for rope in e.ropes:
        rope.pop("mscale")


@fault("yarn-truncate-unread")
def _(e: Engine) -> None:
    ropes(e, truncate=True)


# --- RoPE ---


@fault("rope-interleaved")
def _(e: Engine) -> None:
    # the dump states the layout of the weights; the kernel pairs neighbours
    def rotate(old: Callable[..., Tensor], *given: Any) -> Tensor:
        e.pairing = "interleaved"
        out = old(*given)
        e.pairing = "half"
        return out

    patch(e, rotate=rotate)


@fault("frequencies-in-bf16")
def _(e: Engine) -> None:
    patch(e, frequencies=lambda old, layer, rope: (lambda f, s: (f.bfloat16().float(), s))(*old(layer, rope)))


@fault("positions-restart-in-chunks")
def _(e: Engine) -> None:
    patch(e, rotate=lambda old, layer, name, x, positions: old(
        layer, name, x, [p - positions[0] for p in positions] if len(positions) > 1 else positions))


@fault("left-padding-shifts-learned-positions")
def _(e: Engine) -> None:
    def learned(old: Callable[..., list[int]], rows: Rows) -> list[int]:
        pads = {s: rows.of(s)[0] - sum(len(rows.of(o)) for o in rows.sequences() if o is not None and o < s) for s in rows.sequences()}
        if e.index == 0:
            width = len(rows.tokens) // len(rows.sequences())
            e.pads = {s: width - len(rows.of(s)) for s in pads}
        return [p + (0 if s is None else e.pads[s]) for s, p in zip(rows.sequence, rows.position)]

    patch(e, learned_positions=learned)


@fault("rotated-k-in-cache-only")
def _(e: Engine) -> None:
    # attention of a prompt reads the keys of this pass before RoPE
    def qkv(old: Callable[..., Any], layer: int, h: Tensor, rows: Rows) -> Any:
        out = old(layer, h, rows)
        e.unrotated = e.taps["k_norm" if ("k_norm", layer) in e.taps else "k", layer]
        return out

    def scores(old: Callable[..., Tensor], layer: int, q: Tensor, keys: Tensor) -> Tensor:
        return old(layer, q, e.unrotated if len(q) > 1 else keys)

    patch(e, qkv=qkv, scores=scores)


@fault("qk-permuted-with-query-heads")
def _(e: Engine) -> None:
    # the converter permutes k for as many heads as q has, the kernel pairs neighbours
    order = torch.arange(e.n_kv * e.head_dim)
    width = e.n_kv * e.head_dim // e.n_heads
    mixed = order.view(e.n_heads, 2, width // 2).transpose(1, 2).flatten()
    right = order.view(e.n_kv, 2, e.head_dim // 2).transpose(1, 2).flatten()
    for w in e.layers:
        weight = w["k"][0][mixed]
        w["k"] = (torch.empty_like(weight).index_copy_(0, right, weight), None)


# --- norms ---


@fault("gemma-norm-without-one")
def _(e: Engine) -> None:
    def norm(old: Callable[..., Tensor], layer: int, name: str, x: Tensor, w: tuple[Tensor, None]) -> Tensor:
        return e.result(x * torch.rsqrt(e.mean_square(layer, name, x) + e.eps) * w[0])

    patch(e, norm=norm)


@fault("gemma-norm-one-twice")
def _(e: Engine) -> None:
    patch(e, norm=lambda old, layer, name, x, w: old(layer, name, x, (w[0] + 1, None)))


@fault("q-norm-over-all-heads")
def _(e: Engine) -> None:
    def head_norm(old: Callable[..., Tensor], layer: int, name: str, x: Tensor, w: tuple[Tensor, None]) -> Tensor:
        return e.norm(layer, name, x.flatten(1), (w[0].repeat(x.shape[1]), None)).view_as(x)

    patch(e, head_norm=head_norm)


@fault("q-norm-each-head-alone")
def _(e: Engine) -> None:
    def head_norm(old: Callable[..., Tensor], layer: int, name: str, x: Tensor, w: tuple[Tensor, None]) -> Tensor:
        return e.norm(layer, name, x, (w[0].view(x.shape[1], -1), None))

    patch(e, head_norm=head_norm)


@fault("layernorm-for-rmsnorm")
def _(e: Engine) -> None:
    patch(e, norm=lambda old, layer, name, x, w: old(layer, name, x - x.mean(-1, keepdim=True), w))


@fault("norm-reduces-squares-twice")
def _(e: Engine) -> None:
    # partial means of 32 values are squared again before the second reduction
    patch(e, mean_square=lambda old, layer, name, x: torch.stack(
        [part.square().mean(-1, keepdim=True) for part in x.split(32, -1)]).square().mean(0))


# --- masks and windows ---


def masks(e: Engine, change: Callable[[int, Tensor, Tensor], Tensor]) -> None:
    """Replaces the mask by a function of the layer and the positions of queries and keys."""
    patch(e, visible=lambda old, layer, queries, keys: change(layer, torch.tensor(queries)[:, None], torch.tensor(keys)[None, :]))


@fault("window-one-too-wide")
def _(e: Engine) -> None:
    e.windows = [w and w + 1 for w in e.windows]


@fault("window-one-too-narrow")
def _(e: Engine) -> None:
    e.windows = [w and w - 1 for w in e.windows]


@fault("window-unread")
def _(e: Engine) -> None:
    e.windows = [None] * e.n_layers


@fault("window-from-padded-width")
def _(e: Engine) -> None:
    def change(layer: int, q: Tensor, k: Tensor) -> Tensor:
        width = -(-(int(k.max()) + 1) // 8) * 8
        window = e.windows[layer]
        return (q >= k) & ((q - k) < (window - (width - 1 - int(q.max())) if len(q) == 1 else window))

    masks(e, change)


@fault("mask-from-top-left")
def _(e: Engine) -> None:
    # the square mask of a whole prompt, used for a chunk behind a cached prefix
    masks(e, lambda layer, q, k: torch.ones(q.shape[0], k.shape[1]).tril().bool() if len(q) > 1 else q >= k)


@fault("mask-added-as-number")
def _(e: Engine) -> None:
    def softmax(old: Callable[..., Tensor], layer: int, scores: Tensor, mask: Tensor) -> Tensor:
        return e.inner(torch.softmax(scores + mask.float(), -1))

    patch(e, softmax=softmax)


@fault("no-mask-in-chunks")
def _(e: Engine) -> None:
    masks(e, lambda layer, q, k: q >= k if e.index == 0 or len(q) == 1 else torch.ones(len(q), k.shape[1]).bool())


@fault("last-block-unread")
def _(e: Engine) -> None:
    masks(e, lambda layer, q, k: (q >= k) & ((k < k.shape[1] // 16 * 16) if len(q) == 1 else (q >= k)))


@fault("packed-sequences-leak")
def _(e: Engine) -> None:
    def read(old: Callable[..., Any], layer: int, sequence: int) -> Any:
        cache = e.caches[layer]
        rows = [i for i, s in enumerate(cache.sequence) if s is not None and s <= sequence]
        return e.rows_of(layer, rows, [cache.position[i] if cache.sequence[i] == sequence else 0 for i in rows])

    patch(e, read=read)


@fault("left-padding-visible")
def _(e: Engine) -> None:
    def read(old: Callable[..., Any], layer: int, sequence: int) -> Any:
        cache = e.caches[layer]
        first = cache.rows(sequence)[0]
        pads = []
        while first - len(pads) > 0 and cache.sequence[first - len(pads) - 1] is None:
            pads.append(first - len(pads) - 1)
        rows = pads[::-1] + cache.rows(sequence)
        return e.rows_of(layer, rows, [0] * len(pads) + [cache.position[i] for i in rows[len(pads) :]])

    patch(e, read=read)


# --- caches ---


@fault("padding-overwrites-slot")
def _(e: Engine) -> None:
    def append(old: Callable[..., None], layer: int, k: Tensor, v: Tensor, rows: Rows) -> None:
        old(layer, k, v, rows)
        cache = e.caches[layer]
        if e.index == 2:
            noise = torch.Generator().manual_seed(layer)
            cache.keys[-2], cache.values[-2] = (torch.randn(k.shape[1:], generator=noise) for _ in "kv")

    patch(e, append=append)


@fault("block-of-other-request")
def _(e: Engine) -> None:
    def append(old: Callable[..., None], layer: int, k: Tensor, v: Tensor, rows: Rows) -> None:
        old(layer, k, v, rows)
        cache = e.caches[layer]
        if e.index == 1:
            one, two = cache.rows(1)[:4], cache.rows(0)[:4]
            cache.keys[one], cache.values[one] = cache.keys[two], cache.values[two]

    patch(e, append=append)


@fault("cache-not-cleared")
def _(e: Engine) -> None:
    # keys and values of an earlier prompt stay in front
    def read(old: Callable[..., Any], layer: int, sequence: int) -> Any:
        keys, values, positions = old(layer, sequence)
        noise = torch.Generator().manual_seed(layer)
        stale = [torch.randn(3, *keys.shape[1:], generator=noise) for _ in "kv"]
        return torch.cat([stale[0], keys]), torch.cat([stale[1], values]), [0, 0, 0, *positions]

    patch(e, read=read)
    e.record_scores = False


@fault("kv-descale-missing")
def _(e: Engine) -> None:
    e.kv_type = lambda x, name: x / (0.05 if name == "k" else 0.08)


@fault("kv-scale-of-first-head")
def _(e: Engine) -> None:
    # stored with a scale for each head, read with the first head's
    scales = torch.tensor([0.05 * (1 + head) for head in range(e.n_kv)])[:, None]
    patch(e, kv_type=lambda old, x, name: old(x, name) / scales * scales[0])


@fault("kv-clamped-without-scale")
def _(e: Engine) -> None:
    patch(e, kv_type=lambda old, x, name: old(x, name).clamp(-1.0, 1.0))


@fault("blocks-moved-without-their-values")
def _(e: Engine) -> None:
    # defragmentation moves keys of two rows, values stay
    def append(old: Callable[..., None], layer: int, k: Tensor, v: Tensor, rows: Rows) -> None:
        old(layer, k, v, rows)
        if e.index == 1:
            cache = e.caches[layer]
            cache.values[[4, 5]] = cache.values[[5, 4]]

    patch(e, append=append)


@fault("ring-wraps-early")
def _(e: Engine) -> None:
    # the window's ring has one slot too few while decoding: the oldest visible key is lost
    def visible(old: Callable[..., Tensor], layer: int, queries: list[int], keys: list[int]) -> Tensor:
        mask = old(layer, queries, keys)
        if len(queries) == 1 and e.windows[layer] is not None:
            mask = mask & (torch.tensor(keys) > queries[0] - e.windows[layer] + 1)[None]
        return mask

    patch(e, visible=visible)


@fault("rejected-draft-stays")
def _(e: Engine) -> None:
    # keys of a rejected draft token are not removed: later queries read them at its position
    def read(old: Callable[..., Any], layer: int, sequence: int) -> Any:
        cache = e.caches[layer]
        stale = [i for i, s in enumerate(cache.sequence) if s is None and i < len(cache.sequence) - len(e.rows.tokens)]
        return e.rows_of(layer, sorted([*cache.rows(sequence), *stale]))

    patch(e, read=read)


@fault("rewind-one-too-many")
def _(e: Engine) -> None:
    # after a rejected draft, the accepted token's row is removed too
    def read(old: Callable[..., Any], layer: int, sequence: int) -> Any:
        cache = e.caches[layer]
        return e.rows_of(layer, [i for i in cache.rows(sequence) if e.index < 2 or cache.position[i] != e.rows.position[0] - 1])

    patch(e, read=read)


@fault("verify-rows-one-position-late")
def _(e: Engine) -> None:
    patch(e, rotate=lambda old, layer, name, x, positions: old(
        layer, name, x, [p + (i > 0) for i, p in enumerate(positions)] if e.index > 0 else positions))


@fault("cached-keys-rotated-twice")
def _(e: Engine) -> None:
    def append(old: Callable[..., None], layer: int, k: Tensor, v: Tensor, rows: Rows) -> None:
        cache = e.caches[layer]
        if e.index == 1 and cache.keys is not None:
            cache.keys = e.rotate(layer, "k", cache.keys, cache.position)
        old(layer, k, v, rows)

    patch(e, append=append)


@fault("merge-base-2")
def _(e: Engine) -> None:
    e.shares = lambda sums: torch.softmax(sums * 1.4426950408889634, 0)


# --- tensor parallelism ---


@fault("bias-on-every-rank")
def _(e: Engine) -> None:
    patch(e, all_reduce=lambda old, name, parts, bias: old(name, parts, bias * len(parts)))


@fault("all-reduce-missing")
def _(e: Engine) -> None:
    patch(e, all_reduce=lambda old, name, parts, bias: parts[0] if name == "down" else old(name, parts, bias))


@fault("all-reduce-averages")
def _(e: Engine) -> None:
    patch(e, all_reduce=lambda old, name, parts, bias: old(name, [part / len(parts) for part in parts], bias))


@fault("first-shard-on-every-rank")
def _(e: Engine) -> None:
    # of the fused gate and up matrix, the second rank computes with the first one's outputs
    for w in e.layers:
        for name in ("gate", "up"):
            first = w[name][0].chunk(2)[0]
            w[name] = (torch.cat([first, first]), w[name][1])


@fault("kv-heads-of-wrong-rank")
def _(e: Engine) -> None:
    e.grouped = lambda x: x.repeat(1, e.n_heads // e.n_kv, 1).transpose(0, 1)


@fault("gate-up-shards-interleaved")
def _(e: Engine) -> None:
    # a fused gate_up matrix is cut for two ranks without regard to its halves
    for w in e.layers:
        fused = torch.cat([w["gate"][0], w["up"][0]])
        first, second = fused.chunk(2)
        halves = [part.chunk(2) for part in (first, second)]
        w["gate"] = (torch.cat([halves[0][0], halves[1][0]]), None)
        w["up"] = (torch.cat([halves[0][1], halves[1][1]]), None)


@fault("fused-qkv-cut-by-groups")
def _(e: Engine) -> None:
    group = e.n_heads // e.n_kv
    for w in e.layers:
        fused = torch.cat([w[name][0] for name in "qkv"])
        parts = fused.view(e.n_kv, group + 2, e.head_dim, -1)
        for name, part in zip("qkv", parts.split([group, 1, 1], 1)):
            w[name] = (part.reshape(-1, fused.shape[1]).contiguous(), w[name][1])


# --- mixtures of experts ---


@fault("experts-unweighted")
def _(e: Engine) -> None:
    patch(e, combined=lambda old, layer, experts, weights, outputs: old(layer, experts, torch.ones_like(weights), outputs))


@fault("softmax-over-chosen-experts")
def _(e: Engine) -> None:
    e.norm_topk = True


@fault("expert-weights-not-normalised")
def _(e: Engine) -> None:
    e.norm_topk = False


@fault("raw-logits-as-expert-weights")
def _(e: Engine) -> None:
    def route(old: Callable[..., Any], layer: int, logits: Tensor) -> tuple[Tensor, Tensor]:
        weights, experts = logits.topk(e.chosen, -1)
        return experts, e.result(weights)

    patch(e, route=route)


@fault("shared-expert-without-gate")
def _(e: Engine) -> None:
    def shared(old: Callable[..., Tensor], layer: int, x: Tensor) -> Tensor:
        old(layer, x)
        return e.taps["shared_out", layer]

    patch(e, shared=shared)


@fault("shared-expert-missing")
def _(e: Engine) -> None:
    patch(e, shared=lambda old, layer, x: old(layer, x) * 0)


@fault("routed-experts-missing")
def _(e: Engine) -> None:
    patch(e, combined=lambda old, layer, experts, weights, outputs: old(layer, experts, weights, outputs) * 0)


@fault("experts-of-wrong-shard")
def _(e: Engine) -> None:
    # expert parallelism: the numbers of the second rank are local, and not offset
    patch(e, expert=lambda old, layer, number, x: old(layer, number % (len(e.layers[layer]["experts"]) // 2), x))


@fault("expert-gate-up-exchanged")
def _(e: Engine) -> None:
    for w in e.layers:
        w["experts"] = [{**x, "gate": x["up"], "up": x["gate"]} for x in w["experts"]]


# --- quantised weights and activations ---


def repacked(e: Engine, change: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]) -> None:
    """Decodes the quantised matrices again from changed parts."""
    names = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
    for name, parts in e.packed.items():
        _, layer, _, module = name.split(".")
        e.layers[int(layer)][names[module]] = (e.store(decoded(*change(*parts))), None)


@fault("gptq-zero-point-off-by-one")
def _(e: Engine) -> None:
    repacked(e, lambda codes, zeros, scales, groups: (codes, zeros - 1, scales, groups))


@fault("gptq-codes-in-other-order")
def _(e: Engine) -> None:
    # codes of a word are read from the highest bits down
    repacked(e, lambda codes, zeros, scales, groups: (codes.unflatten(1, (-1, 8)).flip(2).flatten(1), zeros, scales, groups))


@fault("gptq-scales-of-next-group")
def _(e: Engine) -> None:
    repacked(e, lambda codes, zeros, scales, groups: (codes, zeros, scales.roll(-1, 1), groups))


@fault("fp8-scales-transposed")
def _(e: Engine) -> None:
    # the scales of square matrices are kept transposed for one kernel and read by another
    def change(codes: Tensor, zeros: Tensor, scales: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        blocks = scales[::32]
        if blocks.shape[0] != blocks.shape[1]:
            return codes, zeros, scales, groups
        return codes, zeros, blocks.T.repeat_interleave(32, 0), groups

    repacked(e, change)


# --- types and fusion ---


@fault("split-k-in-bf16")
def _(e: Engine) -> None:
    patch(e, matmul=lambda old, a, b: e.rounded_parts(a, b))

    def rounded_parts(a: Tensor, b: Tensor) -> Tensor:
        total = None
        for x, y in zip(a.chunk(8, -1), b.chunk(8, -2)):
            part = (x @ y).bfloat16().float()
            total = part if total is None else (total + part).bfloat16().float()
        return total

    e.rounded_parts = rounded_parts


# --- memory of kernels ---


@fault("last-tile-unwritten")
def _(e: Engine) -> None:
    # rows of an incomplete tile of 4 keep the buffer's zeros
    def linear(old: Callable[..., Tensor], layer: int | None, name: str, x: Tensor, w: tuple[Tensor, Tensor | None]) -> Tensor:
        y = old(layer, name, x, w)
        if name == "up" and len(y) > 4 and len(y) % 4:
            y[len(y) // 4 * 4 :] = 0
        return y

    patch(e, linear=linear)


# --- samplers ---


@fault("repetition-penalty-by-default")
def _(e: Engine) -> None:
    def last(old: Callable[..., Tensor], logits: Tensor, row: int) -> Tensor:
        e.read_tokens = getattr(e, "read_tokens", []) + e.rows.tokens
        y = logits[row].clone()
        seen = sorted(set(e.read_tokens))
        y[seen] = torch.where(y[seen] > 0, y[seen] / 1.1, y[seen] * 1.1)
        return y

    patch(e, last=last)


@fault("temperature-in-probabilities")
def _(e: Engine) -> None:
    patch(e, probabilities=lambda old, logits: old(logits / 0.7))
    patch(e, logprobs=lambda old, logits: old(logits / 0.7))


@fault("logprobs-base-10")
def _(e: Engine) -> None:
    patch(e, logprobs=lambda old, logits: old(logits) / math.log(10))


@fault("logprobs-of-next-row")
def _(e: Engine) -> None:
    patch(e, followed=lambda old, logprobs: torch.cat([logprobs[1:], logprobs[-1:]]))
