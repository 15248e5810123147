#!/usr/bin/env python3
"""Writes tests/data/quant/weight_rounding.safetensors: rows of weights, and the values that ggml's own quantisation of
a file gives (`ggml_quantize_chunk` without an importance matrix, then `dequantize_row`), for the types that
`xcheck probe --audit` computes.

--library is the folder of libggml-base.so, e.g. that of llama-cpp-python.
"""

import argparse
import ctypes
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

# Numbers of ggml's types.
TYPES = {"q4_0": 2, "q5_0": 6, "q8_0": 8, "q4_k": 12, "q6_k": 14}
ROWS, COLUMNS = 6, 512


def weights() -> np.ndarray:
    """Rows of different distributions; the last one has large values, zeros and a group of equal values."""
    random = np.random.default_rng(11)
    rows = random.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    rows[1] *= 0.02
    rows[2] = np.abs(rows[2])
    rows[3] = random.standard_t(2, COLUMNS)
    rows[4] *= np.repeat(10.0 ** random.uniform(-3, 1, COLUMNS // 16), 16)
    rows[5, :32], rows[5, 32:64], rows[5, 64:320] = 0.25, 0.0, 0.0
    rows[5, 400] = 100.0
    return rows


def rounded(base: ctypes.CDLL, name: str, rows: np.ndarray) -> np.ndarray:
    """The values of the rows in a file of this type."""
    base.ggml_row_size.restype = ctypes.c_size_t
    base.ggml_row_size.argtypes = [ctypes.c_int, ctypes.c_int64]
    base.ggml_quantize_chunk.restype = ctypes.c_size_t
    pointer = ctypes.POINTER(ctypes.c_float)
    base.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [pointer]
    size = base.ggml_row_size(TYPES[name], COLUMNS) * ROWS
    packed, values = ctypes.create_string_buffer(size), np.zeros_like(rows)
    as_floats = lambda array: array.ctypes.data_as(pointer)  # noqa: E731
    assert base.ggml_quantize_chunk(TYPES[name], as_floats(rows), packed, 0, ROWS, COLUMNS, None) == size
    decode = getattr(base, f"dequantize_row_{name.replace('_k', '_K')}")
    decode.argtypes = [ctypes.c_void_p, pointer, ctypes.c_int64]
    decode(packed, as_floats(values), ROWS * COLUMNS)
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("tests/data/quant/weight_rounding.safetensors"))
    options = parser.parse_args()
    base = ctypes.CDLL(str(options.library / "libggml-base.so"))
    rows = weights()
    save_file({"weights": rows, **{name: rounded(base, name, rows) for name in TYPES}}, options.out)


if __name__ == "__main__":
    main()
