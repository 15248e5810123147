#!/usr/bin/env python3
"""Writes a Hugging Face directory of a family that FAMILIES lists as one GGUF file, as llama.cpp reads it.

The directory holds config.json, the weights (float32 or float16) as model.safetensors or in shards, and
tokenizer.model (SentencePiece BPE; GPT-2: tokenizer.json), for which another file may stand in.
Matrices take the type asked for; norms, biases and learned positions stay F32, as llama.cpp's own tools leave them.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, LlamaFileType, TokenType
from safetensors.numpy import load_file
from sentencepiece import SentencePieceProcessor
from transformers import AutoConfig, PreTrainedConfig

# --type: the type of every matrix, and what general.file_type calls such a file.
MATRIX_TYPES = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "mxfp4": (GGMLQuantizationType.MXFP4, LlamaFileType.MOSTLY_MXFP4_MOE),  # experts; the other matrices Q8_0
}


# Tensors of two axes that are no matrices to multiply by.
F32_TENSORS = ("position_embd.weight",)
F32_PARTS = ("altup", "laurel", "per_layer_model_proj")  # as llama.cpp's quantisation leaves them
F32_ENDINGS = ("shortconv.conv.weight", "ssm_conv1d.weight", "ssm_norm.weight", "ssm_a", "ssm_d")


def interleave_rope_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorders the rows of a q or k projection, heads*D x hidden, or of its bias, within each head.

    transformers rotates the pairs (i, i + D/2), llama.cpp's llama (2i, 2i + 1): row i of a half-split
    head goes to row 2i, row i + D/2 to row 2i + 1.
    """
    rows = weight.shape[0]
    halves = weight.reshape(heads, 2, rows // heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def llama_layout(name: str, weight: np.ndarray, config: PreTrainedConfig) -> np.ndarray:
    """A Llama weight as llama.cpp wants its rows: only the q and k projections differ."""
    if name.endswith(("self_attn.q_proj.weight", "self_attn.q_proj.bias")):
        return interleave_rope_pairs(weight, config.num_attention_heads)
    if name.endswith(("self_attn.k_proj.weight", "self_attn.k_proj.bias")):
        return interleave_rope_pairs(weight, config.num_key_value_heads)
    return weight


def same_layout(name: str, weight: np.ndarray, config: PreTrainedConfig) -> np.ndarray:
    """The weight as it is."""
    return weight


def gemma_layout(name: str, weight: np.ndarray, config: PreTrainedConfig) -> np.ndarray:
    """A Gemma weight for llama.cpp, which multiplies by a norm's weight where Gemma multiplies by 1 + weight."""
    return weight + 1 if name.endswith("norm.weight") else weight


def gpt2_layout(name: str, weight: np.ndarray, config: PreTrainedConfig) -> np.ndarray:
    """A GPT-2 weight: its Conv1D keeps matrices as inputs x outputs, llama.cpp as outputs x inputs."""
    conv1d = name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))
    return np.ascontiguousarray(weight.T) if conv1d else weight


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


