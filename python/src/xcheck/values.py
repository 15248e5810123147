"""Writes tapped values: each as its tap's array, with its row for the manifest."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import fused, taps
from .arrays import BITS, COMPUTED, FLOATS, SHORT, Array, Stored, integers, stored, token_ids
from .axes import Arrangement, Extent, arrange
from .containers import Container
from .errors import DumpError, DumpWarning
from .heads import Heads
from .likelihoods import of_all_but_the_last
from .passes import Pass
from .taps import Tap

MOST_LAYERS = 1 << 16  # more than any model has: readers refuse such a layer


@dataclass(frozen=True)
class Manner:
    """How a value is given, as `Dump.tap` explains."""

    axes: Sequence[str] | None = None
    rows: Sequence[int] | None = None
    layout: str | None = None
    dtype: str | None = None
    scale: Any = None
    computed: str | None = None
    step: float | None = None


@dataclass(frozen=True)
class Place:
    """Where in the run a value belongs."""

    current: Pass
    layer: int | None

    def key(self, name: str) -> str:
        """Where it lies in the dump: p0/l00/attn_norm, p0/logits."""
        within = "" if self.layer is None else f"l{self.layer:02}/"
        return f"p{self.current.index}/{within}{name}"

    @property
    def row(self) -> dict[str, int]:
        """What the manifest says of it."""
        layer = {} if self.layer is None else {"layer": self.layer}
        return {"pass": self.current.index, **layer}

    def __str__(self) -> str:
        return (
            f"pass {self.current.index}" if self.layer is None else f"layer {self.layer} of pass {self.current.index}"
        )


class Values:
    """The values of a dump, and their rows."""

    def __init__(self, container: Container, heads: Heads, n_layers: int | None, cut_fused: bool):
        self.container = container
        self.heads = heads
        self.n_layers = n_layers
        self.cut_fused = cut_fused
        self.rows: list[dict[str, Any]] = []
        self.has_modules = False  # the rows are of modules, and not of taps

    def write(self, current: Pass, name: str, value: Any, layer: int | None, manner: Manner) -> None:
        """Writes a value of a pass: one tap's, or that of a fused projection."""
        if self.has_modules:
            raise DumpError(f"{name}: the dump has outputs of modules; write taps to a dump of their own")
        members = [taps.find(member) for member in taps.FUSED.get(name, (name,))]
        place = Place(current, self._layer(name, members[0], layer))
        for tap in members:
            if (tap.name, place.layer) in current.held:
                raise DumpError(
                    f"{tap.name}: {place} has one already; another forward pass is another dump.forward(...)"
                )
        array = read(name, members[0], value, manner.dtype)
        if name in taps.FUSED:
            self._write_fused(place, name, array, manner)
        else:
            self._write_one(place, members[0], array, manner)

    def _layer(self, name: str, tap: Tap, layer: int | None) -> int | None:
        """The layer, which has to be given of a layer's taps and of no others."""
        if tap.scope != taps.LAYER:
            if layer is not None:
                raise DumpError(f"{name}: there is one for all layers; leave layer= out")
            return None
        if layer is None:
            raise DumpError(f"{name}: of which layer? Write tap({name!r}, value, layer=0)")
        if layer < 0 or (self.n_layers is not None and layer >= self.n_layers):
            count = f", and there are {self.n_layers}" if self.n_layers else ""
            raise DumpError(f"{name}: there is no layer {layer}; layers count from 0{count}")
        if layer >= MOST_LAYERS:
            raise DumpError(f"{name}: no model has a layer {layer}")
        return int(layer)

    def _write_one(self, place: Place, tap: Tap, array: Stored, manner: Manner) -> None:
        if tap.name == "token_logprobs" and manner.rows is None and manner.axes is None:
            manner = replace(manner, rows=of_all_but_the_last(place.current, array.shape))
        if manner.layout is not None:
            raise DumpError(f"{tap.name}: layout= is of {' and '.join(taps.FUSED)}; name axes with axes=(...)")
        extent = of_rows(tap, place.current.extent(self.heads), manner.rows)
        array = of_entries_read(tap, array, place.current)
        arranged = arrange(tap, array.shape, manner.axes, extent)
        said = said_of(tap.name, array, manner)
        if arranged.axes:
            said["axes"] = arranged.axes
        if manner.scale is not None:
            said["scale"] = self._scale(place, tap, array, manner.scale, arranged)
        self._store(place, tap.name, Stored(array.dtype, arranged.apply(array.bits)), said)

    def _write_fused(self, place: Place, name: str, array: Stored, manner: Manner) -> None:
        if manner.axes is not None:
            raise DumpError(f"{name}: its axes are (batch, token, all parts): say how the parts lie with layout=")
        extent = of_rows(taps.find(taps.FUSED[name][0]), place.current.extent(self.heads), manner.rows)
        lead = lead_of(name, array.shape, extent)
        array = Stored(array.dtype, array.bits.reshape(*lead, array.shape[-1])).contiguous()
        said = said_of(name, array, manner)
        if manner.scale is not None:
            said["scale"] = one_factor(name, array, manner.scale)
        parts = fused.parts(name, manner.layout or "beside", array.shape, self.heads)
        if self.cut_fused:
            for part in parts:
                self._store(place, part.tap, Stored(array.dtype, part.cut(array.bits)), said)
            return
        file = self.container.write(place.key(name), place.layer, array)
        for part in parts:
            self._add_row(place, part.tap, array.dtype, part.shape, file, {**said, "of": part.of})

    def _scale(self, place: Place, tap: Tap, array: Stored, scale: Any, arranged: Arrangement) -> Any:
        """What the manifest says of a scale: a number, or the file of the array that is written here."""
        factors = factors_of(tap.name, array, scale)
        if factors.ndim == 0:
            return float(factors)
        try:
            np.broadcast_to(factors, array.shape)
        except ValueError:
            shapes = f"{list(factors.shape)} does not fit values of shape {list(array.shape)}"
            raise DumpError(f"{tap.name}: a scale of shape {shapes} by NumPy's rules") from None
        fitting = Stored("f32", arranged.apply_scale(factors, array.shape)).contiguous()
        return self.container.write(place.key(f"{tap.name}.scale"), place.layer, fitting)

    def _store(self, place: Place, tap: str, array: Stored, said: dict[str, Any]) -> None:
        array = array.contiguous()
        file = self.container.write(place.key(tap), place.layer, array)
        self._add_row(place, tap, array.dtype, array.shape, file, {**said, "sha256": array.sha256()})

    def _add_row(
        self, place: Place, tap: str, dtype: str, shape: tuple[int, ...], file: str, said: dict[str, Any]
    ) -> None:
        self.rows.append({"tap": tap, **place.row, "dtype": dtype, "shape": list(shape), "file": file, **said})
        place.current.held.add((tap, place.layer))


