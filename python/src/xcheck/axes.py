"""Brings an array, as an engine has it, into the axes of its tap.

B = entries of a batch, T = tokens, H = heads, D = head size. A batch of one has no axis in a dump.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .arrays import Array
from .errors import DumpError
from .heads import Heads
from .taps import AXES, SEQUENCE, Tap


@dataclass(frozen=True)
class Extent:
    """How long the axes are in the pass at hand; `batch` is (B, T) where B is more than one."""

    rows: int
    batch: tuple[int, int] | None
    sequences: int
    heads: Heads
    keys: int | None = None  # at most, where the pass says what attention looks at

    def misfit(self, tap: Tap, axes: Sequence[str], shape: Sequence[int]) -> str | None:
        """The first axis whose length is not what the pass or the heads say."""
        batched = self.batch is not None and "batch" in axes and tap.scope != SEQUENCE
        for axis, length in zip(axes, shape):
            if axis == "key" and self.keys is not None and length > self.keys:
                return f"axis 'key' is {length} long, but keys= of this pass names {self.keys}"
            wanted = self._length(tap, axis, batched)
            if wanted is not None and length != wanted:
                return f"axis {axis!r} is {length} long, expected {wanted}{self._reason(tap, axis)}"
        return None

    def _length(self, tap: Tap, axis: str, batched: bool) -> int | None:
        if axis == "batch":
            if tap.scope == SEQUENCE:
                return self.sequences
            return self.batch[0] if self.batch else 1
        if axis == "token":
            return self.batch[1] if batched and self.batch else self.rows
        if axis == "hidden" and tap.has_heads:
            count, width = self.heads.size(tap.axes[1]), self.heads.head_dim
            return count * width if count and width else None
        return self.heads.size(axis)

    def _reason(self, tap: Tap, axis: str) -> str:
        if axis == "token":
            return ": the tokens of this pass"
        if axis == "batch":
            return ": the sequences of this pass" if tap.scope == SEQUENCE else ": the batch of this pass"
        return ""


@dataclass(frozen=True)
class Arrangement:
    """How an array becomes its tap's: split axes, order them, merge neighbours."""

    split: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]
    axes: list[str] | None  # what the manifest has to say: None where it is the tap's own

    def apply(self, array: Array) -> Array:
        split: Array = array.reshape(self.split)
        arranged: Array = split.transpose(self.order).reshape(self.shape)
        return arranged

    def apply_scale(self, scale: Array, shape: tuple[int, ...]) -> Array:
        """The same for what is multiplied with the array by NumPy's rules."""
        if scale.ndim == 0 or (self.order == tuple(range(len(self.order))) and self.shape == shape):
            return scale
        return self.apply(np.broadcast_to(scale, shape))


def arrange(tap: Tap, shape: tuple[int, ...], axes: Sequence[str] | None, extent: Extent) -> Arrangement:
    """How an array of `shape` becomes the tap's own, from axes that are named or that fit."""
    named = list(axes) if axes is not None else guess(tap, shape, extent)
    check_names(tap, shape, named)
    problem = extent.misfit(tap, named, shape)
    if problem:
        raise DumpError(f"{tap.name} of shape {list(shape)} with axes {', '.join(named)}: {problem}")
    return plan(tap, shape, named, extent)


def own_axes(tap: Tap) -> list[str]:
    """The tap's axes; of what there is once a sequence, with one for the sequences of the pass."""
    return ["batch", *tap.axes] if tap.scope == SEQUENCE else list(tap.axes)


def guess(tap: Tap, shape: tuple[int, ...], extent: Extent) -> list[str]:
    """The axes of an array of which nobody said: the first of the usual ones that fit."""
    usual = [own_axes(tap)]
    if tap.scope == SEQUENCE:
        if extent.sequences == 1:
            usual.append(list(tap.axes))
    else:
        usual.append(["batch", *tap.axes])
    if tap.has_heads and extent.heads.known:
        flat = [tap.axes[0], "hidden"]
        usual += [flat, ["batch", *flat]]
    fits = [axes for axes in usual if len(axes) == len(shape) and not extent.misfit(tap, axes, shape)]
    if fits:
        return fits[0]
    of_length = [axes for axes in usual if len(axes) == len(shape)]
    why = extent.misfit(tap, of_length[0], shape) if of_length else None
    ways = " or ".join(f"[{', '.join(axes)}]" for axes in usual)
    hint = "" if not tap.has_heads or extent.heads.known else ", or give Dump n_heads, n_kv_heads and head_dim"
    raise DumpError(
        f"{tap.name} of shape {list(shape)}{f': {why}' if why else ''}; expected {ways} with {describe(extent)}; "
        f"name other axes with axes=(...){hint}"
    )


