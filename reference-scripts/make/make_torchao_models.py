#!/usr/bin/env python3
"""Makes tests/data/quantised/torchao-*: the unquantised model of that folder, quantised and saved by transformers with
torchao, with the SHA-256 of the weights that torchao decodes. torchao-int8 is a whole model with a dump of transformers;
the other folders have the tensors of one module.

    PYTHONPATH=python/src python reference-scripts/make/make_torchao_models.py tests/data/quantised
"""

import json
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import torch
import xcheck
from safetensors import safe_open
from safetensors.torch import save_file
from torchao import quantization as ao
from torchao.quantization.granularity import PerGroup, PerTensor
from transformers import AutoModelForCausalLM, TorchAoConfig
from weight_digest import digest

TOKENS = torch.tensor([[1, 39, 35, 26, 9, 41]])
MODULE = "model.layers.0.mlp.down_proj"
WAYS = {
    "torchao-int8": ao.Int8WeightOnlyConfig(),
    "torchao-int8-groups": ao.Int8WeightOnlyConfig(granularity=PerGroup(32)),
    "torchao-w8a8": ao.Int8DynamicActivationInt8WeightConfig(),
    "torchao-fp8": ao.Float8WeightOnlyConfig(),
    "torchao-fp8-tensor": ao.Float8WeightOnlyConfig(granularity=PerTensor()),
    "torchao-int4": ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
}
WHOLE = ["torchao-int8"]


def make(original, folder, way, is_whole):
    settings = {"dtype": torch.bfloat16, "attn_implementation": "eager"}
    made = AutoModelForCausalLM.from_pretrained(original, quantization_config=TorchAoConfig(way), **settings).eval()
    quantised = {name: module.weight for name, module in made.named_modules() if hasattr(module, "weight")}
    quantised = {name: weight for name, weight in quantised.items() if hasattr(weight, "qdata")}
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as saved:
        made.save_pretrained(saved)
        with safe_open(Path(saved) / "model.safetensors", "pt") as file:
            kept = [name for name in file.keys() if is_whole or name.startswith(f"{MODULE}.")]
            tensors, words = {name: file.get_tensor(name) for name in kept}, file.metadata()
        save_file(tensors, folder / "model.safetensors", metadata=words)
        (folder / "config.json").write_text((Path(saved) / "config.json").read_text() + "\n")
    weights = {name: digest(w.dequantize()) for name, w in quantised.items() if is_whole or name == MODULE}
    versions = {library: metadata.version(library) for library in ("torch", "transformers", "torchao")}
    (folder / "decoded.json").write_text(json.dumps({"made_with": versions, "weights": weights}, indent=2) + "\n")
    if is_whole:
        mask = torch.ones_like(TOKENS)
        with torch.no_grad(), xcheck.hook(made, folder / "dump.safetensors"):
            made.generate(TOKENS, attention_mask=mask, max_new_tokens=2, min_new_tokens=2, do_sample=False)


def main():
    out = Path(sys.argv[1])
    for name, way in WAYS.items():
        print(name, flush=True)
        make(out / "original", out / name, way, name in WHOLE)


main()
