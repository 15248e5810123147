"""Writes tests/data/formats: a small Llama in every block format, and what llama.cpp computes with each file.

One random model of two sizes (formats with blocks of 256 need rows of 256) is quantised by llama.cpp's own quantiser
to one type throughout, the tied embedding and head included, and once more to the mixture Q4_K_M. Types that need an
importance matrix get one in which all columns are equal. `dump_llama_cpp` then
runs every file: a prompt of eight tokens, from which on ggml multiplies with other kernels, and one pass of a token.
"""

import argparse
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import LlamaFileType as FileType

SEED = 5
PROMPT = [3, 17, 30, 8, 25, 1, 12, 21]
DECODE = 1
VOCABULARY = 32
HEAD_SIZE = 32
NORM_NOISE = 0.3
EMBEDDING_SIZE = 0.1  # RMS: small, or the tied head would see nothing but the last token
EPSILON = 1e-5
LEAST_MARGIN = 0.02  # of a greedy choice over the next logit

# Runs inside the environment of build_dump_llama_cpp.sh, which has llama.cpp's quantiser.
QUANTISE = """
import ctypes, json, sys, llama_cpp
source, out, file_type, pure, override, columns = sys.argv[1:]
params = llama_cpp.llama_model_quantize_default_params()
params.ftype, params.pure, params.nthread = int(file_type), pure == "True", 1
columns = json.loads(columns)
importance = (llama_cpp.llama_model_imatrix_data * (len(columns) + 1))()
for entry, (name, count) in zip(importance, columns.items()):
    entry.name, entry.data, entry.size = name.encode(), (ctypes.c_float * count)(*[1.0] * count), count
if columns:
    params.imatrix = ctypes.cast(importance, ctypes.POINTER(llama_cpp.llama_model_imatrix_data))
types = (llama_cpp.llama_model_tensor_override * 2)()
if override != "None":
    types[0].pattern, types[0].type = b".", int(override)
    params.tt_overrides = ctypes.cast(types, type(params.tt_overrides))
    params.token_embedding_type = params.output_tensor_type = int(override)
sys.exit(llama_cpp.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(params)))
"""


@dataclass(frozen=True)
class Format:
    """One file: the matrices' types, and how many numbers a row has."""

    file_type: int
    width: int
    types: tuple[int, ...]
    layers: int = 1
    needs_importance: bool = False
    # Type of all matrices, if no file type stands for it.
    override: Type | None = None

    @property
    def is_pure(self) -> bool:
        return len(self.types) == 1


# F16 is in checkpoints/.
FORMATS = {
    "bf16": Format(FileType.MOSTLY_BF16, 128, (Type.BF16,)),
    "q4_0": Format(FileType.MOSTLY_Q4_0, 128, (Type.Q4_0,)),
    "q4_1": Format(FileType.MOSTLY_Q4_1, 128, (Type.Q4_1,)),
    "q5_0": Format(FileType.MOSTLY_Q5_0, 128, (Type.Q5_0,)),
    "q5_1": Format(FileType.MOSTLY_Q5_1, 128, (Type.Q5_1,)),
    "q8_0": Format(FileType.MOSTLY_Q8_0, 128, (Type.Q8_0,)),
    "iq4_nl": Format(FileType.MOSTLY_IQ4_NL, 128, (Type.IQ4_NL,)),
    "mxfp4": Format(FileType.MOSTLY_MXFP4_MOE, 128, (Type.MXFP4,)),
    "q2_k": Format(FileType.MOSTLY_Q2_K, 256, (Type.Q2_K,)),
    "q3_k": Format(FileType.MOSTLY_Q3_K_M, 256, (Type.Q3_K,)),
    "q4_k": Format(FileType.MOSTLY_Q4_K_M, 256, (Type.Q4_K,)),
    "q5_k": Format(FileType.MOSTLY_Q5_K_M, 256, (Type.Q5_K,)),
    "q6_k": Format(FileType.MOSTLY_Q6_K, 256, (Type.Q6_K,)),
    "iq4_xs": Format(FileType.MOSTLY_IQ4_XS, 256, (Type.IQ4_XS,)),
    "tq1_0": Format(FileType.MOSTLY_TQ1_0, 256, (Type.TQ1_0,)),
    "tq2_0": Format(FileType.MOSTLY_TQ2_0, 256, (Type.TQ2_0,)),
    "iq3_xxs": Format(FileType.MOSTLY_IQ3_XXS, 256, (Type.IQ3_XXS,), needs_importance=True),
    "iq3_s": Format(FileType.MOSTLY_IQ3_S, 256, (Type.IQ3_S,)),
    "iq2_xxs": Format(FileType.MOSTLY_IQ2_XXS, 256, (Type.IQ2_XXS,), needs_importance=True),
    "iq2_xs": Format(FileType.MOSTLY_IQ2_XS, 256, (Type.IQ2_XS,), needs_importance=True),
    "iq2_s": Format(FileType.MOSTLY_IQ2_M, 256, (Type.IQ2_S,), needs_importance=True),
    "iq1_s": Format(FileType.MOSTLY_IQ1_S, 256, (Type.IQ1_S,), needs_importance=True),
    "iq1_m": Format(FileType.MOSTLY_IQ1_M, 256, (Type.IQ1_M,), needs_importance=True),
    "q1_0": Format(FileType.MOSTLY_Q1_0, 128, (Type.Q1_0,)),
    "q2_0": Format(41, 128, (42,)),  # gguf has no names for them yet
    "nvfp4": Format(FileType.MOSTLY_Q8_0, 128, (Type.NVFP4,), override=Type.NVFP4),
    # The head and half of the layers' v and ffn_down become Q6_K.
    "q4_k_m": Format(FileType.MOSTLY_Q4_K_M, 256, (Type.Q4_K, Type.Q6_K), layers=2),
}