# ---------------------------------------------------------------------------------------------------
# What a value has to be.


def read(name: str, tap: Tap, value: Any, dtype: str | None) -> Stored:
    """The value as a dump stores it: of a type that the tap can have, and not obviously nothing."""
    try:
        if tap.holds_ids:
            ids = token_ids(value).astype("<u4")
            return not_empty(Stored("u32", ids if tap.axes else ids.reshape(-1)))
        array = not_empty(stored(value, dtype))
    except DumpError as error:
        raise DumpError(f"{name}: {error}") from None
    if array.dtype not in FLOATS:
        raise DumpError(
            f"{name}: whole numbers ({array.dtype}) are no activations; name bits of bf16 or f8 with dtype="
        )
    complaint = array.complaint()
    if complaint:  # at the caller of Dump.tap
        warnings.warn(f"{name} {complaint}: was it tapped before it was computed?", DumpWarning, stacklevel=4)
    return array


def not_empty(array: Stored) -> Stored:
    """Readers take no array of nothing."""
    if 0 in array.shape:
        raise DumpError(f"an axis of shape {list(array.shape)} has no entry: leave the value out")
    return array


def said_of(name: str, array: Stored, manner: Manner) -> dict[str, Any]:
    """What the manifest says of a value besides where it is."""
    said: dict[str, Any] = {}
    if manner.rows is not None:
        said["rows"] = integers(list(manner.rows)).tolist()
    if manner.computed is not None:
        if array.dtype in SHORT:
            if manner.computed != array.dtype:
                raise DumpError(
                    f"{name}: computed={manner.computed!r} has to be {array.dtype!r}, the stored type, "
                    "where the engine goes on with these values; else leave it out"
                )
        elif manner.computed not in COMPUTED or width(manner.computed) >= width(array.dtype):
            raise DumpError(
                f"{name}: computed={manner.computed!r} has to be one of {', '.join(COMPUTED)}, and a type shorter than "
                f"{array.dtype}, the stored one"
            )
        said["computed"] = manner.computed
    if manner.step is not None:
        said["step"] = step_of(name, array, float(manner.step))
    return said


