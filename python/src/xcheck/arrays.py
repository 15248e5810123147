"""Arrays of any library as a dump stores them. No library is imported that has not made the array itself."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import DumpError

Array = NDArray[Any]

# The contract's types, and NumPy's type of their bits: it has no bf16 and no f8.
BITS = {
    "f32": "<f4",
    "f64": "<f8",
    "f16": "<f2",
    "bf16": "<u2",
    "u32": "<u4",
    "i32": "<i4",
    "f8_e4m3": "|u1",
    "f8_e5m2": "|u1",
}
FLOATS = ("f32", "f64", "f16", "bf16", "f8_e4m3", "f8_e5m2")
SHORT = ("f8_e4m3", "f8_e5m2")  # those that may have a scale
COMPUTED = ("f32", "f16", "bf16")  # those that values may have been rounded to before they were stored in a longer one

# What libraries call them.
NAMES = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "uint32": "u32",
    "int32": "i32",
    "float8_e4m3fn": "f8_e4m3",
    "float8_e5m2": "f8_e5m2",
}

# Magnitude bits, and infinity or the largest number that is none: what is above it is NaN.
NOT_A_NUMBER = {"bf16": (0x7FFF, 0x7F80), "f8_e4m3": (0x7F, 0x7E), "f8_e5m2": (0x7F, 0x7C)}


@dataclass(frozen=True)
class Stored:
    """An array as it stands in a dump: the contract's type, and the bits, little-endian."""

    dtype: str
    bits: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bits.shape

    def contiguous(self) -> Stored:
        """The same, C-ordered, with as many axes."""
        return Stored(self.dtype, np.asarray(self.bits, order="C"))

    def sha256(self) -> str:
        """The digest of its elements; the array has to be C-ordered."""
        return hashlib.sha256(self.bits.reshape(-1).view(np.uint8).data).hexdigest()

    def complaint(self) -> str | None:
        """What is odd about all of its values, if anything. Only the first is looked at where nothing is."""
        if self.bits.size == 0:
            return "is empty"
        if self._nan(self.bits.flat[:1]).all() and self._nan(self.bits).all():
            return "is nothing but NaN"
        if not self.bits.flat[0] and not self.bits.any() and self.bits.size > 1:
            return "is nothing but zeros"
        return None

    def _nan(self, bits: Array) -> Array:
        if self.dtype in NOT_A_NUMBER:
            magnitude, largest = NOT_A_NUMBER[self.dtype]
            return np.asarray((bits & magnitude) > largest)
        return np.isnan(bits)


def stored(value: Any, dtype: str | None = None) -> Stored:
    """Any array as a dump stores it. `dtype` names the type of bits that NumPy has no type for, or that of a list."""
    return stored_array(*read(value), dtype)


def stored_array(name: str, array: Array, dtype: str | None = None) -> Stored:
    """What `read` has returned, as a dump stores it."""
    if dtype is None:
        dtype = "f64" if name == "list" else NAMES.get(name)
        if dtype is None:
            raise DumpError(
                f"values of type {name} cannot be stored: convert them to one of {', '.join(BITS)}, "
                "or name the type of raw bits with dtype="
            )
    dtype = NAMES.get(dtype, dtype)
    return Stored(dtype, as_bits(array, name, dtype))


def as_bits(array: Array, name: str, dtype: str) -> Array:
    """The bits of `array`, which the library calls `name`, as the contract's `dtype`."""
    if dtype not in BITS:
        raise DumpError(f"there is no type {dtype!r}: the types are {', '.join(BITS)}")
    bits = np.dtype(BITS[dtype])
    if NAMES.get(name) == dtype or array.dtype == bits.newbyteorder("="):
        return array.astype(bits, copy=False)
    if name == "list" and dtype in ("f32", "f64", "f16"):
        return array.astype(bits)
    raise DumpError(f"values of type {name} are not {dtype}: dtype= names the type of bits, it converts nothing")


def integers(value: Any) -> Array:
    """Token ids, positions, a mask: whole numbers, as int64."""
    _, array = read(value)
    if array.dtype.kind not in "iub" and array.size:
        raise DumpError(f"expected whole numbers, got values of type {array.dtype}")
    return array.astype(np.int64)


def token_ids(value: Any) -> Array:
    """Token ids: whole numbers from 0 on, of at most 32 bits."""
    array = integers(value)
    wrong = array[(array < 0) | (array >= 1 << 32)]
    if wrong.size:
        raise DumpError(f"token ids are not negative, and have at most 32 bits: {wrong[0]}")
    return array


def read(value: Any) -> tuple[str, Array]:
    """What its library calls its type ("list" without a library), and its values; of short floats the bits."""
    for base in type(value).__mro__:  # a library's own class, or one derived from it
        reader = READERS.get(base.__module__.partition(".")[0])
        if reader:
            return reader(value)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise DumpError(f"a {type(value).__name__} cannot be read as an array: {error}") from error
    if array.dtype.kind == "O":
        raise DumpError(f"a {type(value).__name__} cannot be read as an array of numbers")
    if isinstance(value, (list, tuple, float)) and array.dtype == np.float64:
        return "list", array
    return from_numpy(array)


def from_numpy(array: Array) -> tuple[str, Array]:
    """NumPy's own, and the short floats of ml_dtypes, which jax, TensorFlow and others hand out."""
    name = array.dtype.name
    if name in NAMES and NAMES[name] in NOT_A_NUMBER:
        return name, array.view(f"u{array.dtype.itemsize}")
    return name, array


def from_torch(tensor: Any) -> tuple[str, Array]:
    torch: Any = sys.modules["torch"]
    name = str(tensor.dtype).replace("torch.", "")
    if tensor.device.type == "meta":
        raise DumpError("a tensor on the meta device has no values")
    tensor = tensor.detach()
    if NAMES.get(name) in NOT_A_NUMBER:
        tensor = tensor.view({1: torch.uint8, 2: torch.int16}[tensor.element_size()])
        bits: Array = tensor.cpu().numpy()
        return name, bits.view(f"u{bits.dtype.itemsize}")
    return name, tensor.cpu().numpy()


def from_mlx(array: Any) -> tuple[str, Array]:
    mx: Any = sys.modules["mlx.core"]
    name = str(array.dtype).replace("mlx.core.", "")
    return name, np.array(array.view(mx.uint16) if name == "bfloat16" else array)


def from_tinygrad(tensor: Any) -> tuple[str, Array]:
    dtypes: Any = sys.modules["tinygrad"].dtypes
    short = {dtypes.bfloat16: ("bfloat16", dtypes.uint16)}
    for ours, theirs in (("float8_e4m3fn", "fp8e4m3"), ("float8_e5m2", "fp8e5m2")):
        if hasattr(dtypes, theirs):  # since 0.11
            short[getattr(dtypes, theirs)] = (ours, dtypes.uint8)
    if tensor.dtype in short:
        name, bits = short[tensor.dtype]
        return name, tensor.bitcast(bits).numpy()
    array: Array = tensor.numpy()
    return array.dtype.name, array


def from_cupy(array: Any) -> tuple[str, Array]:
    return from_numpy(array.get())


READERS: dict[str, Callable[[Any], tuple[str, Array]]] = {
    "torch": from_torch,
    "mlx": from_mlx,
    "tinygrad": from_tinygrad,
    "cupy": from_cupy,
}
