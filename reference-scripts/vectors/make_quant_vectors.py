"""Writes what the quantised formats are tested against: tests/data/quant/*.safetensors.

Rows of blocks, random and at the edges of each format, with
- their values, from the gguf package, and checked to be bit for bit those of ggml's C,
- activations, quantised by the CPU backend of a real libggml,
- the dot products of each pair, by the same library's `ggml_vec_dot_*`,
- the matrix products of 1, 2, 7 and 10 rows of activations, by its `ggml_mul_mat`: it has other kernels for many, and
  some of them not for a number of outputs that is no multiple of 4 ("ragged").

The library is the one that build_dump_llama_cpp.sh builds: GGML_NATIVE=OFF, so AVX2, FMA and F16C on any x86-64.
"""

import argparse
import ctypes
import importlib.metadata
import re
import sys
from enum import IntEnum
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file

COLUMNS = 768
RANDOM_ROWS = 8
EDGE_ROWS = 8


class Newer(IntEnum):
    """Types that the gguf package does not have yet."""

    Q2_0 = 42


# Values and bytes of a block.
SIZES = {**gguf.GGML_QUANT_SIZES, Newer.Q2_0: (64, 18)}

# Stored as they are, block types of 32 to 128 and of 256: (ggml's names, where a block has its f16 scales).
PLAIN = {Type.F32: "f32", Type.F16: "f16", Type.BF16: "bf16"}
PLAIN_LENGTHS = [768, 759, 47, 35, 31, 7, 4, 1]
SMALL_LENGTHS = [768, 736, 32]  # 736: an odd number of blocks
MIDDLE_LENGTHS = [768, 640, 128]
LARGE_LENGTHS = [768, 256]
TOKENS = [1, 2, 7, 10]
SPREAD = -1  # four bits in each of the last four words
BLOCKS = {
    Type.Q4_0: ("q4_0", "q8_0", [0]),
    Type.Q4_1: ("q4_1", "q8_1", [0, 2]),
    Type.Q5_0: ("q5_0", "q8_0", [0]),
    Type.Q5_1: ("q5_1", "q8_1", [0, 2]),
    Type.Q8_0: ("q8_0", "q8_0", [0]),
    Type.Q2_K: ("q2_K", "q8_K", [80, 82]),
    Type.Q3_K: ("q3_K", "q8_K", [108]),
    Type.Q4_K: ("q4_K", "q8_K", [0, 2]),
    Type.Q5_K: ("q5_K", "q8_K", [0, 2]),
    Type.Q6_K: ("q6_K", "q8_K", [208]),
    Type.IQ4_NL: ("iq4_nl", "q8_0", [0]),
    Type.IQ4_XS: ("iq4_xs", "q8_K", [0]),
    Type.TQ1_0: ("tq1_0", "q8_K", [52]),
    Type.TQ2_0: ("tq2_0", "q8_K", [64]),
    Type.MXFP4: ("mxfp4", "q8_0", []),  # its scale is one byte, an exponent
    Type.NVFP4: ("nvfp4", "q8_0", []),  # its scales are four bytes, floats
    Type.Q1_0: ("q1_0", "q8_0", [0]),
    Newer.Q2_0: ("q2_0", "q8_0", [0]),
    Type.IQ1_S: ("iq1_s", "q8_K", [0]),
    Type.IQ1_M: ("iq1_m", "q8_K", [SPREAD]),
    Type.IQ2_XXS: ("iq2_xxs", "q8_K", [0]),
    Type.IQ2_XS: ("iq2_xs", "q8_K", [0]),
    Type.IQ2_S: ("iq2_s", "q8_K", [0]),
    Type.IQ3_XXS: ("iq3_xxs", "q8_K", [0]),
    Type.IQ3_S: ("iq3_s", "q8_K", [0]),
}
ACTIVATION_BYTES = {"q8_0": 34 / 32, "q8_1": 36 / 32, "q8_K": 292 / 256, "f32": 4, "f16": 2, "bf16": 2}

# Zeros of both signs, the smallest and largest denormals, the smallest normal, the largest, one: as bits of f16.
EDGE_SCALES = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00, 0xBC00], dtype=np.uint16
)
EDGE_EXPONENTS = np.array([0, 1, 2, 3, 64, 126, 127, 128, 250, 253, 254], dtype=np.uint8)
EDGE_CODES = [0x00, 0xFF, 0x0F, 0xF0, 0x55, 0xAA, 0x80, 0x7F]


