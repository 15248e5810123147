"""Writes outputs of a torch model's modules, and the arrays that the model was given."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np

from .arrays import FLOATS, NAMES, NOT_A_NUMBER, Array, Stored, read, stored_array
from .containers import Container
from .errors import DumpError, DumpWarning
from .passes import Pass
from .values import Values, not_empty

PATH = re.compile(r"[\w-]+(\.[\w-]+)*")
LONGEST = 300  # readers refuse longer paths
NAME = re.compile(r"\w+(\.\w+)*")


def write(
    values: Values, current: Pass, path: str, value: Any, call: int | None, warn: bool = True, repeats: bool = True
) -> None:
    """Writes the output of a module, with its row for the manifest.

    call: the number of the module's call in the pass; without it, the next.
    """
    if not isinstance(path, str) or not PATH.fullmatch(path) or len(path) > LONGEST:
        raise DumpError(
            f"invalid module {path!r}, expected a path as in model.named_modules(), e.g. 'model.layers.0.mlp'"
        )
    if values.rows and not values.has_modules:
        raise DumpError(f"module {path}: the dump has taps; write outputs of modules to a dump of their own")
    check_one_text(path, current)
    number = next_call(current, path) if call is None else checked_call(path, call)
    if (path, number) in current.outputs:
        raise DumpError(
            f"module {path}: call {number} of pass {current.index} is written already; leave call= out for the next "
            "call, and use another dump.forward(...) for another pass"
        )
    array = output(path, value, warn)
    key = f"p{current.index}/{path}" + (f"@{number}" if number else "")
    content = (array.dtype, array.shape, array.sha256())
    if content not in current.files:  # a module that only calls another returns the other's value: one array for both
        current.files[content] = values.container.write(key, None, array, suffix="")
    elif not repeats:
        return
    row = {"module": path, "pass": current.index, "call": number, "dtype": array.dtype, "shape": list(array.shape)}
    values.rows.append({**row, "file": current.files[content], "sha256": content[-1]})
    values.has_modules = True
    current.outputs.add((path, number))


def check_one_text(path: str, current: Pass) -> None:
    """Raises an error if the pass has more than one sequence."""
    rows = current.rows
    if rows.batch is not None:
        raise DumpError(
            f"module {path}: the pass has a batch of {rows.batch[0]}, expected 1; record each text in a dump of its own"
        )
    others = [sequence for sequence in rows.sequences if sequence != 0]
    if others:
        raise DumpError(
            f"module {path}: the pass reads sequence {others[0]}, expected 0 alone; record each text in a dump of its "
            "own"
        )


def next_call(current: Pass, path: str) -> int:
    return max((number for module, number in current.outputs if module == path), default=-1) + 1


def checked_call(path: str, call: Any) -> int:
    if not isinstance(call, (int, np.integer)) or isinstance(call, bool) or call < 0:
        raise DumpError(f"module {path}: call={call!r}, expected a whole number from 0 on")
    return int(call)


def output(path: str, value: Any, warn: bool) -> Stored:
    """Reads the output of a module: floating-point values in their own type, or ids."""
    try:
        name, array = read(value)
        if array.dtype.kind == "b":
            raise DumpError("a mask is not an output that can be judged: leave it out")
        found = as_stored(name, array)
    except DumpError as error:
        raise DumpError(f"module {path}: {error}") from None
    complaint = found.complaint() if warn and found.dtype in FLOATS else None
    if complaint:  # at the caller of Dump.module
        warnings.warn(f"module {path} {complaint}: was it written before it was computed?", DumpWarning, stacklevel=5)
    return found


def as_stored(name: str, array: Array) -> Stored:
    """Any array as it is stored: floating-point values in their own type, whole numbers in 32 bits."""
    return not_empty(whole_numbers(array) if is_whole(name, array) else stored_array(name, array)).contiguous()


def is_whole(name: str, array: Array) -> bool:
    """Returns whether an array holds whole numbers, and not the bits of short floats."""
    return array.dtype.kind in "iub" and NAMES.get(name) not in NOT_A_NUMBER


def whole_numbers(array: Array) -> Stored:
    """Stores whole numbers as u32, or as i32 if one is negative."""
    numbers = array.astype(np.int64)
    lowest, highest = (int(numbers.min()), int(numbers.max())) if numbers.size else (0, 0)
    if lowest >= 0 and highest < 1 << 32:
        return Stored("u32", numbers.astype("<u4"))
    if lowest >= -(1 << 31) and highest < 1 << 31:
        return Stored("i32", numbers.astype("<i4"))
    raise DumpError(f"whole numbers from {lowest} to {highest} do not fit 32 bits: leave them out")


def write_input(container: Container, current: Pass, name: str, value: Any) -> dict[str, Any]:
    """Writes an array that the model was given; returns its entry for the manifest."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise DumpError(f"invalid name {name!r} in inputs=, expected that of an argument, e.g. 'pixel_values'")
    try:
        kind, array = read(value)
        given = as_stored(kind, array)
    except DumpError as error:
        raise DumpError(f"input {name}: {error}") from None
    file = container.write(f"p{current.index}/inputs/{name}", None, given, suffix="")
    mask = {"type": "bool"} if array.dtype.kind == "b" else {}
    entry = {"pass": current.index, "file": file, "dtype": given.dtype, "shape": list(given.shape)}
    return {**entry, **mask, "sha256": given.sha256()}
