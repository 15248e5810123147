"""Makes models with the inner dimensions of real ones. Their weights are small integers times a power of two, so that
every machine makes the same, and bf16 and f16 hold them exactly."""

import math
import zlib
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

COMMON = {
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
MODELS = {
    "wide-llama": (
        "llama",
        {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 2048},
    ),
    "wide-qwen3moe": (
        "qwen3_moe",
        {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "moe_intermediate_size": 256,
         "num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": True},
    ),
    "quant-llama": (
        "llama",
        {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 384,
         "vocab_size": 256},
    ),
}  # fmt: skip
SPREAD = 73.6  # root of the mean square of the integers from -127 to 127


def make(name: str, out: Path) -> None:
    """Makes one of the MODELS."""
    kind, settings = MODELS[name]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**COMMON, **settings}), dtype=torch.float32)
    with torch.no_grad():
        for path, weight in model.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(f"{name}/{path}".encode()))
            numbers = torch.randint(-127, 128, weight.shape, generator=generator).float()
            if weight.dim() < 2:
                weight.copy_(1 + torch.div(numbers, 4, rounding_mode="trunc") / 128)
            else:
                inputs = 1 if "embed" in path else weight.shape[-1]
                weight.copy_(numbers * 2.0 ** -round(math.log2(SPREAD * math.sqrt(inputs))))
    model.to(torch.bfloat16).save_pretrained(out)
