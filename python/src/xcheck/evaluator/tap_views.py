"""Views of a module's tensor as recorded taps: axes, fused projections and pairs of RoPE."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable

import torch

from xcheck.errors import DumpError
from xcheck.fused import LAYOUTS, Part, parts
from xcheck.heads import Heads
from xcheck.taps import find

from .tap_places import Place
from .tap_rows import TapRow

View = Callable[[torch.Tensor], torch.Tensor]
ROTATED = ("q", "k", "q_norm", "k_norm", "q_rope", "k_rope", "q_scaled", "q_rope_norm", "k_rope_norm", "k_cache")


def views(row: TapRow, place: Place, shape: tuple[int, ...], heads: Heads, is_interleaved: bool) -> Iterator[View]:
    """Yields the views of a contiguous tensor that have the recorded values in order, the usual ones first.

    A view shares the tensor's memory, so that values can be written through it. It may have more axes than the recorded
    array, but the order of the values is the same.
    """
    with_axes = recorded_axes(row)
    if with_axes is None:
        return
    for own in own_views(row, place, shape, heads):
        is_paired = is_interleaved and row.tap in ROTATED
        yield chained(own, with_axes, paired) if is_paired else chained(own, with_axes)


def chained(*steps: View) -> View:
    """Returns the view that takes one step after the other."""

    def view(tensor: torch.Tensor) -> torch.Tensor:
        for step in steps:
            tensor = step(tensor)
        return tensor

    return view


def recorded_axes(row: TapRow) -> View | None:
    """Returns the step from a tap's own axes to the recorded ones; None if there is none."""
    own = find(row.tap).axes
    names = [axis for axis in row.axes or own if axis != "batch"]
    if set(names) != set(own):
        return None
    order = [own.index(axis) for axis in names]
    if order == sorted(order):
        return lambda tensor: tensor
    return lambda tensor: tensor.permute(order)


def own_views(row: TapRow, place: Place, shape: tuple[int, ...], heads: Heads) -> Iterator[View]:
    """Yields the views of a module's tensor with the tap's own axes, without the batch."""
    tap = find(row.tap)
    count, has_batch = len(tap.axes), len(shape) > 1 and shape[0] == 1
    if place.fused is not None:
        yield from fused_views(row, place, shape, heads)
    elif place.axes is not None:
        if len(place.axes) == len(shape):
            order = [place.axes.index(axis) for axis in tap.axes]
            yield lambda tensor: tensor.permute([*(at for at in range(len(shape)) if at not in order), *order])
    elif len(shape) - has_batch == count:
        yield lambda tensor: tensor[0] if has_batch else tensor
        if tap.has_heads:  # heads before tokens
            yield lambda tensor: (tensor[0] if has_batch else tensor).transpose(0, 1)
    elif len(shape) == 4 and shape[1] == 1 and not tap.has_heads:  # AltUp's streams, batch, tokens
        yield lambda tensor: tensor[:, 0].transpose(0, 1)
    elif tap.has_heads and row.shape:
        width = row.shape[row.axes.index("head_dim") if row.axes else -1]
        if shape[-1] % width == 0:
            yield lambda tensor: tensor.view(-1, tensor.shape[-1] // width, width)
    elif torch.Size(shape).numel() == torch.Size(row.shape).numel():
        yield lambda tensor: tensor.view(row.shape)


def fused_views(row: TapRow, place: Place, shape: tuple[int, ...], heads: Heads) -> Iterator[View]:
    """Yields the views of a tap's part of a fused projection: in the map's layout, or in each one that fits."""
    assert place.fused is not None
    tokens = torch.Size(shape[:-1]).numel()
    for layout in (place.layout,) if place.layout else LAYOUTS[place.fused]:
        try:
            found = next(part for part in parts(place.fused, layout, (tokens, shape[-1]), heads) if part.tap == row.tap)
        except DumpError:
            continue
        yield part_of(found)


def part_of(found: Part) -> View:
    window = tuple(slice(*ends) for ends in zip(found.start, found.end))
    return lambda tensor: tensor.view(found.whole)[window]


def paired(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the halves of each head in turns: values 0, d/2, 1, d/2 + 1, and so on."""
    return tensor.view(*tensor.shape[:-1], 2, tensor.shape[-1] // 2).transpose(-1, -2)