def add_sizes(
    writer: gguf.GGUFWriter,
    config: PreTrainedConfig,
    ffn_size: int | list[int] | None = None,
    kv_heads: int | list[int] | None = None,
) -> None:
    """Writes the sizes that most architectures have, as llama.cpp's own converter does."""
    writer.add_context_length(getattr(config, "max_position_embeddings", None) or config.seq_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(ffn_size or config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(kv_heads or getattr(config, "num_key_value_heads", config.num_attention_heads))
    for key in ("norm_epsilon", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"):
        if hasattr(config, key):
            writer.add_layer_norm_eps(getattr(config, key))
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def add_head_size(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The head size, where it is not hidden size / heads."""
    if config.head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)


def add_expert_sizes(writer: gguf.GGUFWriter, count: int, used: int, size: int | None = None) -> None:
    """Writes the number of experts, the number that a token uses, and their size if it differs from other feed-forward blocks."""
    writer.add_expert_count(count)
    writer.add_expert_used_count(used)
    if size is not None:
        writer.add_expert_feed_forward_length(size)


def add_llama(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The llama.* keys."""
    writer.add_vocab_size(config.vocab_size)
    add_sizes(writer, config)
    writer.add_rope_dimension_count(config.head_dim)
    add_head_size(writer, config)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def add_qwen2(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The qwen2.* keys."""
    add_sizes(writer, config)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def add_yarn(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """YaRN's keys, if the model has it."""
    rope = config.rope_parameters
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def add_ministral3(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The mistral3.* keys."""
    add_llama(writer, config)
    add_yarn(writer, config)
    rope = config.rope_parameters
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def add_qwen3(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The qwen3.* keys."""
    add_sizes(writer, config)
    add_head_size(writer, config)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    add_yarn(writer, config)


def add_mixtral(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The llama.* keys of a Llama with experts."""
    writer.add_vocab_size(config.vocab_size)
    add_sizes(writer, config)
    writer.add_rope_dimension_count(head_size(config))
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    add_expert_sizes(writer, config.num_local_experts, config.num_experts_per_tok)


def add_qwen3_moe(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The qwen3moe.* keys."""
    add_qwen3(writer, config)
    add_expert_sizes(writer, config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size)


def add_qwen2_moe(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The qwen2moe.* keys."""
    add_qwen2(writer, config)
    add_expert_sizes(writer, config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def add_qwen3_next(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The qwen3next.* keys."""
    add_qwen2_moe(writer, config)
    add_delta_rule(writer, config)


def add_qwen35(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The qwen35.* and qwen35moe.* keys; in a text, a token has the same position in all sections of RoPE."""
    add_sizes(writer, config, getattr(config, "moe_intermediate_size", None))
    if hasattr(config, "num_experts"):
        add_expert_sizes(writer, config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_sections([*config.rope_parameters["mrope_section"], 0])
    add_delta_rule(writer, config)


def add_delta_rule(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The keys of linear attention with a gated delta rule, and of heads."""
    add_head_size(writer, config)
    writer.add_rope_dimension_count(int(config.head_dim * config.rope_parameters["partial_rotary_factor"]))
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    writer.add_full_attention_interval(config.layer_types.index("full_attention") + 1)


# Parts of linear attention that have rows for each value head; the last part has columns for each.
OF_VALUE_HEADS = ("in_proj_z.weight", "in_proj_b.weight", "in_proj_a.weight", "A_log", "dt_bias", "out_proj.weight")


def tiled_heads(tensors: dict[str, np.ndarray], config: PreTrainedConfig) -> dict[str, np.ndarray]:
    """Linear attention of Qwen 3.5 with the first value head of every key head, then the second ones, and so on, as
    llama.cpp's converter writes it."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads

    def tiled(weight: np.ndarray) -> np.ndarray:
        heads = weight.reshape(keys, values // keys, -1, *weight.shape[1:])
        return np.ascontiguousarray(heads.swapaxes(0, 1)).reshape(weight.shape)

    made = {}
    for name, weight in tensors.items():
        if name.endswith("out_proj.weight") and "linear_attn" in name:
            weight = np.ascontiguousarray(tiled(np.ascontiguousarray(weight.T)).T)
        elif name.endswith(OF_VALUE_HEADS):
            weight = tiled(weight)
        elif name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
            first = 2 * keys * config.linear_key_head_dim
            weight = np.concatenate([weight[:first], tiled(weight[first:])])
        made[name] = weight
    return split_delta_rule(split_fused_experts(made), config)


def gate_and_up(name: str, parts: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """The two parts of a fused projection; {} in `name` is the place of "gate_proj" or "up_proj"."""
    kinds = ("gate_proj", "up_proj")
    return {name.format(kind): np.ascontiguousarray(part) for kind, part in zip(kinds, parts, strict=True)}


def renamed(tensors: dict[str, np.ndarray], old: str, new: str) -> dict[str, np.ndarray]:
    """The tensors with a part of their names replaced."""
    return {name.replace(old, new): weight for name, weight in tensors.items()}


def split_fused_experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Experts that transformers keeps in two tensors of three axes."""
    made = {}
    for name, weight in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            made |= gate_and_up(name.replace("gate_up_proj", "{}.weight"), np.split(weight, 2, axis=1))
        else:
            made[f"{name}.weight" if name.endswith("experts.down_proj") else name] = weight
    return made


def split_delta_rule(tensors: dict[str, np.ndarray], config: PreTrainedConfig) -> dict[str, np.ndarray]:
    """Linear attention: one matrix for queries, keys and values of all heads, and one for gates; rates in place of their
    logarithms."""
    widths = [config.linear_key_head_dim, config.linear_key_head_dim]
    values = config.linear_value_head_dim * config.linear_num_value_heads // config.linear_num_key_heads
    made = {}
    for name, weight in tensors.items():
        if name.endswith("in_proj_qkvz.weight"):
            heads = weight.reshape(config.linear_num_key_heads, -1, weight.shape[-1])
            *qkv, z = (part.reshape(-1, weight.shape[-1]) for part in np.split(heads, np.cumsum([*widths, values]), axis=1))
            made[name.replace("qkvz", "qkv")] = np.concatenate(qkv)
            made[name.replace("qkvz", "z")] = np.ascontiguousarray(z)
        elif name.endswith("A_log"):
            made[name] = -np.exp(weight)
        elif name.endswith("dt_bias"):
            made[name.replace("dt_bias", "dt_proj.bias")] = weight
        elif name.endswith("conv1d.weight"):
            made[name] = weight.squeeze(1)
        else:
            made[name] = weight + 1 if name.endswith("norm.weight") and "linear_attn" not in name else weight
    return made


def add_gemma3(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The gemma3.* keys; that every sixth layer is global, llama.cpp knows by itself."""
    add_sizes(writer, config)
    add_head_size(writer, config)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_sliding_window(config.sliding_window)
    if "factor" in (rope := config.rope_parameters["full_attention"]):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def add_gemma2(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The gemma2.* keys; that every second layer is global, llama.cpp knows by itself."""
    add_sizes(writer, config)
    add_head_size(writer, config)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def add_granite(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The granite.* keys."""
    writer.add_vocab_size(config.vocab_size)
    add_sizes(writer, config)
    writer.add_rope_dimension_count(head_size(config))
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def add_smollm3(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The smollm3.* keys; that every fourth layer does not rotate, llama.cpp knows by itself."""
    writer.add_vocab_size(config.vocab_size)
    add_sizes(writer, config)
    writer.add_rope_dimension_count(head_size(config))
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def add_phi3(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The phi3.* keys, and LongRoPE's factors."""
    rope = config.rope_parameters
    width = int(head_size(config) * rope["partial_rotary_factor"])
    add_sizes(writer, config)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(rope["rope_theta"])
    original = rope["original_max_position_embeddings"]
    factor = config.max_position_embeddings / original
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(factor) / math.log(original)))
    for kind in ("long", "short"):
        writer.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], dtype=np.float32))


def add_gemma(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The gemma.* keys."""
    add_sizes(writer, config)
    add_head_size(writer, config)


def add_rotated(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The keys of Llama's relatives that state their base, and the width of RoPE if it is not the head size."""
    add_sizes(writer, config)
    if getattr(config, "head_dim", None):
        add_head_size(writer, config)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if (part := rope.get("partial_rotary_factor", 1.0)) != 1.0:
        writer.add_rope_dimension_count(int(head_size(config) * part))


def add_olmo3(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The olmo2.* keys of a model with windows; YaRN's are of the layers with full attention."""
    add_sizes(writer, config)
    rope = config.rope_parameters["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def add_olmoe(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The olmoe.* keys."""
    add_rotated(writer, config)
    add_expert_sizes(writer, config.num_experts, config.num_experts_per_tok)


def add_granite_moe(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The granitemoe.* keys."""
    add_granite(writer, config)
    add_expert_sizes(writer, config.num_local_experts, config.num_experts_per_tok)


def add_parallel(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The keys of a model that states whether both halves of a block read its input."""
    add_rotated(writer, config)
    writer.add_parallel_residual(config.use_parallel_residual)


def add_cohere(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The command-r.* or cohere2.* keys."""
    add_rotated(writer, config)
    writer.add_logit_scale(config.logit_scale)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
        writer.add_vocab_size(config.vocab_size)


def add_olmo(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The olmo.* keys."""
    add_rotated(writer, config)
    writer.add_layer_norm_eps(1e-5)


def neox_layout(name: str, weight: np.ndarray, config: PreTrainedConfig) -> np.ndarray:
    """A GPT-NeoX weight: queries, keys and values one after another, not by head."""
    if "query_key_value" not in name:
        return weight
    heads = weight.reshape(config.num_attention_heads, 3, -1, *weight.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(0, 1)).reshape(weight.shape)


def add_gemma4(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The gemma4.* keys. The usual keys are of layers with full attention; rope_freqs.weight turns off RoPE for some pairs."""
    layers = [config.per_layer_config[layer] for layer in range(config.num_hidden_layers)]
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    full, sliding = layers[slides.index(False)], layers[slides.index(True)]
    own = config.num_hidden_layers - config.num_kv_shared_layers
    wide = config.intermediate_size * (2 if config.use_double_wide_mlp else 1)
    add_sizes(writer, config, [config.intermediate_size] * own + [wide] * config.num_kv_shared_layers, [
        layer.num_key_value_heads for layer in layers
    ])  # fmt: skip
    writer.add_key_length(full.head_dim)
    writer.add_value_length(full.head_dim)
    writer.add_key_length_swa(sliding.head_dim)
    writer.add_value_length_swa(sliding.head_dim)
    writer.add_rope_dimension_count(full.head_dim)
    writer.add_rope_dimension_count_swa(sliding.head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.enable_moe_block:
        add_expert_sizes(writer, config.num_experts, config.top_k_experts, config.moe_intermediate_size)
    turned = int(rope["full_attention"]["partial_rotary_factor"] * full.head_dim // 2)
    factors = np.array([1.0] * turned + [1e30] * (full.head_dim // 2 - turned), dtype=np.float32)
    writer.add_tensor("rope_freqs.weight", factors)


def add_gemma3n(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The gemma3n.* keys. llama.cpp has the numbers of streams, sparse layers and layers with keys as constants."""
    add_sizes(writer, config)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    writer.add_altup_active_idx(config.altup_active_idx)
    writer.add_altup_num_inputs(config.altup_num_inputs)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    normal = torch.distributions.normal.Normal(0, 1)
    writer.add_activation_sparsity_scale([normal.icdf(torch.tensor(part)).item() for part in config.activation_sparsity_pattern])


def stack_streams(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The projections to and from AltUp's streams as two tensors of three axes, and the factors of streams as weights."""
    tensors = renamed(tensors, ".correct_output_scale", ".correct_output_scale.weight")
    for name in ("model.altup_projections", "model.altup_unembed_projections"):
        count = sum(part.startswith(f"{name}.") for part in tensors)
        tensors[f"{name}.weight"] = np.stack([tensors.pop(f"{name}.{number}.weight") for number in range(count)])
    return tensors


# Names of parameters of Gemma 4 that are no weights of modules, and names that llama.cpp's converter gives them.
GEMMA4_PARAMETERS = {
    ".layer_scalar": ".layer_scalar.weight",
    ".router.scale": ".router.proj.scale",
    ".router.per_expert_scale": ".experts.down_proj.scale",
    ".experts.gate_up_proj": ".experts.gate_up_proj.weight",
}


def name_parameters(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Renames the parameters of Gemma 4's layers, experts and routers."""
    made = {}
    for name, weight in tensors.items():
        ending = next((ending for ending in GEMMA4_PARAMETERS if name.endswith(ending)), None)
        name = name.removesuffix(ending) + GEMMA4_PARAMETERS[ending] if ending else name
        made[f"{name}.weight" if name.endswith(".experts.down_proj") else name] = weight
    return made


def add_llama4(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The llama4.* keys. llama.cpp knows chunks, temperatures and layers without RoPE by itself."""
    add_sizes(writer, config, config.intermediate_size_mlp)
    writer.add_rope_dimension_count(config.head_dim)
    add_head_size(writer, config)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    add_expert_sizes(writer, config.num_local_experts, config.num_experts_per_tok, config.intermediate_size)
    writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)


def split_scaled_experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Llama 4's experts, in two tensors whose rows are inputs."""
    of_experts = {name: np.ascontiguousarray(of.swapaxes(1, 2)) for name, of in tensors.items() if ".experts." in name}
    return split_fused_experts(tensors | of_experts)


def add_phi(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The phi2.* keys, without RoPE's base, which llama.cpp's converter does not write either."""
    add_sizes(writer, config)
    writer.add_rope_dimension_count(int(head_size(config) * config.rope_parameters["partial_rotary_factor"]))


def add_falcon(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The falcon.* keys."""
    add_sizes(writer, config, config.ffn_hidden_size, falcon_kv_heads(config))
    writer.add_tensor_data_layout("jploski")


def add_bloom(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The bloom.* keys, with the context that llama.cpp's converter writes if a file has none."""
    add_sizes(writer, config, 4 * config.hidden_size)


def add_starcoder(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The starcoder.* keys."""
    add_sizes(writer, config, config.n_inner or 4 * config.n_embd)


def add_hunyuan(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The hunyuan-dense.* keys, with RoPE's base after alpha has enlarged it."""
    rope, size = config.rope_parameters, config.head_dim
    add_sizes(writer, config)
    add_head_size(writer, config)
    writer.add_rope_freq_base(rope["rope_theta"] * rope.get("alpha", 1.0) ** (size / (size - 2)))


def unprefixed(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """BLOOM's tensors with the names that llama.cpp's converter maps."""
    return renamed(tensors, "transformer.", "")


def falcon_kv_heads(config: PreTrainedConfig) -> int:
    """Key-value heads of Falcon."""
    return 1 if config.multi_query and not config.new_decoder_architecture else config.num_kv_heads


def falcon_layout(name: str, weight: np.ndarray, config: PreTrainedConfig) -> np.ndarray:
    """A Falcon weight: queries, keys and values one after another, not by groups of heads."""
    if "query_key_value" not in name:
        return weight
    groups = weight.reshape(falcon_kv_heads(config), -1, head_size(config), *weight.shape[1:])
    parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
    return np.concatenate([part.reshape(-1, *weight.shape[1:]) for part in parts])


def add_gpt_oss(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The gpt-oss.* keys; that every other layer has a window, llama.cpp knows by itself."""
    add_sizes(writer, config)
    add_head_size(writer, config)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_sliding_window(config.sliding_window)
    add_expert_sizes(writer, config.num_local_experts, config.num_experts_per_tok, config.intermediate_size)
    add_yarn(writer, config)


def split_clamped_experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """gpt-oss's experts: gate and up alternate in the columns of one tensor, and inputs are its rows."""
    made = {}
    for name, weight in tensors.items():
        kind = "bias" if name.endswith("_bias") else "weight"
        stem = name.removesuffix("_bias")
        weight = weight.swapaxes(-1, -2) if kind == "weight" and ".experts." in name else weight
        if stem.endswith("experts.gate_up_proj"):
            made |= gate_and_up(stem.replace("gate_up_proj", f"{{}}.{kind}"), (weight[:, ::2], weight[:, 1::2]))
        elif stem.endswith("experts.down_proj"):
            made[f"{stem}.{kind}"] = np.ascontiguousarray(weight)
        else:
            made[name.replace("self_attn.sinks", "self_attn.sinks.weight")] = weight
    return made


def add_experts(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The keys of experts with a shared expert, some layers without experts, and a scaling factor."""
    add_expert_sizes(writer, config.n_routed_experts, config.num_experts_per_tok, config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    kinds = getattr(config, "mlp_layer_types", None)
    writer.add_leading_dense_block_count(kinds.count("dense") if kinds else config.first_k_dense_replace)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    is_softmax = config.model_type == "deepseek_v2"
    kind = gguf.ExpertGatingFuncType.SOFTMAX if is_softmax else gguf.ExpertGatingFuncType.SIGMOID
    writer.add_expert_gating_func(kind)
    if (config.n_group or 1) > 1:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)


def add_deepseek_moe(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The glm4moe.* or dots1.* keys."""
    add_rotated(writer, config)
    add_experts(writer, config)


def add_minimax(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The minimax-m2.* keys."""
    add_rotated(writer, config)
    add_expert_sizes(writer, config.num_local_experts, config.num_experts_per_tok, config.intermediate_size)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def add_ernie_moe(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The ernie4_5-moe.* keys."""
    add_rotated(writer, config)
    add_expert_sizes(writer, config.moe_num_experts, config.moe_k, config.moe_intermediate_size)
    writer.add_expert_shared_count(config.moe_num_shared_experts)
    writer.add_expert_shared_feed_forward_length(config.moe_num_shared_experts * config.moe_intermediate_size)
    writer.add_leading_dense_block_count(config.moe_layer_start_index)
    writer.add_interleave_moe_layer_step(config.moe_layer_interval)


def add_deepseek(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The deepseek2.* keys. Attention has one key-value head: the latents and the rotated part of keys."""
    rope = config.rope_parameters
    writer.add_vocab_size(config.vocab_size)
    add_sizes(writer, config, kv_heads=1)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    add_experts(writer, config)
    add_yarn(writer, config)
    if "mscale_all_dim" in rope:
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def split_latents(tensors: dict[str, np.ndarray], config: PreTrainedConfig) -> dict[str, np.ndarray]:
    """The matrix that expands latents, as one for keys, transposed, and one for values, of each head."""
    made = {}
    for name, weight in name_bias(tensors).items():
        if not name.endswith("kv_b_proj.weight"):
            made[name] = weight
            continue
        heads = weight.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
        k, v = np.split(heads, [config.qk_nope_head_dim], axis=1)
        made[name.replace("kv_b_proj", "k_b_proj")] = np.ascontiguousarray(k.swapaxes(1, 2))
        made[name.replace("kv_b_proj", "v_b_proj")] = np.ascontiguousarray(v)
    return made


def name_bias(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A correction bias under the name that llama.cpp's converter gives it."""
    named = renamed(tensors, "e_score_correction_bias", "e_score_correction.bias")
    return {name: of.reshape(-1) if "e_score" in name else of for name, of in named.items()}


def add_lfm2(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The lfm2.* keys. Layers with a convolution have no key-value heads."""
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    multiple, width = config.block_multiple_of, int(2 * config.intermediate_size / 3)
    adjusted = -(-int(config.block_ffn_dim_multiplier * width) // multiple) * multiple
    writer.add_feed_forward_length(adjusted if config.block_auto_adjust_ff_dim else config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv([0 if kind == "conv" else config.num_key_value_heads for kind in config.layer_types])
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_shortconv_l_cache(config.conv_L_cache)


def add_lfm2_moe(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The lfm2moe.* keys. Layers with a convolution have no key-value heads."""
    writer.add_vocab_size(config.vocab_size)
    kv_heads = [0 if kind == "conv" else config.num_key_value_heads for kind in config.layer_types]
    add_sizes(writer, config, kv_heads=kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_shortconv_l_cache(config.conv_L_cache)
    add_expert_sizes(writer, config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size)
    writer.add_leading_dense_block_count(config.num_dense_layers)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def name_lfm2_experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """LFM2's experts and their correction bias under the names that llama.cpp's converter gives them."""
    named = renamed(tensors, "feed_forward.expert_bias", "feed_forward.expert_bias.bias")
    return {name.removeprefix("model.") if ".experts." in name else name: weight for name, weight in named.items()}


def add_state_space(writer: gguf.GGUFWriter, heads: int, width: int, *, kernel: int, state: int, groups: int) -> None:
    """The keys of Mamba-2; `width` is that of all heads."""
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_state_size(state)
    writer.add_ssm_group_count(groups)
    writer.add_ssm_inner_size(width)
    writer.add_ssm_time_step_rank(heads)


def add_granite_hybrid(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The granitehybrid.* keys. Layers with a state have no key-value heads."""
    kv_heads = [0 if kind == "linear_attention" else config.num_key_value_heads for kind in config.layer_types]
    writer.add_vocab_size(config.vocab_size)
    has_experts = config.num_local_experts > 0
    add_sizes(writer, config, config.intermediate_size if has_experts else config.shared_intermediate_size, kv_heads)
    if has_experts:
        add_expert_sizes(writer, config.num_local_experts, config.num_experts_per_tok)
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)
    sizes = {"kernel": config.mamba_d_conv, "state": config.mamba_d_state, "groups": config.mamba_n_groups}
    add_state_space(writer, config.mamba_n_heads, config.mamba_n_heads * config.mamba_d_head, **sizes)
    writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")


def add_nemotron_h(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The nemotron_h.* or nemotron_h_moe.* keys. A layer is attention if it has key-value heads, a feed-forward block if it has a size, or else
    Mamba-2."""

    def of_kind(kind: str, size: int) -> list[int]:
        return [size if layer == kind else 0 for layer in config.layers_block_type]

    writer.add_vocab_size(config.vocab_size)
    has_experts = "moe" in config.layers_block_type
    sizes = of_kind("moe", config.moe_intermediate_size) if has_experts else of_kind("mlp", config.intermediate_size)
    add_sizes(writer, config, sizes, of_kind("full_attention", config.num_key_value_heads))
    if has_experts:
        add_nemotron_experts(writer, config)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    sizes = {"kernel": config.conv_kernel, "state": config.ssm_state_size, "groups": config.n_groups}
    add_state_space(writer, config.mamba_num_heads, config.mamba_num_heads * config.mamba_head_dim, **sizes)


def add_nemotron_experts(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The keys of Nemotron-H's experts."""
    add_expert_sizes(writer, config.n_routed_experts, config.num_experts_per_tok, config.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_group_count(config.n_group)
    if config.n_group > 1:
        writer.add_expert_group_used_count(config.topk_group)
    if config.moe_latent_size is not None:
        writer.add_moe_latent_size(config.moe_latent_size)


def name_nemotron_experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Nemotron-H with experts, their correction bias and the bias of steps under the names of llama.cpp's converter."""
    named = name_bias(name_steps(tensors))
    merged = {name: name.replace("backbone.", "model.").replace(".mixer.", ".mlp.") for name in named if ".experts." in name}
    return {merged.get(name, name): weight for name, weight in named.items()}


def nemotron_h_layout(name: str, weight: np.ndarray, config: PreTrainedConfig) -> np.ndarray:
    """Converts a Nemotron-H weight to GGUF layout: see `state_space_layout`."""
    if name.endswith(".A_log"):
        return -np.exp(weight)[:, None]
    if name.endswith("mixer.norm.weight"):
        return weight.reshape(config.n_groups, -1)
    return weight[:, None] if name.endswith(".D") else convolution_layout(name, weight, config)


def add_falcon_h1(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The falcon-h1.* keys."""
    add_rotated(writer, config)
    writer.add_vocab_size(config.vocab_size)
    sizes = {"kernel": config.mamba_d_conv, "state": config.mamba_d_state, "groups": config.mamba_n_groups}
    add_state_space(writer, config.mamba_n_heads, config.mamba_d_ssm, **sizes)


def falcon_h1_layout(name: str, weight: np.ndarray, config: PreTrainedConfig) -> np.ndarray:
    """Converts a Falcon-H1 weight to GGUF layout: see `state_space_layout`. The weights contain the model's factors."""
    shared = config.mamba_n_groups * config.mamba_d_state
    widths = [config.mamba_d_ssm, config.mamba_d_ssm, shared, shared, config.mamba_n_heads]
    factors = {
        "embed_tokens.weight": config.embedding_multiplier,
        "lm_head.weight": config.lm_head_multiplier,
        "q_proj.weight": config.attention_in_multiplier,
        "k_proj.weight": config.attention_in_multiplier * config.key_multiplier,
        "v_proj.weight": config.attention_in_multiplier,
        "o_proj.weight": config.attention_out_multiplier,
        "mamba.out_proj.weight": config.ssm_out_multiplier,
        "mamba.in_proj.weight": config.ssm_in_multiplier * np.repeat(config.ssm_multipliers, widths)[:, None],
        "gate_proj.weight": config.mlp_multipliers[0],
        "down_proj.weight": config.mlp_multipliers[1],
    }
    factor = next((factor for ending, factor in factors.items() if name.endswith(ending)), 1.0)
    if name.endswith((".A_log", ".D")):
        return (-np.exp(weight) if name.endswith("log") else weight)[:, None]
    return (convolution_layout(name, weight, config) * factor).astype(np.float32)


def state_space_layout(name: str, weight: np.ndarray, config: PreTrainedConfig) -> np.ndarray:
    """Converts a Granite 4 weight to GGUF layout: `-exp(A_log)` and `D` as one column, the norm with a row for each group."""
    if name.endswith(".A_log"):
        return -np.exp(weight)[:, None]
    if name.endswith(("mamba.D", "mamba.norm.weight")):
        return weight[:, None] if name.endswith("D") else weight.reshape(config.mamba_n_groups, -1)
    return llama_layout(name, convolution_layout(name, weight, config), config)


def split_experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Granite's experts: gate and up are one tensor."""
    made = {}
    for name, weight in tensors.items():
        if "block_sparse_moe.input_linear" in name:
            stem = name.replace("block_sparse_moe.input_linear", "mlp.experts.{}")
            made |= gate_and_up(stem, np.split(weight, 2, axis=1))
        else:
            made[name.replace("block_sparse_moe.output_linear", "mlp.experts.down_proj")] = weight
    return made


def split_shared(tensors: dict[str, np.ndarray], config: PreTrainedConfig) -> dict[str, np.ndarray]:
    """Splits Granite 4's fused gate and up projections, and renames `dt_bias` as llama.cpp does."""
    made, block = {}, "mlp.shared_expert" if config.num_local_experts > 0 else "mlp"
    for name, weight in split_experts(tensors).items():
        if "shared_mlp.input_linear" in name:
            made |= gate_and_up(name.replace("shared_mlp.input_linear", f"{block}.{{}}"), np.split(weight, 2))
        else:
            made[name.replace("shared_mlp.output_linear", f"{block}.down_proj")] = weight
    return name_steps(made)


def name_steps(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Mamba-2 with the bias of step sizes under llama.cpp's name."""
    return renamed(tensors, ".dt_bias", ".dt_proj.bias")


def convolution_layout(name: str, weight: np.ndarray, config: PreTrainedConfig) -> np.ndarray:
    """Removes the axis of length 1 from a depthwise kernel."""
    return weight.squeeze(1) if weight.ndim == 3 and weight.shape[1] == 1 else weight


def head_size(config: PreTrainedConfig) -> int:
    """Values of one head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def add_gpt2(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The gpt2.* keys."""
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)


def add_sentencepiece(writer: gguf.GGUFWriter, file: Path, config: PreTrainedConfig) -> None:
    """The tokenizer.ggml.* keys of a SentencePiece BPE vocabulary."""
    tokenizer = SentencePieceProcessor(model_file=str(file))
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
    writer.add_add_space_prefix(not config.model_type.startswith("gemma"))


def add_byte_level_bpe(writer: gguf.GGUFWriter, file: Path, config: PreTrainedConfig) -> None:
    """The tokenizer.ggml.* keys of GPT-2's kind of vocabulary, a tokenizer.json."""
    tokenizer = json.loads(file.read_text())
    ids, special = tokenizer["model"]["vocab"], {added["content"] for added in tokenizer["added_tokens"]}
    tokens = sorted(ids, key=ids.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)


@dataclass(frozen=True)
class Family:
    """How one `model_type` becomes a GGUF file."""

    architecture: gguf.MODEL_ARCH
    add_hyperparameters: Callable[[gguf.GGUFWriter, PreTrainedConfig], None]
    layout: Callable[[str, np.ndarray, PreTrainedConfig], np.ndarray] = same_layout
    rope_types: tuple[str, ...] = ("default",)  # those that this script can write
    tokenizer_file: str = "tokenizer.model"
    add_tokenizer: Callable[[gguf.GGUFWriter, Path, PreTrainedConfig], None] = add_sentencepiece
    prefix: str = ""  # of the text model's tensors, where there are others
    split: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = dict  # fused tensors
    split_by_sizes: Callable[[dict[str, np.ndarray], PreTrainedConfig], dict[str, np.ndarray]] | None = None


# By the `model_type` of config.json.
FAMILIES = {
    "llama": Family(gguf.MODEL_ARCH.LLAMA, add_llama, llama_layout, ("default", "llama3")),
    "mistral": Family(gguf.MODEL_ARCH.LLAMA, add_llama, llama_layout),
    "mixtral": Family(gguf.MODEL_ARCH.LLAMA, add_mixtral, llama_layout),
    "ministral3": Family(gguf.MODEL_ARCH.MISTRAL3, add_ministral3, llama_layout, rope_types=("yarn",)),
    "qwen2": Family(gguf.MODEL_ARCH.QWEN2, add_qwen2),
    "qwen2_moe": Family(gguf.MODEL_ARCH.QWEN2MOE, add_qwen2_moe),
    "qwen3": Family(gguf.MODEL_ARCH.QWEN3, add_qwen3, rope_types=("default", "yarn")),
    "qwen3_moe": Family(gguf.MODEL_ARCH.QWEN3MOE, add_qwen3_moe),
    "qwen3_next": Family(gguf.MODEL_ARCH.QWEN3NEXT, add_qwen3_next, split_by_sizes=split_delta_rule),
    "qwen3_5_text": Family(gguf.MODEL_ARCH.QWEN35, add_qwen35, split_by_sizes=tiled_heads),
    "qwen3_5_moe_text": Family(gguf.MODEL_ARCH.QWEN35MOE, add_qwen35, split_by_sizes=tiled_heads),
    "gemma3_text": Family(gguf.MODEL_ARCH.GEMMA3, add_gemma3, gemma_layout, ("default", "linear")),
    "gemma3": Family(gguf.MODEL_ARCH.GEMMA3, add_gemma3, gemma_layout, ("default", "linear"), prefix="language_model."),
    "gemma2": Family(gguf.MODEL_ARCH.GEMMA2, add_gemma2, gemma_layout),
    "granite": Family(gguf.MODEL_ARCH.GRANITE, add_granite, llama_layout),
    "phi3": Family(gguf.MODEL_ARCH.PHI3, add_phi3, rope_types=("longrope",)),
    "smollm3": Family(gguf.MODEL_ARCH.SMOLLM3, add_smollm3, llama_layout),
    "olmo2": Family(gguf.MODEL_ARCH.OLMO2, add_qwen2),
    "gemma": Family(gguf.MODEL_ARCH.GEMMA, add_gemma, gemma_layout),
    "seed_oss": Family(gguf.MODEL_ARCH.SEED_OSS, add_rotated),
    "olmo3": Family(gguf.MODEL_ARCH.OLMO2, add_olmo3, rope_types=("default", "yarn")),
    "ernie4_5": Family(gguf.MODEL_ARCH.ERNIE4_5, add_rotated),
    "exaone4": Family(gguf.MODEL_ARCH.EXAONE4, add_rotated),
    "glm4": Family(gguf.MODEL_ARCH.GLM4, add_rotated),
    "glm": Family(gguf.MODEL_ARCH.CHATGLM, add_rotated),
    "arcee": Family(gguf.MODEL_ARCH.ARCEE, add_rotated, llama_layout),
    "olmoe": Family(gguf.MODEL_ARCH.OLMOE, add_olmoe),
    "granitemoe": Family(gguf.MODEL_ARCH.GRANITE_MOE, add_granite_moe, llama_layout, split=split_experts),
    "starcoder2": Family(gguf.MODEL_ARCH.STARCODER2, add_rotated),
    "gpt_neox": Family(gguf.MODEL_ARCH.GPTNEOX, add_parallel, neox_layout),
    "stablelm": Family(gguf.MODEL_ARCH.STABLELM, add_parallel),
    "cohere": Family(gguf.MODEL_ARCH.COMMAND_R, add_cohere),
    "cohere2": Family(gguf.MODEL_ARCH.COHERE2, add_cohere),
    "olmo": Family(gguf.MODEL_ARCH.OLMO, add_olmo, llama_layout),
    "glm4_moe": Family(gguf.MODEL_ARCH.GLM4_MOE, add_deepseek_moe, split=name_bias),
    "deepseek_v3": Family(gguf.MODEL_ARCH.DEEPSEEK2, add_deepseek, rope_types=("default", "yarn"), split_by_sizes=split_latents),
    "deepseek_v2": Family(gguf.MODEL_ARCH.DEEPSEEK2, add_deepseek, split_by_sizes=split_latents),
    "glm4_moe_lite": Family(gguf.MODEL_ARCH.DEEPSEEK2, add_deepseek, split_by_sizes=split_latents),
    "dots1": Family(gguf.MODEL_ARCH.DOTS1, add_deepseek_moe, split=name_bias),
    "minimax_m2": Family(gguf.MODEL_ARCH.MINIMAXM2, add_minimax, split=name_bias),
    "ernie4_5_moe": Family(gguf.MODEL_ARCH.ERNIE4_5_MOE, add_ernie_moe, split=name_bias),
    "lfm2": Family(gguf.MODEL_ARCH.LFM2, add_lfm2, convolution_layout),
    "lfm2_moe": Family(gguf.MODEL_ARCH.LFM2MOE, add_lfm2_moe, convolution_layout, split=name_lfm2_experts),
    "granitemoehybrid": Family(
        gguf.MODEL_ARCH.GRANITE_HYBRID, add_granite_hybrid, state_space_layout, ("default",), split_by_sizes=split_shared
    ),
    "falcon_h1": Family(gguf.MODEL_ARCH.FALCON_H1, add_falcon_h1, falcon_h1_layout, split=name_steps),
    "gemma3n_text": Family(gguf.MODEL_ARCH.GEMMA3N, add_gemma3n, split=stack_streams),
    "gemma4_text": Family(gguf.MODEL_ARCH.GEMMA4, add_gemma4, rope_types=("default", "proportional"), split=name_parameters),
    "llama4_text": Family(gguf.MODEL_ARCH.LLAMA4, add_llama4, split=split_scaled_experts),
    "nemotron_h": Family(gguf.MODEL_ARCH.NEMOTRON_H, add_nemotron_h, nemotron_h_layout, (), split=name_nemotron_experts),
    "jais2": Family(gguf.MODEL_ARCH.JAIS2, add_rotated),
    "nemotron": Family(gguf.MODEL_ARCH.NEMOTRON, add_rotated, gemma_layout),
    "phi": Family(gguf.MODEL_ARCH.PHI2, add_phi),
    "falcon": Family(gguf.MODEL_ARCH.FALCON, add_falcon, falcon_layout),
    "hunyuan_v1_dense": Family(gguf.MODEL_ARCH.HUNYUAN_DENSE, add_hunyuan, rope_types=("default", "dynamic")),
    "gpt_bigcode": Family(gguf.MODEL_ARCH.STARCODER, add_starcoder),
    "bloom": Family(gguf.MODEL_ARCH.BLOOM, add_bloom, neox_layout, split=unprefixed),
    "gpt_oss": Family(gguf.MODEL_ARCH.GPT_OSS, add_gpt_oss, rope_types=("yarn",), split=split_clamped_experts),
    "gpt2": Family(gguf.MODEL_ARCH.GPT2, add_gpt2, gpt2_layout, (), "tokenizer.json", add_byte_level_bpe),
}


def rope_types(config: PreTrainedConfig) -> list[str]:
    """The kind of RoPE scaling, or those of each kind of layer; none without RoPE."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [rope["rope_type"]] if "rope_type" in rope else [part["rope_type"] for part in rope.values()]


def weight_files(model: Path) -> list[Path]:
    """model.safetensors, or its shards."""
    return sorted(model.glob("model.safetensors")) or sorted(model.glob("model-*-of-*.safetensors"))


def load_tensors(weights: list[Path], prefix: str) -> dict[str, np.ndarray]:
    """The tensors of the safetensors files whose names have the prefix, without it."""
    tensors = {name: weight for path in weights for name, weight in load_file(path).items()}
    return {name.removeprefix(prefix): weight for name, weight in tensors.items() if name.startswith(prefix)}


# What a matrix of an expert is called, but for its number.
EXPERT = re.compile(r"\.experts\.(\d+)\.")


def stacked_experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The matrices of all experts of a layer as one tensor of three axes, as llama.cpp has them."""
    parts: dict[str, dict[int, np.ndarray]] = {}
    others = {}
    for name, weight in tensors.items():
        if found := EXPERT.search(name):
            parts.setdefault(EXPERT.sub(".experts.", name), {})[int(found[1])] = weight
        else:
            others[name] = weight
    return others | {name: np.stack([each for _, each in sorted(of.items())]) for name, of in parts.items()}


def add_tensors(
    writer: gguf.GGUFWriter,
    family: Family,
    tensors: dict[str, np.ndarray],
    config: PreTrainedConfig,
    matrix_type: GGMLQuantizationType,
) -> None:
    """Every tensor, under llama.cpp's name for it, and RoPE's scaling if that is a tensor."""
    names = gguf.get_tensor_name_map(family.architecture, config.num_hidden_layers)
    if "llama3" in rope_types(config):
        writer.add_tensor("rope_freqs.weight", rope_factors(config))
    tensors = family.split_by_sizes(tensors, config) if family.split_by_sizes else family.split(tensors)
    for name, weight in sorted(stacked_experts(tensors).items()):
        weight = family.layout(name, weight.astype(np.float32), config)
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias", ".scale"))
        if gguf_name.endswith("ffn_gate_inp_shexp.weight"):
            weight = weight.reshape(-1)  # one row
        is_router = gguf_name.endswith("ffn_gate_inp.weight")
        is_matrix = weight.ndim >= 2 and not gguf_name.endswith(".bias") and gguf_name not in F32_TENSORS and not gguf_name.endswith(F32_ENDINGS) and not is_router
        is_matrix = is_matrix and not any(part in gguf_name for part in F32_PARTS)
        is_other = matrix_type is GGMLQuantizationType.MXFP4 and weight.ndim < 3
        tensor_type = GGMLQuantizationType.Q8_0 if is_other else matrix_type
        tensor_type = tensor_type if is_matrix else GGMLQuantizationType.F32
        writer.add_tensor(gguf_name, gguf.quants.quantize(weight, tensor_type), raw_dtype=tensor_type)


def family_of(model: Path, config: PreTrainedConfig) -> Family:
    """The row of FAMILIES that `model`, a directory, belongs to by its configuration."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        sys.exit(f"error: {model}: a {config.model_type} model; only {', '.join(FAMILIES)} can be exported")
    if "moe" in (getattr(config, "layers_block_type", None) or []):
        family = replace(family, architecture=gguf.MODEL_ARCH.NEMOTRON_H_MOE)
    if unknown := set(rope_types(config.get_text_config())) - set(family.rope_types):
        sys.exit(f"error: {model}: RoPE scaling {', '.join(unknown)} of {config.model_type} is not supported")
    return family


def export(model: Path, type_name: str, out: Path, name: str, tokenizer: Path | None) -> None:
    """Writes `model`, a Hugging Face directory, with its or another `tokenizer` file, to the GGUF file `out`."""
    config = AutoConfig.from_pretrained(model)
    family, config = family_of(model, config), config.get_text_config()
    tokenizer = tokenizer or model / family.tokenizer_file
    if not tokenizer.is_file():
        sys.exit(f"error: {tokenizer}: no such file")
    matrix_type, file_type = MATRIX_TYPES[type_name]
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[family.architecture])
    writer.add_name(name)
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    family.add_hyperparameters(writer, config)
    family.add_tokenizer(writer, tokenizer, config)
    add_tensors(writer, family, load_tensors(weight_files(model), family.prefix), config, matrix_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--type", choices=MATRIX_TYPES, required=True, help="type of the matrices")
    parser.add_argument("--out", type=Path, required=True, help="GGUF file to write")
    parser.add_argument("--tokenizer", type=Path, help="its file, if not the directory's own")
    parser.add_argument("--name", help="general.name (default: the directory's name)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    model = arguments.model
    if not (model / "config.json").is_file():
        sys.exit(f"error: {model / 'config.json'}: no such file")
    if not weight_files(model):
        sys.exit(f"error: {model}: neither model.safetensors nor its shards are there")
    export(model, arguments.type, arguments.out, arguments.name or model.resolve().name, arguments.tokenizer)


if __name__ == "__main__":
    main()
