#!/usr/bin/env python3
"""Makes tests/data/nvfp4-gguf: small models in NVFP4 with a scale for each matrix, and what llama.cpp computes with each file.

compressed-tensors quantises random models, and llama.cpp's own converter makes GGUF files of them: a Llama, a Qwen 2 with
biases, and a Qwen 3 with experts. `dump_llama_cpp` runs every file. The source of llama.cpp is in the sdist of
llama-cpp-python (`vendor/llama.cpp`).

    python reference-scripts/make/make_nvfp4_gguf.py SOURCE ENVIRONMENT tests/data/nvfp4-gguf
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3MoeConfig

PROMPT = "3,17,30,8,25,1,12,21"
ARGUMENTS = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
SCHEME = {"targets": ["Linear"], "weights": ARGUMENTS, "format": "nvfp4-pack-quantized"}
COMMON = {
    "vocab_size": 32,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
MODELS = {
    "llama": LlamaConfig(intermediate_size=128, head_dim=32, **COMMON),
    "qwen2": Qwen2Config(intermediate_size=128, **COMMON),
    "qwen3moe": Qwen3MoeConfig(moe_intermediate_size=64, intermediate_size=64, head_dim=32, num_experts=4, num_experts_per_tok=2, **COMMON),
}
CONVERT = Path(__file__).resolve().parents[1] / "atlas/convert_gguf.py"


def random_model(config):
    torch.manual_seed(3)
    made = AutoModelForCausalLM.from_config(config).eval()
    random = torch.Generator().manual_seed(4)
    for name, weight in made.named_parameters():
        noise = torch.randn(weight.shape, generator=random)
        size = 0.3 if "norm" in name or name.endswith("bias") else 0.18
        weight.data = ((1 if "norm" in name else 0) + size * noise).to(weight.dtype)
    return made


def state_of(made):
    """The tensors as checkpoints name them, with a matrix for each expert."""
    with tempfile.TemporaryDirectory() as folder:
        from safetensors.torch import load_file

        made.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def quantised(weight):
    """compressed-tensors' own scales and packing."""
    scheme = QuantizationScheme(**SCHEME)
    arguments = scheme.weights
    parts = weight.reshape(weight.shape[0], -1, arguments.group_size)
    global_scale = generate_gparam(weight.amin(), weight.amax())
    scale, _ = calculate_qparams(parts.amin(-1), parts.amax(-1), arguments, global_scale=global_scale)
    state = {"weight": weight, "weight_global_scale": global_scale, "weight_scale": scale}
    return BaseCompressor.get_value_from_registry(scheme.format).compress(state, scheme)


def save(folder, config):
    tensors = {}
    for name, tensor in state_of(random_model(config)).items():
        module = name.removesuffix(".weight")
        is_converted = tensor.dim() == 2 and "layers" in name and not name.endswith("mlp.gate.weight")
        parts = quantised(tensor) if is_converted else {"weight": tensor}
        if name.endswith(".bias"):
            module, parts = name.removesuffix(".bias"), {"bias": tensor}
        tensors |= {f"{module}.{part}": x.contiguous() for part, x in parts.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": SCHEME},
        "format": "nvfp4-pack-quantized",
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "quantization_status": "compressed",
    }
    text = config.to_dict() | {"quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(text))


def main():
    source, environment, out = (Path(word).resolve() for word in sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    for name, config in MODELS.items():
        config.architectures = [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3moe": "Qwen3MoeForCausalLM"}[name]]
        file, dump = out / f"{name}.gguf", out / f"{name}.safetensors"
        with tempfile.TemporaryDirectory() as folder:
            save(Path(folder), config)
            subprocess.run([sys.executable, str(CONVERT), str(source), folder, str(file)], check=True)
        program = str(environment / "bin/dump_llama_cpp")
        words = ["--model", file, "--tokens", PROMPT, "--decode", "1", "--threads", "1", "--out", dump]
        subprocess.run([program, *map(str, words)], check=True)


if __name__ == "__main__":
    main()
