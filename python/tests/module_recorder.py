"""Records the output of every module of a torch model as a dump."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from xcheck.evaluator.outputs import recorded
from xcheck.follow import CACHES

NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.int64: "i32"}


def record(
    model, passes: list[list[int]], out: Path, only=None, attention: str = "eager", settings=None, **options
) -> Path:
    """Runs the passes, and writes the dump."""
    tensors, rows, calls, number = {}, [], {}, 0

    def hook(name):
        def keep(_module, _args, output):
            value = recorded(output)
            call = calls.get(name, 0)
            calls[name] = call + 1
            if value is None or value.dtype not in NAMES or (only is not None and name not in only):
                return
            file = f"p{number}/{name}" + (f"/{call}" if call else "")
            value = value.detach()
            tensors[file] = (value if value.is_floating_point() else value.to(torch.int32)).clone().contiguous()
            shape = list(value.shape)
            rows.append(
                {
                    "module": name,
                    "pass": number,
                    "call": call,
                    "dtype": NAMES[value.dtype],
                    "shape": shape,
                    "file": file,
                }
            )

        return keep

    handles = [m.register_forward_hook(hook(n or "logits")) for n, m in model.named_modules()]
    cache, position, listed = {}, 0, []
    try:
        for number, tokens in enumerate(passes):  # noqa: B007  (the hooks read the number)
            calls.clear()
            with torch.no_grad():
                output = model(input_ids=torch.tensor([tokens]), use_cache=len(passes) > 1, **cache, **options)
            for key in CACHES:
                if len(passes) > 1 and getattr(output, key, None) is not None:
                    cache[key] = getattr(output, key)
            listed.append({"position": position, "tokens": tokens})
            position += len(tokens)
    finally:
        for handle in handles:
            handle.remove()
    manifest = {
        "format": "xcheck-dump",
        "version": 1,
        "producer": {
            "name": "transformers",
            "settings": {"dtype": NAMES[model.dtype], "attention": attention, **(settings or {})},
        },
        "model": {"name": "tiny", "architecture": model.config.model_type},
        "input": {"tokens": passes[0], "decode": "forced"},
        "passes": listed,
        "tensors": rows,
    }
    save_file(tensors, out, {"xcheck": json.dumps(manifest)})
    return out
