#!/usr/bin/env python3
"""Saves the output of every module of a transformers model, as anybody does who looks into a model for the first time.

What comes out knows nothing of xcheck: a dict of tensors by the names of modules, read by `xcheck check --map transformers`.
"""

import argparse

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", required=True, help="model directory or hub id")
parser.add_argument("--tokens", required=True, help="1,2,3")
parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16 (default: float32)")
parser.add_argument("--out", required=True, help="FILE.pt, or FILE.safetensors")
arguments = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=getattr(torch, arguments.dtype)).eval()
saved = {}
for name, module in model.named_modules():

    def hook(_, args, output, name=name):
        """Keeps what leaves the module: a tensor, or the tensors of a tuple."""
        outputs = enumerate(output) if isinstance(output, tuple) else [(None, output)]
        for index, value in outputs:
            if isinstance(value, torch.Tensor):
                saved[name if index is None else f"{name}.{index}"] = value.detach().clone().contiguous()

    module.register_forward_hook(hook)
tokens = torch.tensor([[int(token) for token in arguments.tokens.split(",")]])
with torch.no_grad():
    model(input_ids=tokens, use_cache=False)
if arguments.out.endswith(".safetensors"):
    save_file(saved, arguments.out)
else:
    torch.save(saved, arguments.out)
print(f"{arguments.out}: {len(saved)} tensors")
