"""Tiny random models of several architectures, for tests of the evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

BASE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {"head_dim": 8, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
    },
    "diffllama": {},
    "glm4_moe": {
        "head_dim": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
    },
    "gpt_oss": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 64,
        "residual_multiplier": 0.7,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},
}
TOKENS = [17, 3, 81, 45, 9, 60, 33, 72, 8, 51]


def make(kind: str, folder: Path) -> Path:
    """Writes a model of one architecture; the same one each time."""
    config = transformers.AutoConfig.for_model(kind, **{**BASE, **MODELS[kind]})
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        else:
            parameter.data += 0.1 * torch.randn_like(parameter)
    path = folder / kind
    model.save_pretrained(path)
    return path


def load(path: Path, dtype: torch.dtype = torch.float32, attention: str = "eager") -> Any:
    """Loads a model as a candidate."""
    options = {"dtype": dtype, "attn_implementation": attention}
    return transformers.AutoModelForCausalLM.from_pretrained(path, **options).eval()
