#!/usr/bin/env python3
"""Writes a Hugging Face Llama directory as one GGUF file, as llama.cpp reads it.

The directory holds config.json, model.safetensors (one file, float32 or float16) and tokenizer.model
(SentencePiece BPE).
Matrices take the type asked for; norms stay F32, as llama.cpp's own tools leave them.
"""

import argparse
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, LlamaFileType, TokenType
from safetensors.numpy import load_file
from sentencepiece import SentencePieceProcessor
from transformers import AutoConfig, LlamaConfig

ARCHITECTURE = gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.LLAMA]

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


def to_gguf_layout(name: str, weight: np.ndarray, config: LlamaConfig) -> np.ndarray:
    """The weight as llama.cpp wants its rows; only the q and k projections differ."""
    if name.endswith("self_attn.q_proj.weight"):
        return interleave_rope_pairs(weight, config.num_attention_heads)
    if name.endswith("self_attn.k_proj.weight"):
        return interleave_rope_pairs(weight, config.num_key_value_heads)
    return weight


def token_type(tokenizer: SentencePieceProcessor, token: int) -> TokenType:
    """The GGUF type of one SentencePiece id."""
    if tokenizer.IsUnknown(token):
        return TokenType.UNKNOWN
    if tokenizer.IsControl(token):
        return TokenType.CONTROL
    if tokenizer.IsByte(token):
        return TokenType.BYTE
    return TokenType.NORMAL


def add_hyperparameters(writer: gguf.GGUFWriter, config: LlamaConfig) -> None:
    """The llama.* keys."""
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
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


def add_tensors(writer: gguf.GGUFWriter, weights: Path, config: LlamaConfig, matrix_type: GGMLQuantizationType) -> None:
    """Every tensor of the safetensors file, under llama.cpp's name for it."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in sorted(load_file(weights).items()):
        weight = to_gguf_layout(name, weight.astype(np.float32), config)
        tensor_type = matrix_type if weight.ndim == 2 else GGMLQuantizationType.F32
        stored = gguf.quants.quantize(weight, tensor_type)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), stored, raw_dtype=tensor_type)


def export(model: Path, type_name: str, out: Path, name: str) -> None:
    """Writes `model`, a Hugging Face Llama directory, to the GGUF file `out`."""
    config = AutoConfig.from_pretrained(model)
    if config.model_type != "llama":
        sys.exit(f"error: {model}: a {config.model_type} model; only llama can be exported")
    if config.rope_parameters["rope_type"] != "default":
        sys.exit(f"error: {model}: RoPE scaling {config.rope_parameters['rope_type']!r} is not supported")
    matrix_type, file_type = MATRIX_TYPES[type_name]
    writer = gguf.GGUFWriter(out, ARCHITECTURE)
    writer.add_name(name)
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_hyperparameters(writer, config)
    add_tokenizer(writer, SentencePieceProcessor(model_file=str(model / "tokenizer.model")))
    add_tensors(writer, model / "model.safetensors", config, matrix_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face Llama directory")
    parser.add_argument("--type", choices=MATRIX_TYPES, required=True, help="type of the matrices")
    parser.add_argument("--out", type=Path, required=True, help="GGUF file to write")
    parser.add_argument("--name", help="general.name (default: the directory's name)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    for required in ("config.json", "model.safetensors", "tokenizer.model"):
        if not (arguments.model / required).is_file():
            sys.exit(f"error: {arguments.model / required}: no such file")
    export(arguments.model, arguments.type, arguments.out, arguments.name or arguments.model.resolve().name)


if __name__ == "__main__":
    main()
