#!/usr/bin/env python3
"""Writes one small BitNet model in the forms that transformers reads, and a dump of each by dump_transformers.py.

The source is a packed f32 checkpoint of random ternary weights. From it come: itself; `bf16`, everything stored as
bf16, as the released checkpoint is; `bitlinear`, the older linear class, which divides by weight_scale; and `online`,
bf16 master weights that are quantised as the model runs. `silu.safetensors` is a dump of the source with its
activation replaced: a wrong reference on purpose.

Needs requirements.txt.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

INPUT = ["--tokens", "1,15,200,77,3", "--decode", "3", "--threads", "1"]
SCALE = ".weight_scale"

Tensors = dict[str, Tensor]


def to_bf16(tensors: Tensors) -> Tensors:
    return {name: t if t.dtype is torch.uint8 else t.to(torch.bfloat16) for name, t in tensors.items()}


def inverted(tensors: Tensors) -> Tensors:
    """`bitlinear` divides by what `autobitlinear` multiplies with."""
    return {name: 1 / t if name.endswith(SCALE) else t for name, t in tensors.items()}


def unpacked(packed: Tensor) -> Tensor:
    """rows / 4 x columns of bytes as rows x columns of -1, 0 and 1."""
    return torch.cat([packed >> 2 * part & 3 for part in range(4)]).float() - 1


def masters(tensors: Tensors) -> Tensors:
    """Weights before they are quantised: off their ternary values by up to 0.3 of the scale."""
    random = torch.Generator().manual_seed(0)

    def master(name: str, packed: Tensor) -> Tensor:
        noise = (torch.rand(4 * packed.shape[0], packed.shape[1], generator=random) - 0.5) * 0.6
        return (unpacked(packed) + noise) * tensors[name.removesuffix(".weight") + SCALE]

    kept = {name: t for name, t in tensors.items() if not name.endswith(SCALE)}
    return {name: master(name, t) if t.dtype is torch.uint8 else t for name, t in kept.items()}


def write(directory: Path, config: dict, tensors: Tensors) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file({name: t.contiguous() for name, t in tensors.items()}, directory / "model.safetensors", {"format": "pt"})


def dump(directory: Path, dtype: str, out: Path, *options: str) -> None:
    script = Path(__file__).resolve().parents[1] / "dump" / "dump_transformers.py"
    command = [sys.executable, script, "--model", directory, "--dtype", dtype, "--name", f"tiny-bitnet-{directory.name}"]
    out.unlink(missing_ok=True)
    subprocess.run([*command, *INPUT, "--out", out, *options], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="a packed f32 checkpoint: autobitlinear, offline")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[2] / "tests/data/bitnet")
    arguments = parser.parse_args()
    config = json.loads((arguments.source / "config.json").read_text())
    tensors = load_file(arguments.source / "model.safetensors")

    def variant(dtype: str, linear: str, mode: str) -> dict:
        quantised = {"quant_method": "bitnet", "linear_class": linear, "quantization_mode": mode}
        return config | {"dtype": dtype, "quantization_config": quantised}

    models = {
        "packed": (config, tensors, ["f32"]),
        "bf16": (variant("bfloat16", "autobitlinear", "offline"), to_bf16(tensors), ["bf16"]),
        "bitlinear": (variant("bfloat16", "bitlinear", "offline"), to_bf16(inverted(tensors)), ["f32", "bf16"]),
        "online": (variant("bfloat16", "autobitlinear", "online"), to_bf16(masters(tensors)), ["f32", "bf16"]),
    }
    for name, (made, weights, dtypes) in models.items():
        write(arguments.out / name, made, weights)
        for dtype in dtypes:
            dump(arguments.out / name, dtype, arguments.out / name / f"dumps/transformers-{dtype}.safetensors")
    dump(arguments.out / "packed", "f32", arguments.out / "silu.safetensors", "--activation", "silu")


if __name__ == "__main__":
    main()