COARSEST_STEP = 0.05  # readers take no coarser one: nothing could be told from another model


def step_of(name: str, array: Stored, step: float) -> float:
    """What the manifest says of a step: the values have to be multiples of it, as exactly as f32 is."""
    if name not in ("token_logprobs", "top_logprobs"):
        raise DumpError(f"{name}: step= is of token_logprobs and top_logprobs alone")
    if array.dtype not in ("f32", "f64"):
        raise DumpError(f"{name}: values with a step have to be f32 or f64, and these are {array.dtype}")
    if not 0 < step <= COARSEST_STEP:
        raise DumpError(f"{name}: step={step!r} has to be a positive number of at most {COARSEST_STEP}")
    values = array.bits.astype(np.float64)
    values = values[np.isfinite(values)]
    off = np.abs(values - np.round(values / step) * step) > np.finfo(np.float32).eps * np.abs(values)
    if off.any():
        raise DumpError(f"{name}: {values[off][0]} is no multiple of step={step!r}")
    return step


def width(dtype: str) -> int:
    """Bytes of a value."""
    return np.dtype(BITS[dtype]).itemsize


def of_rows(tap: Tap, extent: Extent, rows: Sequence[int] | None) -> Extent:
    """The lengths of the axes if the array holds some rows of the pass alone."""
    if rows is None:
        return extent
    if "token" not in tap.axes:
        raise DumpError(f"{tap.name} has no axis 'token': rows= is of none")
    numbers = integers(list(rows)).tolist()
    if numbers != sorted(set(numbers)) or not numbers or numbers[0] < 0 or numbers[-1] >= extent.rows:
        raise DumpError(
            f"{tap.name}: rows={numbers} have to be rows of the pass, 0 to {extent.rows - 1}, in ascending order"
        )
    return replace(extent, rows=len(numbers), batch=None)


def of_entries_read(tap: Tap, array: Stored, current: Pass) -> Stored:
    """Of what there is once for each entry of a batch, the entries that are not all padding."""
    batch, entries = current.rows.batch, current.rows.entries_read
    if tap.scope != taps.SEQUENCE or batch is None or array.shape[:1] != (batch[0],) or len(entries) == batch[0]:
        return array
    return Stored(array.dtype, array.bits[entries])


def lead_of(name: str, shape: tuple[int, ...], extent: Extent) -> tuple[int, ...]:
    """The axes in front of a fused array's last: rows, or batch and token."""
    lead = shape[:-1]
    if lead == (extent.rows,) or (extent.batch is not None and lead == extent.batch):
        return lead
    if lead == (1, extent.rows):
        return (extent.rows,)
    expected = [extent.rows] if extent.batch is None else list(extent.batch)
    raise DumpError(f"{name} of shape {list(shape)}: expected {expected} and one axis of all parts")


def factors_of(name: str, array: Stored, scale: Any) -> Array:
    """A scale in f32, without axes if it is one number."""
    if array.dtype not in SHORT:
        raise DumpError(f"{name}: scale= is of f8 values; these are {array.dtype}: multiply them")
    given = stored(float(scale) if isinstance(scale, int) else scale)
    if given.dtype not in ("f32", "f64", "f16"):
        raise DumpError(f"{name}: a scale is f32, not {given.dtype}")
    factors = given.bits.astype("<f4")
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise DumpError(f"{name}: a scale is {factors.min()} to {factors.max()}, expected positive numbers")
    return factors.reshape(()) if factors.size == 1 else factors


def one_factor(name: str, array: Stored, scale: Any) -> float:
    """The scale of a fused array."""
    factors = factors_of(name, array, scale)
    if factors.ndim:
        raise DumpError(
            f"{name}: the scale of a fused array is one number; tap its parts, each with a scale of its own"
        )
    return float(factors)