def shapes(width: int, layers: int, head_size: int = HEAD_SIZE) -> dict[str, tuple[int, ...]]:
    """Every tensor: outputs x inputs, or the length of a norm."""
    square, narrow = (width, width), (head_size, width)  # one key-value head
    matrices = {"attn_q": square, "attn_k": narrow, "attn_v": narrow, "attn_output": square}
    matrices |= {"ffn_gate": square, "ffn_up": square, "ffn_down": square}
    layer = {"attn_norm": (width,), "ffn_norm": (width,)} | matrices
    blocks = {f"blk.{i}.{name}": shape for i in range(layers) for name, shape in layer.items()}
    return {"token_embd": (VOCABULARY, width), **blocks, "output_norm": (width,)}


def weight(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A norm's weight around 1, or a matrix of which a unit-RMS input makes unit-RMS outputs."""
    noise = random.standard_normal(shape)
    if len(shape) == 1:
        return (1 + NORM_NOISE * noise).astype(np.float32)
    size = EMBEDDING_SIZE if name == "token_embd" else shape[1] ** -0.5
    return (size * noise).astype(np.float32)


def write_f32(out: Path, width: int, layers: int, head_size: int = HEAD_SIZE) -> None:
    """The model that all are quantised from."""
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_name(f"tiny llama of width {width}")
    writer.add_file_type(FileType.ALL_F32)
    writer.add_vocab_size(VOCABULARY)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(width)
    writer.add_head_count(width // head_size)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(head_size)
    writer.add_tokenizer_model("no_vocab")
    random = np.random.default_rng(SEED)
    for name, shape in shapes(width, layers, head_size).items():
        writer.add_tensor(f"{name}.weight", weight(random, name, shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run(*words: object) -> None:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {words[0]} ended with status {done.returncode}:\n{done.stderr}")


def check_types(file: Path, wanted: tuple[int, ...]) -> None:
    """llama.cpp's quantiser puts another type where one does not fit."""
    if not set(wanted) <= set(Type):
        return print(f"{file.name}: gguf cannot read its types: `cargo test formats::` checks them")
    tensors = gguf.GGUFReader(file).tensors
    matrices = {tensor.tensor_type for tensor in tensors if len(tensor.shape) == 2 and tensor.shape[1] > 1}
    if matrices != set(wanted):
        sys.exit(f"error: {file.name}: the matrices are {matrices}, not {wanted}")


def check_margins(dump: Path) -> None:
    """A greedy choice that hangs by a rounding error would test nothing."""
    from safetensors.numpy import load_file

    tensors = load_file(dump)
    for number in range(DECODE + 1):
        second, first = np.sort(tensors[f"p{number}/last_logits"])[-2:]
        if first - second < LEAST_MARGIN:
            sys.exit(f"error: {dump.name}: pass {number}: the two largest logits are {first - second} apart")


def make(name: str, form: Format, environment: Path, source: Path, out: Path) -> None:
    file, dump = out / f"{name}.gguf", out / "dumps" / f"{name}.safetensors"
    matrices = {name: shape for name, shape in shapes(form.width, form.layers).items() if len(shape) == 2}
    columns = {f"{name}.weight": shape[1] for name, shape in matrices.items()} if form.needs_importance else {}
    override = None if form.override is None else int(form.override)
    words = [source, file, int(form.file_type), form.is_pure, override, json.dumps(columns)]
    run(environment / "bin/python", "-c", QUANTISE, *words)
    check_types(file, form.types)
    tokens = ",".join(map(str, PROMPT))
    program = environment / "bin/dump_llama_cpp"
    run(program, "--model", file, "--tokens", tokens, "--decode", DECODE, "--threads", 1, "--out", dump)
    check_margins(dump)
    print(f"{file.name}: {file.stat().st_size // 1024} KiB, dump {dump.stat().st_size // 1024} KiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=Path, required="--plain" not in sys.argv, help="the environment of build_dump_llama_cpp.sh")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[2] / "tests/data/formats")
    parser.add_argument("--format", choices=FORMATS, nargs="*", default=list(FORMATS), help="only these")
    parser.add_argument("--plain", type=Path, help="only write a model of one head of 128 values in F32 to this file")
    options = parser.parse_args()

    if options.plain:
        return write_f32(options.plain, 128, 1, 128)
    (options.out / "dumps").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.format:
            form = FORMATS[name]
            source = Path(folder) / f"{form.width}-{form.layers}.gguf"
            if not source.exists():
                write_f32(source, form.width, form.layers)
            make(name, form, options.llama_cpp, source, options.out)
    recipe = " ".join(re.sub(r"#.*", "", (options.llama_cpp / "recipe").read_text()).split())
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ["gguf", "numpy"])
    (options.out / "MADE_WITH").write_text(f"weights: {packages}; quantised and run by llama.cpp: {recipe}\n")


if __name__ == "__main__":
    main()
