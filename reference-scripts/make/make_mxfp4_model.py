#!/usr/bin/env python3
"""Makes tests/data/quantised/mxfp4-experts: the small gpt-oss with experts in MXFP4, as openai/gpt-oss-20b stores them, with
the SHA-256 of the weights that transformers decodes, and a dump of transformers in bf16.

gguf-py rounds the experts; the codes of its blocks are written in the order of the Hugging Face layout.

    python reference-scripts/make/make_mxfp4_model.py
"""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Mxfp4Config
from weight_digest import digest

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
GROUP = 32
# Those of openai/gpt-oss-20b.
UNCONVERTED = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]


def mxfp4(weight):
    """The blocks and scales of experts' weights, [experts, inputs, outputs]."""
    weight = weight.transpose(1, 2).contiguous().numpy()
    experts, outputs, inputs = weight.shape
    stored = quants.quantize(weight.astype(np.float32), GGMLQuantizationType.MXFP4)
    stored = stored.reshape(experts, outputs, inputs // GROUP, 1 + GROUP // 2)
    scales, bytes_ = stored[..., 0], stored[..., 1:]
    # ggml has the second half of a group in the high bits, Hugging Face every second number.
    codes = np.concatenate([bytes_ & 15, bytes_ >> 4], -1)
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    return torch.from_numpy(blocks.copy()), torch.from_numpy(scales.copy())


def main():
    source, folder = DATA / "architectures" / "tiny-gptoss" / "hf", DATA / "quantised" / "mxfp4-experts"
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, weight in load_file(source / "model.safetensors").items():
        if name.endswith("experts.gate_up_proj") or name.endswith("experts.down_proj"):
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = mxfp4(weight)
        else:
            tensors[name] = weight.to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text()) | {"dtype": "bfloat16"}
    config["quantization_config"] = {"modules_to_not_convert": UNCONVERTED, "quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    settings = {"dtype": torch.bfloat16, "attn_implementation": "eager"}
    made = AutoModelForCausalLM.from_pretrained(folder, quantization_config=Mxfp4Config(dequantize=True), **settings).eval()
    names = [name.removesuffix("_blocks") for name in tensors if name.endswith("_blocks")]
    weights = {name: digest(made.get_parameter(name)) for name in names}
    versions = {library: metadata.version(library) for library in ("torch", "transformers", "gguf")}
    (folder / "decoded.json").write_text(json.dumps({"made_with": versions, "weights": weights}, indent=2) + "\n")
    script = Path(__file__).resolve().parents[1] / "dump" / "dump_transformers.py"
    options = ["--dtype", "bf16", "--tokens", "1,39,35,26,9,41", "--decode", "2"]
    subprocess.run([sys.executable, script, "--model", folder, *options, "--out", folder / "dump.safetensors"], check=True)


if __name__ == "__main__":
    main()