def describe(extent: Extent) -> str:
    """The lengths that are known, for a message."""
    known = {"token": extent.rows, **{axis: extent.heads.size(axis) for axis in ("head", "kv_head", "head_dim")}}
    if extent.batch:
        known = {"batch": extent.batch[0], **known, "token": extent.batch[1]}
    return ", ".join(f"{axis} = {length}" for axis, length in known.items() if length is not None)


def check_names(tap: Tap, shape: tuple[int, ...], axes: Sequence[str]) -> None:
    """Axes must be names that there are, once each, one for each axis of the array."""
    for axis in axes:
        if axis not in AXES:
            raise DumpError(f"{tap.name}: there is no axis {axis!r}: the axes are {', '.join(AXES)}")
    if len(set(axes)) != len(axes):
        raise DumpError(f"{tap.name}: axes {', '.join(axes)} name one twice")
    if len(axes) != len(shape):
        raise DumpError(f"{tap.name}: axes {', '.join(axes)} are {len(axes)}, but the array's shape is {list(shape)}")


def plan(tap: Tap, shape: tuple[int, ...], axes: list[str], extent: Extent) -> Arrangement:
    """The arrangement of an array whose axes are known and fit."""
    lengths = dict(zip(axes, shape))
    if tap.has_heads and "hidden" in axes and "head_dim" not in axes:
        count, width = extent.heads.size(tap.axes[1]), extent.heads.head_dim
        if not count or not width:
            raise DumpError(f"{tap.name} with an axis 'hidden': give Dump n_heads, n_kv_heads and head_dim")
        place = axes.index("hidden")
        axes = [*axes[:place], tap.axes[1], "head_dim", *axes[place + 1 :]]
        lengths = {**lengths, tap.axes[1]: count, "head_dim": width}
    wanted = [(axis, parts(tap, axis, axes)) for axis in tap.axes]
    if "batch" in axes and (lengths["batch"] > 1 or tap.scope == SEQUENCE):
        wanted.insert(0, ("batch", ["batch"]))
    order = [part for _, group in wanted for part in group]
    superfluous = [axis for axis in axes if axis not in order and axis != "batch"]
    if superfluous:
        raise DumpError(f"{tap.name} has no axis {superfluous[0]!r}: its axes are {', '.join(own_axes(tap))}")
    first = [axis for axis in axes if axis not in order]  # a batch of one, which vanishes in the shape
    target = [math.prod(lengths[part] for part in group) for _, group in wanted]
    if tap.scope == SEQUENCE and "batch" not in axes:
        target.insert(0, 1)
    own = [axis for axis, _ in wanted]
    plain = tap.scope == SEQUENCE or own[0] != "batch" or own[1] == "token"
    return Arrangement(
        split=tuple(lengths[axis] for axis in axes),
        order=tuple(axes.index(axis) for axis in [*first, *order]),
        shape=tuple(target),
        axes=None if plain else own,
    )


def parts(tap: Tap, axis: str, axes: Sequence[str]) -> list[str]:
    """The array's axes that make one of the tap's: mostly itself."""
    if axis in axes:
        return [axis]
    for whole, neighbours in (("head", ["kv_head", "group"]), ("hidden", ["head", "head_dim"])):
        if axis == whole and all(part in axes for part in neighbours):
            return list(neighbours)
    if axis == "hidden" and all(part in axes for part in ("kv_head", "group", "head_dim")):
        return ["kv_head", "group", "head_dim"]
    raise DumpError(f"{tap.name} lacks an axis {axis!r}: its axes are {', '.join(own_axes(tap))}")
