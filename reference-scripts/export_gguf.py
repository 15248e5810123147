#!/usr/bin/env python3
"""Writes a Hugging Face Llama or Qwen3 directory as one GGUF file, as llama.cpp reads it.

The directory holds config.json, the weights (float32 or float16) as model.safetensors or in shards, and
tokenizer.model (SentencePiece BPE), for which another file may stand in.
Matrices take the type asked for; norms stay F32, as llama.cpp's own tools leave them.
"""

import argparse
import math
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, LlamaFileType, TokenType
from safetensors.numpy import load_file
from sentencepiece import SentencePieceProcessor
from transformers import AutoConfig, PreTrainedConfig

# By the `model_type` of config.json.
ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen3": gguf.MODEL_ARCH.QWEN3}
ROPE_TYPES = ("default", "llama3")

# --type: the type of every matrix, and what general.file_type calls such a file.
MATRIX_TYPES = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}


def interleave_rope_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorders the rows of a q or k projection, heads*D x hidden, within each head.

    transformers rotates the pairs (i, i + D/2), llama.cpp's llama (2i, 2i + 1): row i of a half-split
    head goes to row 2i, row i + D/2 to row 2i + 1.
    """
    rows, hidden = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, hidden)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, hidden)


def to_gguf_layout(name: str, weight: np.ndarray, config: PreTrainedConfig) -> np.ndarray:
    """The weight as llama.cpp wants its rows; only Llama's q and k projections differ."""
    if config.model_type != "llama":
        return weight
    if name.endswith("self_attn.q_proj.weight"):
        return interleave_rope_pairs(weight, config.num_attention_heads)
    if name.endswith("self_attn.k_proj.weight"):
        return interleave_rope_pairs(weight, config.num_key_value_heads)
    return weight


def rope_factors(config: PreTrainedConfig) -> np.ndarray:
    """What llama.cpp divides each RoPE frequency by, D/2 of them: Llama 3.1's scaling.

    Wavelengths up to original context / high_freq_factor stay, those from original context / low_freq_factor on
    become `factor` times as long, and between the two the frequency is interpolated.
    """
    rope = config.rope_parameters
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    exponents = np.arange(0, config.head_dim, 2) / config.head_dim
    turns = rope["original_max_position_embeddings"] * rope["rope_theta"] ** -exponents / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / (kept + (1 - kept) / rope["factor"])).astype(np.float32)


def token_type(tokenizer: SentencePieceProcessor, token: int) -> TokenType:
    """The GGUF type of one SentencePiece id."""
    if tokenizer.IsUnknown(token):
        return TokenType.UNKNOWN
    if tokenizer.IsControl(token):
        return TokenType.CONTROL
    if tokenizer.IsByte(token):
        return TokenType.BYTE
    return TokenType.NORMAL


def add_hyperparameters(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The llama.* or qwen3.* keys: those that llama.cpp's own converter writes too."""
    if config.model_type == "llama":
        writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if config.model_type == "llama":
        writer.add_rope_dimension_count(config.head_dim)
    if config.head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: SentencePieceProcessor) -> None:
    """The tokenizer.ggml.* keys of a SentencePiece BPE vocabulary."""
    ids = range(tokenizer.vocab_size())
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([tokenizer.IdToPiece(token) for token in ids])
    writer.add_token_scores([tokenizer.GetScore(token) for token in ids])
    writer.add_token_types([token_type(tokenizer, token) for token in ids])
    writer.add_bos_token_id(tokenizer.bos_id())
    writer.add_eos_token_id(tokenizer.eos_id())
    writer.add_unk_token_id(tokenizer.unk_id())
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)


def weight_files(model: Path) -> list[Path]:
    """model.safetensors, or its shards."""
    return sorted(model.glob("model.safetensors")) or sorted(model.glob("model-*-of-*.safetensors"))


def add_tensors(
    writer: gguf.GGUFWriter, weights: list[Path], config: PreTrainedConfig, matrix_type: GGMLQuantizationType
) -> None:
    """Every tensor of the safetensors files, under llama.cpp's name for it, and RoPE's scaling if there is one."""
    names = gguf.get_tensor_name_map(ARCHITECTURES[config.model_type], config.num_hidden_layers)
    tensors = {name: weight for path in weights for name, weight in load_file(path).items()}
    if config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(config))
    for name, weight in sorted(tensors.items()):
        weight = to_gguf_layout(name, weight.astype(np.float32), config)
        tensor_type = matrix_type if weight.ndim == 2 else GGMLQuantizationType.F32
        stored = gguf.quants.quantize(weight, tensor_type)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), stored, raw_dtype=tensor_type)


def export(model: Path, type_name: str, out: Path, name: str, tokenizer: Path) -> None:
    """Writes `model`, a Hugging Face directory, with `tokenizer`, a SentencePiece file, to the GGUF file `out`."""
    config = AutoConfig.from_pretrained(model)
    if config.model_type not in ARCHITECTURES:
        sys.exit(f"error: {model}: a {config.model_type} model; only {' and '.join(ARCHITECTURES)} can be exported")
    if config.rope_parameters["rope_type"] not in ROPE_TYPES:
        sys.exit(f"error: {model}: RoPE scaling {config.rope_parameters['rope_type']!r} is not supported")
    matrix_type, file_type = MATRIX_TYPES[type_name]
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config.model_type]])
    writer.add_name(name)
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_hyperparameters(writer, config)
    add_tokenizer(writer, SentencePieceProcessor(model_file=str(tokenizer)))
    add_tensors(writer, weight_files(model), config, matrix_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face Llama or Qwen3 directory")
    parser.add_argument("--type", choices=MATRIX_TYPES, required=True, help="type of the matrices")
    parser.add_argument("--out", type=Path, required=True, help="GGUF file to write")
    parser.add_argument("--tokenizer", type=Path, help="SentencePiece file (default: the directory's tokenizer.model)")
    parser.add_argument("--name", help="general.name (default: the directory's name)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    model, tokenizer = arguments.model, arguments.tokenizer or arguments.model / "tokenizer.model"
    for required in (model / "config.json", tokenizer):
        if not required.is_file():
            sys.exit(f"error: {required}: no such file")
    if not weight_files(model):
        sys.exit(f"error: {model}: neither model.safetensors nor its shards are there")
    export(model, arguments.type, arguments.out, arguments.name or model.resolve().name, tokenizer)


if __name__ == "__main__":
    main()
