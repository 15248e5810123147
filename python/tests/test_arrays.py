"""Arrays of every library keep their values and their type."""

from __future__ import annotations

import numpy as np
import pytest

from reader import decode
from xcheck.arrays import stored
from xcheck.errors import DumpError

VALUES = [[0.5, -1.25, 3.0], [448.0, 0.015625, -0.0]]


def values_of(array):
    return decode(array.bits, array.dtype)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("float32", "f32"), ("float64", "f64"), ("float16", "f16"), (">f4", "f32")]
)
def test_numpy_keeps_its_type_and_big_endian_is_turned(kind, dtype):
    array = stored(np.array(VALUES, dtype=kind))
    assert array.dtype == dtype
    assert array.bits.dtype.byteorder in "<=|"
    np.testing.assert_array_equal(values_of(array), VALUES)


def test_a_list_is_f64_unless_its_type_is_named():
    assert stored(VALUES).dtype == "f64"
    assert stored(VALUES, "f32").bits.dtype == np.float32
    assert stored(VALUES, "float16").dtype == "f16"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_torch_keeps_its_type(dtype):
    torch = pytest.importorskip("torch")
    values = VALUES if dtype != "float8_e5m2" else [[0.5, 1.25], [448.0, -2.0]]
    tensor = torch.nn.Parameter(torch.tensor(values)).to(getattr(torch, dtype))
    for given in (tensor, tensor.T.contiguous().T):
        np.testing.assert_array_equal(values_of(stored(given)), values)
    assert stored(tensor).dtype == {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}.get(
        dtype, dtype.replace("float8", "f8").replace("fn", "")
    )


def test_a_class_derived_from_tensor_is_one():
    torch = pytest.importorskip("torch")

    class Mine(torch.Tensor):
        pass

    assert stored(torch.tensor(VALUES, dtype=torch.bfloat16).as_subclass(Mine)).dtype == "bf16"


def test_tensors_without_values_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(DumpError, match="meta device has no values"):
        stored(torch.zeros(3, device="meta"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_mlx_keeps_its_type(dtype):
    mx = pytest.importorskip("mlx.core")
    array = stored(mx.array(VALUES).astype(getattr(mx, dtype)))
    assert array.dtype == {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype]
    np.testing.assert_array_equal(values_of(array), VALUES)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn"])
def test_jax_keeps_its_type(dtype):
    jnp = pytest.importorskip("jax.numpy")
    array = stored(jnp.array(VALUES, dtype=getattr(jnp, dtype)))
    assert array.dtype == {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8_e4m3"}[dtype]
    np.testing.assert_array_equal(values_of(array), VALUES)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tinygrad_keeps_its_type(dtype):
    tinygrad = pytest.importorskip("tinygrad")
    array = stored(tinygrad.Tensor(VALUES).cast(getattr(tinygrad.dtypes, dtype)))
    assert array.dtype == {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype]
    np.testing.assert_array_equal(values_of(array), VALUES)


def test_raw_bits_are_what_dtype_says():
    bits = np.array([0x3F80, 0xC000], dtype=np.uint16)
    np.testing.assert_array_equal(values_of(stored(bits, "bf16")), [1.0, -2.0])
    with pytest.raises(DumpError, match="it converts nothing"):
        stored(np.ones(3, dtype=np.float32), "bf16")
    with pytest.raises(DumpError, match="there is no type 'q8_0'"):
        stored(bits, "q8_0")


@pytest.mark.parametrize("value", [np.ones(2, complex), np.ones(2, bool), [[1.0], [1.0, 2.0]], object(), "text", None])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(DumpError):
        stored(value)


@pytest.mark.parametrize(
    ("array", "complaint"),
    [
        (stored(np.full((2, 3), np.nan, np.float32)), "is nothing but NaN"),
        (stored(np.array([0x7FC0, 0xFFFF], np.uint16), "bf16"), "is nothing but NaN"),
        (stored(np.array([0x7F, 0xFF], np.uint8), "f8_e4m3"), "is nothing but NaN"),
        (stored(np.array([0x7D, 0xFE], np.uint8), "f8_e5m2"), "is nothing but NaN"),
        (stored(np.array([0x7C, 0x7D], np.uint8), "f8_e5m2"), None),
        (stored(np.array([0x7F80, 0x7FC0], np.uint16), "bf16"), None),
        (stored(np.array([np.nan, 1.0])), None),
        (stored(np.zeros((0, 3), np.float32)), "is empty"),
        (stored(np.zeros((2, 3), np.float32)), "is nothing but zeros"),
        (stored(np.array([0.0, 1.0])), None),
    ],
)
def test_values_that_cannot_be_meant_are_seen(array, complaint):
    assert array.complaint() == complaint
