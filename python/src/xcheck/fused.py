"""Fused projections: where in one array the parts of several taps lie.

T = tokens, H and G·Hkv = query heads, Hkv = key-value heads, D = head size, F = feed-forward size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .arrays import Array
from .errors import DumpError
from .heads import Heads
from .taps import FUSED

LAYOUTS = {"qkv": ("beside", "by_head"), "gate_up": ("beside", "interleaved")}


@dataclass(frozen=True)
class Part:
    """One tap's values inside an array: seen as `whole`, cut from `start` to before `end`, read as `shape`."""

    tap: str
    whole: tuple[int, ...]
    start: tuple[int, ...]
    end: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def of(self) -> dict[str, Any]:
        """What the manifest says of it."""
        return {"shape": list(self.whole), "start": list(self.start), "end": list(self.end)}

    def cut(self, array: Array) -> Array:
        """Its values."""
        window = tuple(slice(start, end) for start, end in zip(self.start, self.end))
        return array.reshape(self.whole)[window].reshape(self.shape)


def parts(name: str, layout: str, shape: tuple[int, ...], heads: Heads) -> list[Part]:
    """The parts of a fused array of `shape`, whose last axis is what was fused."""
    if layout not in LAYOUTS[name]:
        raise DumpError(f"{name}: there is no layout {layout!r}: the layouts are {', '.join(LAYOUTS[name])}")
    lead, width = shape[:-1], shape[-1]
    if name == "gate_up":
        if width % 2:
            raise DumpError(f"gate_up of shape {list(shape)}: the last axis has no two halves")
        return list(halves(layout, lead, width // 2))
    if not heads.known:
        raise DumpError(
            "qkv: give Dump n_heads, n_kv_heads and head_dim (or config=), so that it can be cut into heads"
        )
    n_heads, n_kv_heads, head_dim = heads.n_heads or 0, heads.n_kv_heads or 0, heads.head_dim or 0
    expected = (n_heads + 2 * n_kv_heads) * head_dim
    if width != expected:
        raise DumpError(
            f"qkv of shape {list(shape)}: the last axis has to be {expected} long, "
            f"({n_heads} + 2 · {n_kv_heads}) heads of {head_dim}"
        )
    cut = beside if layout == "beside" else by_head
    return list(cut(lead, n_heads, n_kv_heads, head_dim))


def halves(layout: str, lead: tuple[int, ...], ffn: int) -> Iterator[Part]:
    """Gate and up: all of one behind all of the other, or in turns."""
    origin = tuple(0 for _ in lead)
    for index, tap in enumerate(FUSED["gate_up"]):
        if layout == "beside":
            yield Part(tap, (*lead, 2 * ffn), (*origin, index * ffn), (*lead, (index + 1) * ffn), (*lead, ffn))
        else:
            yield Part(tap, (*lead, ffn, 2), (*origin, 0, index), (*lead, ffn, index + 1), (*lead, ffn))


def beside(lead: tuple[int, ...], n_heads: int, n_kv_heads: int, head_dim: int) -> Iterator[Part]:
    """All heads of q, then all of k, then all of v: `[T, H + 2 Hkv, D]`."""
    origin, first = tuple(0 for _ in lead), 0
    for tap, count in zip(FUSED["qkv"], (n_heads, n_kv_heads, n_kv_heads)):
        whole, last = (*lead, n_heads + 2 * n_kv_heads, head_dim), first + count
        yield Part(tap, whole, (*origin, first, 0), (*lead, last, head_dim), (*lead, count, head_dim))
        first = last


def by_head(lead: tuple[int, ...], n_heads: int, n_kv_heads: int, head_dim: int) -> Iterator[Part]:
    """Of each key-value head its G queries, its key and its value: `[T, Hkv, G + 2, D]`."""
    origin, group, first = tuple(0 for _ in lead), n_heads // n_kv_heads, 0
    for tap, count in zip(FUSED["qkv"], (group, 1, 1)):
        whole, last = (*lead, n_kv_heads, group + 2, head_dim), first + count
        shape = (*lead, n_kv_heads * count, head_dim)
        yield Part(tap, whole, (*origin, 0, first, 0), (*lead, n_kv_heads, last, head_dim), shape)
        first = last
