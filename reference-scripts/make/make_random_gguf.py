#!/usr/bin/env python3
"""Writes a model of a known shape with random weights as GGUF, something to time: a Llama with Q8_0 weights, for us and for
llama.cpp, or a BitNet with I2_S weights.

Every layer has the same bytes, at places of their own: a run reads as much memory as it would of the real model, and
the file is made in the time that writing takes. There is no vocabulary, only its size.

Needs gguf and numpy (requirements.txt). For another type than Q8_0 (--type) llama.cpp's own quantiser takes the Q8_0 file,
with an environment of build_dump_llama_cpp.sh (requirements-llama-cpp.txt).
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np

BLOCK_LEN, BLOCK_BYTES = 32, 34
I2_S = 36  # bitnet.cpp's number for the type


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied: bool
    theta: float
    bitnet: bool = False

    @property
    def architecture(self) -> str:
        return "bitnet-b1.58" if self.bitnet else "llama"


SHAPES = {
    "1b": Shape(2048, 16, 32, 8, 8192, 128256, True, 500_000.0),  # Llama 3.2 1B
    "7b": Shape(4096, 32, 32, 32, 11008, 32000, False, 10_000.0),  # Llama 2 7B
    "70b": Shape(8192, 80, 64, 8, 28672, 128256, False, 500_000.0),  # Llama 3 70B
    "bitnet": Shape(2560, 30, 20, 5, 6912, 128256, True, 500_000.0, True),  # bitnet-b1.58-2B-4T
    "bitnet-500m": Shape(1536, 18, 12, 4, 4096, 32768, True, 500_000.0, True),  # 504 M parameters: no published model
}


def blocks(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """A matrix of Q8_0 blocks whose values have a deviation of about 1/sqrt(columns)."""
    made = random.integers(0, 256, (rows, columns // BLOCK_LEN, BLOCK_BYTES), dtype=np.uint8)
    scale = np.float16(1 / (columns**0.5 * 74))  # 74: the deviation of a random byte
    made[:, :, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    return made.reshape(rows, -1)


def i2_s(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """A ternary matrix as bitnet.cpp stores it: codes 0 to 2 in two bits each, then an f32 scale and 28 bytes of filling."""
    codes = random.integers(0, 3, (4, rows * columns // 4), dtype=np.uint8)
    packed = codes[0] << 6 | codes[1] << 4 | codes[2] << 2 | codes[3]
    scale = np.float32((1.5 / columns) ** 0.5)  # a product's deviation is then that of its activations
    return np.concatenate([packed, np.frombuffer(scale.tobytes(), np.uint8), np.zeros(28, np.uint8)])


def halves(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """An F16 embedding table."""
    return (random.standard_normal((rows, columns), dtype=np.float32) / columns**0.5).astype(np.float16)


def add_metadata(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(4096)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.hidden // shape.heads)
    writer.add_rope_freq_base(shape.theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(40 if shape.bitnet else gguf.LlamaFileType.MOSTLY_Q8_0)


def add_bitnet_tensors(writer: gguf.GGUFWriter, shape: Shape, random: np.random.Generator) -> None:
    """The gguf package knows no I2_S: its entries of the header are made here."""
    kv_width = shape.hidden // shape.heads * shape.kv_heads
    matrices = {
        "attn_q": (shape.hidden, shape.hidden),
        "attn_k": (kv_width, shape.hidden),
        "attn_v": (kv_width, shape.hidden),
        "attn_output": (shape.hidden, shape.hidden),
        "ffn_gate": (shape.ffn, shape.hidden),
        "ffn_up": (shape.ffn, shape.hidden),
        "ffn_down": (shape.hidden, shape.ffn),
    }
    norms = {"attn_norm": shape.hidden, "attn_sub_norm": shape.hidden, "ffn_norm": shape.hidden, "ffn_sub_norm": shape.ffn}
    layer = {name: (i2_s(random, *size), size) for name, size in matrices.items()}

    def matrix(name: str, data: np.ndarray, size: tuple[int, int]) -> None:
        writer.add_tensor(f"{name}.weight", data, raw_shape=(len(data),), raw_dtype=gguf.GGMLQuantizationType.I8)
        info = writer.tensors[-1][f"{name}.weight"]
        info.shape, info.dtype = size, I2_S

    writer.add_tensor("token_embd.weight", halves(random, shape.vocab, shape.hidden))
    for index in range(shape.layers):
        for name, size in norms.items():
            writer.add_tensor(f"blk.{index}.{name}.weight", np.ones(size, np.float32))
        for name, (data, size) in layer.items():
            matrix(f"blk.{index}.{name}", data, size)
    writer.add_tensor("output_norm.weight", np.ones(shape.hidden, np.float32))


def add_tensors(writer: gguf.GGUFWriter, shape: Shape, random: np.random.Generator) -> None:
    kv_width = shape.hidden // shape.heads * shape.kv_heads
    layer = {
        "attn_q": blocks(random, shape.hidden, shape.hidden),
        "attn_k": blocks(random, kv_width, shape.hidden),
        "attn_v": blocks(random, kv_width, shape.hidden),
        "attn_output": blocks(random, shape.hidden, shape.hidden),
        "ffn_gate": blocks(random, shape.ffn, shape.hidden),
        "ffn_up": blocks(random, shape.ffn, shape.hidden),
        "ffn_down": blocks(random, shape.hidden, shape.ffn),
    }
    ones = np.ones(shape.hidden, np.float32)
    table = blocks(random, shape.vocab, shape.hidden)

    def matrix(name: str, data: np.ndarray) -> None:
        writer.add_tensor(f"{name}.weight", data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    matrix("token_embd", table)
    for index in range(shape.layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{index}.{norm}.weight", ones)
        for name, data in layer.items():
            matrix(f"blk.{index}.{name}", data)
    writer.add_tensor("output_norm.weight", ones)
    if not shape.tied:
        matrix("output", table)


def write_sparse(writer: gguf.GGUFWriter) -> None:
    """The tensors of the file, but of all layers after the first only the norms: the rest is a hole, which reads as zeros
    and takes no room on the disk."""
    writer.write_ti_data_to_file()
    file = writer.fout[0]
    alignment = writer.data_alignment
    position = -(-file.tell() // alignment) * alignment
    for name, info in writer.tensors[0].items():
        if "norm" in name or not name.startswith("blk.") or name.startswith("blk.0."):
            file.seek(position)
            info.tensor.tofile(file)
        position += -(-info.nbytes // alignment) * alignment
    file.truncate(position)


def requantise(path: Path, name: str) -> None:
    """The same file by llama.cpp's mixture of that name."""
    import ctypes

    import llama_cpp as cpp

    params = cpp.llama_model_quantize_default_params()
    params.ftype = getattr(cpp, f"LLAMA_FTYPE_MOSTLY_{name.upper()}")
    params.allow_requantize = True
    whole = path.rename(path.with_suffix(".q8_0"))
    failed = cpp.llama_model_quantize(str(whole).encode(), str(path).encode(), ctypes.byref(params))
    whole.unlink()
    if failed:
        raise SystemExit(f"llama.cpp does not make {name} of it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, required=True, help="1b: 1.3 GB, 7b: 7.2 GB, 70b: 75 GB, bitnet: 1.2 GB")
    parser.add_argument("--out", type=Path, required=True, help="outside of the repository, for its size")
    parser.add_argument("--type", default="q8_0", help="of a Llama: q8_0, or one of llama.cpp's mixtures, such as q4_k_m")
    parser.add_argument("--layers", type=int, help="number of layers [default: that of the model]")
    parser.add_argument("--sparse", action="store_true", help="every layer but the first is a hole in the file, all zero")
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    shape = replace(shape, layers=args.layers or shape.layers)
    writer = gguf.GGUFWriter(args.out, shape.architecture)
    writer.add_name(f"random-{args.shape}")
    add_metadata(writer, shape)
    add = add_bitnet_tensors if shape.bitnet else add_tensors
    add(writer, shape, np.random.default_rng(0))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    if args.sparse:
        write_sparse(writer)
    else:
        writer.write_tensors_to_file()
    writer.close()
    if args.type != "q8_0":
        requantise(args.out, args.type)


if __name__ == "__main__":
    main()
