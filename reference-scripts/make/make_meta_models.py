#!/usr/bin/env python3
"""Writes a small random Llama in Meta's original files, whole and in two parts, and runs it with Meta's own code.

Needs torch, and the packages llama-models 0.3.0 and fairscale 0.4.13 (their other dependencies are not needed):

    pip install --no-deps --target meta llama-models==0.3.0 fairscale==0.4.13
    PYTHONPATH=meta:python/src python reference-scripts/make/make_meta_models.py --out tests/data/meta
"""

import argparse
import json
import os
from pathlib import Path

import fairscale.nn.model_parallel.initialize as parallel
import torch
import xcheck
from llama_models.llama3.args import ModelArgs
from llama_models.llama3.model import Transformer

PARAMS = {
    "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 64, "multiple_of": 16,
    "ffn_dim_multiplier": 1.1, "norm_eps": 1e-05, "rope_theta": 500000.0, "use_scaled_rope": True,
}  # fmt: skip
TOKENS = [1, 17, 42, 5, 60, 33, 8, 21, 9, 50, 2, 13]
# Axis along which the matrices of a part are cut.
ROWS = ("wq", "wk", "wv", "w1", "w3", "output", "tok_embeddings")
COLUMNS = ("wo", "w2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    torch.distributed.init_process_group("gloo")
    parallel.initialize_model_parallel(1)
    torch.manual_seed(3)
    model = Transformer(ModelArgs(**PARAMS, max_batch_size=1, max_seq_len=32)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(1 + 0.1 * torch.randn_like(weight) if "norm" in name else 0.2 * torch.randn_like(weight))
            weight.copy_(weight.bfloat16())
    write(model, options.out)
    record(model, options.out / "llama-models-f32.safetensors")


def write(model: torch.nn.Module, out: Path) -> None:
    """Saves the weights in bf16, in one file and in two."""
    weights = {name: weight.detach().bfloat16() for name, weight in model.named_parameters()}
    for folder, parts in (("whole", 1), ("parts", 2)):
        (out / folder).mkdir(parents=True, exist_ok=True)
        (out / folder / "params.json").write_text(json.dumps(PARAMS) + "\n")
        for part in range(parts):
            own = {name: cut(name, weight, part, parts) for name, weight in weights.items()}
            torch.save(own, out / folder / f"consolidated.{part:02}.pth")


def cut(name: str, weight: torch.Tensor, part: int, parts: int) -> torch.Tensor:
    """Returns the part of a matrix that Meta's parallel layers have."""
    kind = name.split(".")[-2]
    axis = 0 if kind in ROWS else 1 if kind in COLUMNS else None
    return weight.clone() if axis is None else weight.chunk(parts, axis)[part].clone()


@torch.no_grad()
def record(model: torch.nn.Module, path: Path) -> None:
    """Runs the model on the tokens, in f32."""
    with xcheck.Dump(path, producer="llama-models", architecture="llama", tokens=TOKENS) as dump:
        with dump.forward(TOKENS):
            found: dict[str, torch.Tensor] = {}
            hook = lambda name: lambda _m, _i, out: found.__setitem__(name, out[0])  # noqa: E731
            model.tok_embeddings.register_forward_hook(hook("embed"))
            for number, layer in enumerate(model.layers):
                layer.register_forward_hook(hook(f"block_out.{number}"))
                layer.attention.register_forward_hook(hook(f"attn_out.{number}"))
                layer.feed_forward.register_forward_hook(hook(f"ffn_out.{number}"))
            model.norm.register_forward_hook(hook("final_norm"))
            logits = model(torch.tensor([TOKENS]), 0)[0]
            dump.tap("embed", found["embed"].numpy())
            for number in range(len(model.layers)):
                for tap in ("attn_out", "ffn_out", "block_out"):
                    dump.tap(tap, found[f"{tap}.{number}"].numpy(), layer=number)
            dump.tap("final_norm", found["final_norm"].numpy())
            dump.tap("logits", logits.numpy())


if __name__ == "__main__":
    main()
