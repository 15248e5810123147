"""Sees what attention puts into transformers' caches and reads from them: no module hands that out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .arrays import Array, integers

# Is told the layer, the new keys, and all keys and values that attention reads: [B, Hkv, T or S, D].
See = Callable[[int, Any, Any, Any], None]
# Is told a cache, and for each of its entries from now on which of them it was, as a function of how many there were.
SeeMoved = Callable[[Any, Callable[[int], Array]], None]


@contextmanager
def watched_caches(see: See, see_moved: SeeMoved) -> Iterator[None]:
    """Watches every cache of transformers inside the block."""
    module = sys.modules.get("transformers.cache_utils")
    originals = []
    for kind in [] if module is None else list(kinds(module.Cache)):
        for name in ("update", *ORDERS):
            if name in vars(kind):
                originals.append((kind, name, vars(kind)[name]))
    for kind, name, original in originals:
        setattr(kind, name, watched(original, see) if name == "update" else watched_order(name, original, see_moved))
    try:
        yield
    finally:
        for kind, name, original in originals:
            setattr(kind, name, original)


def kinds(base: Any) -> Iterator[Any]:
    """A class and all that are derived from it."""
    yield base
    for derived in base.__subclasses__():
        yield from kinds(derived)


def watched(original: Callable[..., Any], see: See) -> Callable[..., Any]:
    """`Cache.update` that also shows what it was given and gives back."""

    def update(cache: Any, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        keys, values = original(cache, key_states, value_states, layer_idx, *args, **kwargs)
        see(layer_idx, key_states, keys, values)
        return keys, values

    return update


def selected(indices: Any) -> Callable[[int], Array]:
    """The entries that indices name."""
    order = integers(indices)
    return lambda _: order


def repeated(times: Any) -> Callable[[int], Array]:
    """Each entry that many times."""
    return lambda entries: np.repeat(np.arange(entries), int(times))


# What moves the entries of a cache, and to where.
ORDERS = {"reorder_cache": selected, "batch_select_indices": selected, "batch_repeat_interleave": repeated}


def watched_order(name: str, original: Callable[..., Any], see_moved: SeeMoved) -> Callable[..., Any]:
    """A method that moves a cache's entries, and also shows how."""

    def move(cache: Any, how: Any) -> Any:
        moved = original(cache, how)
        see_moved(cache, ORDERS[name](how))
        return moved

    return move


def is_quantized(cache: Any) -> bool:
    """Whether a cache of transformers gives back other keys and values than it was given."""
    return any(hasattr(part, "_quantize") for part in (cache, *(getattr(cache, "layers", None) or ())))