class Ggml:
    """The CPU backend of a libggml, as it was built."""

    def __init__(self, environment):
        folders = sorted(environment.glob("lib/python*/site-packages/llama_cpp/lib"))
        if not folders:
            sys.exit(f"error: no llama_cpp/lib in {environment}: make it with build_dump_llama_cpp.sh")
        self.base = ctypes.CDLL(folders[0] / "libggml-base.so")
        self.cpu = ctypes.CDLL(folders[0] / "libggml-cpu.so")
        self.cpu.ggml_cpu_init()
        sets = ["avx2", "fma", "f16c", "avx512", "avx512_vnni", "avx_vnni"]
        found = [name for name in sets if getattr(self.cpu, f"ggml_cpu_has_{name}")()]
        if found != ["avx2", "fma", "f16c"]:
            sys.exit(f"error: this libggml was built for {found}, not for avx2, fma and f16c: use GGML_NATIVE=OFF")
        cmake = next(folders[0].parent.parent.glob("lib/cmake/llama/llama-config.cmake")).read_text()
        values = dict(re.findall(r"^set\((LLAMA_VERSION|LLAMA_BUILD_COMMIT)\s+(\S+)\)", cmake, re.M))
        recipe = re.sub(r"#.*", "", (environment / "recipe").read_text())
        self.build = " ".join(["llama.cpp", *values.values(), *recipe.split()])

    def dequantize(self, name, rows, columns):
        out = np.zeros((len(rows), columns), np.float32)
        function = getattr(self.base, f"dequantize_row_{name}")
        function(pointer(rows), pointer(out), ctypes.c_int64(out.size))
        return out

    def quantize(self, name, values):
        plain = {"f32": "ggml_cpu_fp32_to_fp32", "f16": "ggml_cpu_fp32_to_fp16", "bf16": "ggml_cpu_fp32_to_bf16"}
        function = getattr(self.cpu, plain.get(name, f"quantize_row_{name}"))
        out = np.zeros((len(values), int(values.shape[1] * ACTIVATION_BYTES[name])), np.uint8)
        for row, quantised in zip(values, out):
            function(pointer(row), pointer(quantised), ctypes.c_int64(row.size))
        return out

    def dot(self, function, length, weights, activations):
        function = getattr(self.cpu, f"ggml_vec_dot_{function}")
        out = np.zeros((len(weights), len(activations)), np.float32)
        zero, one = ctypes.c_size_t(0), ctypes.c_int(1)
        for i, row in enumerate(weights):
            for j, activation in enumerate(activations):
                function(
                    ctypes.c_int(length), pointer(out[i, j:]), zero, pointer(row), zero, pointer(activation), zero, one
                )
        return out

    def product(self, kind, weights, inputs):
        """`inputs` times the transposed matrix, as a graph of one node."""
        context = self.function("ggml_init")(InitParams(16 << 20, None, False))
        new_tensor = self.function("ggml_new_tensor_2d", ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        get_data = self.function("ggml_get_data")
        w = new_tensor(context, int(kind), inputs.shape[1], len(weights))
        x = new_tensor(context, int(Type.F32), inputs.shape[1], len(inputs))
        ctypes.memmove(get_data(w), pointer(weights), weights.nbytes)
        ctypes.memmove(get_data(x), pointer(inputs), inputs.nbytes)
        node = ctypes.c_void_p(self.function("ggml_mul_mat", ctypes.c_void_p, ctypes.c_void_p)(context, w, x))
        graph = ctypes.c_void_p(self.function("ggml_new_graph")(context))
        self.base.ggml_build_forward_expand(graph, node)
        status = self.cpu.ggml_graph_compute_with_ctx(ctypes.c_void_p(context), graph, ctypes.c_int(1))
        assert status == 0
        out = np.zeros((len(inputs), len(weights)), np.float32)
        ctypes.memmove(pointer(out), get_data(node), out.nbytes)
        self.base.ggml_free(ctypes.c_void_p(context))
        return out

    def function(self, name, *arguments):
        """A function that takes a pointer (or what creates one) first, and gives one back."""
        function = getattr(self.base, name)
        function.argtypes = [InitParams if name == "ggml_init" else ctypes.c_void_p, *arguments]
        function.restype = ctypes.c_void_p
        return function


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def pointer(array):
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


def activations(random):
    """Rows of f32: ordinary ones of several sizes, and the edges of quantising."""
    gauss = lambda: random.standard_normal(COLUMNS).astype(np.float32)
    block = np.arange(COLUMNS) // 32
    # Codes that lie halfway between two integers where 127 / max is a power of two.
    ties = ((np.arange(COLUMNS) % 64) - 32 + 0.5).astype(np.float32)
    ties[::32] = 127
    mixed = np.where(block % 3 == 0, 0, gauss()).astype(np.float32)
    mixed[block % 8 == 7] = -0.0
    signs = np.where(random.integers(0, 2, COLUMNS) == 0, -3.0, 3.0).astype(np.float32)
    wide = (gauss() * np.exp2(random.integers(-20, 10, COLUMNS))).astype(np.float32)
    tiny = (gauss() * np.float32(1e-39)).astype(np.float32)
    infinite = gauss()
    infinite[5], infinite[300] = np.inf, -np.inf
    nan = gauss()
    nan[[0, 40, 77, 300, 767]] = np.nan
    rows = [gauss(), gauss() * 50, ties, mixed, signs, wide, gauss() * np.float32(1e-7), tiny, infinite, nan]
    return np.stack(rows).astype(np.float32)


def put_scales(blocks, at, scales):
    """Writes the f16 scale of each block."""
    if at != SPREAD:
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(len(blocks), 2)
        return
    for word in range(4):
        high = blocks[:, 2 * word - 7]
        high[:] = high & 0x0F | (scales.view(np.uint16) >> (4 * word) & 0x0F).astype(np.uint8) << 4


def random_blocks(random, count, size, scales):
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    for at in scales:
        values = (random.standard_normal(count) * np.exp2(random.integers(-10, 1, count))).astype(np.float16)
        put_scales(blocks, at, values)
    if not scales:
        blocks[:, 0] = random.integers(110, 135, count)
    return blocks


def edge_blocks(random, count, size, scales):
    blocks = np.zeros((count, size), np.uint8)
    for i in range(count):
        blocks[i] = EDGE_CODES[i % len(EDGE_CODES)] if i % 3 else random.integers(0, 256, size)
        for k, at in enumerate(scales):
            put_scales(blocks[i : i + 1], at, EDGE_SCALES[[(i * (k + 1) + k) % len(EDGE_SCALES)]])
        if not scales:
            blocks[i, 0] = EDGE_EXPONENTS[i % len(EDGE_EXPONENTS)]
    return blocks


def rows_of_blocks(random, kind, scales):
    length, size = SIZES[kind]
    per_row = COLUMNS // length
    ordinary = random_blocks(random, RANDOM_ROWS * per_row, size, scales)
    edges = edge_blocks(random, EDGE_ROWS * per_row, size, scales)
    return np.concatenate([ordinary, edges]).reshape(-1, per_row * size)


def products(ggml, kind, weights, inputs):
    whole = {f"product.{tokens}": ggml.product(kind, weights, inputs[:tokens]) for tokens in TOKENS}
    ragged = {f"ragged.{tokens}": ggml.product(kind, weights[:-1], inputs[:tokens]) for tokens in TOKENS}
    return {**whole, **ragged}


def decoded_by_gguf(weights, kind, otherwise):
    """The values as the gguf package decodes them; it cannot decode every type."""
    try:
        with np.errstate(all="ignore"):
            return gguf.quants.dequantize(weights, kind)
    except NotImplementedError as error:
        print(f"{kind.name}: values only from ggml: the gguf package says '{error}'")
        return otherwise


def block_vectors(ggml, random, kind, inputs, quantised):
    name, activation, scales = BLOCKS[kind]
    weights = rows_of_blocks(random, kind, scales)
    values = ggml.dequantize(name, weights, COLUMNS)
    if not np.array_equal(decoded_by_gguf(weights, kind, values).view(np.uint32), values.view(np.uint32)):
        sys.exit(f"error: the gguf package and ggml decode {name} differently")
    lengths = {32: SMALL_LENGTHS, 256: LARGE_LENGTHS}.get(SIZES[kind][0], MIDDLE_LENGTHS)
    function = f"{name}_{activation}"
    dots = {f"dot.{n}": ggml.dot(function, n, weights, quantised[activation]) for n in lengths}
    return {"weights": weights, "values": values, **dots, **products(ggml, kind, weights, inputs)}


def plain_vectors(ggml, random, kind, inputs, quantised):
    name = PLAIN[kind]
    values = random.standard_normal((RANDOM_ROWS, COLUMNS)).astype(np.float32)
    values[1] *= 1e-3
    values[2] *= 1e4 if name == "f16" else 1e30
    values[3, ::2], values[3, 1::2] = 0.0, -0.0
    values[4] *= 1e-6 if name == "f16" else 1e-40
    weights = ggml.quantize(name, values)
    dots = {f"dot.{n}": ggml.dot(name, n, weights, quantised[name]) for n in PLAIN_LENGTHS}
    values = gguf.quants.dequantize(weights, kind)
    return {"weights": weights, "values": values, **dots, **products(ggml, kind, weights, inputs)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ggml", type=Path, required=True, help="the environment of build_dump_llama_cpp.sh")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[2] / "tests/data/quant")
    options = parser.parse_args()

    ggml = Ggml(options.ggml)
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ["gguf", "numpy"])
    # One entry: several would be written in any order, and the file would be another each time.
    metadata = {"made_with": f"values: {packages}; activations, dots, products: {ggml.build}"}
    options.out.mkdir(parents=True, exist_ok=True)

    inputs = activations(np.random.default_rng(1))
    quantised = {name: ggml.quantize(name, inputs) for name in ACTIVATION_BYTES}
    save_file({"input": inputs, **quantised}, options.out / "activations.safetensors", metadata)
    for kind, name in PLAIN.items():
        vectors = plain_vectors(ggml, np.random.default_rng(2), kind, inputs, quantised)
        save_file(vectors, options.out / f"{name}.safetensors", metadata)
    for kind in BLOCKS:
        vectors = block_vectors(ggml, np.random.default_rng(int(kind)), kind, inputs, quantised)
        save_file(vectors, options.out / f"{kind.name.lower()}.safetensors", metadata)
    print(f"{metadata}\nwrote {options.out}")


if __name__ == "__main__":
    main()
