"""Writes a model's Hugging Face directory as the hub has it, where transformers 5 writes it otherwise."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

import tiny_bpe
from tiny_model import save_hf

HUB_GPT2_KEYS = (
    "activation_function", "attn_pdrop", "bos_token_id", "embd_pdrop", "eos_token_id", "initializer_range",
    "layer_norm_epsilon", "n_embd", "n_head", "n_layer", "n_positions", "resid_pdrop", "vocab_size",
)  # fmt: skip
HUB_GEMMA3_KEYS = (
    "attention_bias", "bos_token_id", "eos_token_id", "head_dim", "hidden_activation", "hidden_size",
    "intermediate_size", "max_position_embeddings", "model_type", "num_attention_heads", "num_hidden_layers",
    "num_key_value_heads", "pad_token_id", "query_pre_attn_scalar", "rms_norm_eps", "sliding_window", "vocab_size",
)  # fmt: skip


def save_gpt2(model: PreTrainedModel, out: Path) -> None:
    """hf/ as transformers 5 writes it, and pt/ as the hub has GPT-2: see the card."""
    save_hf(model, out)
    save_as_hub_gpt2(model, out / "pt")
    for directory in ("hf", "pt"):
        tiny_bpe.write(out / directory)


def save_as_hub_gpt2(model: PreTrainedModel, out: Path) -> None:
    """config.json with 4.x's keys; names without `transformer.`, no lm_head, and each layer's causal mask in float32."""
    out.mkdir(exist_ok=True)
    config, size = model.config, model.config.n_positions
    state = {name: tensor.clone() for name, tensor in model.transformer.state_dict().items()}
    mask = torch.ones(size, size).tril().view(1, 1, size, size)
    masks = {f"h.{layer}.attn.bias": mask.clone() for layer in range(config.n_layer)}
    torch.save(state | masks, out / "pytorch_model.bin")
    values = {key: getattr(config, key) for key in HUB_GPT2_KEYS}
    values |= {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_ctx": size}
    (out / "config.json").write_text(json.dumps(dict(sorted(values.items())), indent=2) + "\n")


def save_as_hub_gemma3(model: PreTrainedModel, out: Path) -> None:
    """hf/ with the names and the config.json of 4.x, which the hub has for Gemma 3: see the card."""
    save_hf(model, out)
    path = out / "hf" / "model.safetensors"
    tower, hub_tower = "vision_tower.", "vision_tower.vision_model."
    tensors = {
        hub_tower + name.removeprefix(tower) if name.startswith(tower) else name: tensor
        for name, tensor in load_file(path).items()
    }
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((out / "hf" / "config.json").read_text())
    text, rope = config["text_config"], model.config.text_config.rope_parameters
    del config["transformers_version"]
    config["torch_dtype"] = config.pop("dtype")
    config["text_config"] = {key: text[key] for key in HUB_GEMMA3_KEYS} | {
        "rope_theta": rope["full_attention"]["rope_theta"],
        "rope_local_base_freq": rope["sliding_attention"]["rope_theta"],
        "rope_scaling": {"factor": rope["full_attention"]["factor"], "rope_type": "linear"},
        "sliding_window_pattern": text["_sliding_window_pattern"],
    }
    (out / "hf" / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
