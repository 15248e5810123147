#!/usr/bin/env python3
"""Writes small checkpoints with the real torch.save: what the reader of `pytorch_model.bin` is tested against.

Those that must be read have a `.safetensors` twin with the values that torch itself loads from them. The others must
be refused: they hold more than a state dict of plain tensors, or are of torch's older form.
"""

import argparse
import os
from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import save_file

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "tests" / "data" / "pytorch"


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers that every type can hold, no two alike."""
    count = torch.Size(shape).numel()
    return torch.arange(1, count + 1).reshape(shape).to(dtype)


def plain() -> OrderedDict:
    """Every type, layout and way of sharing that a state dict of dense tensors may hold."""
    types = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool".split()
    tensors = OrderedDict((f"type.{name}", numbers(2, 3, dtype=getattr(torch, name))) for name in types)
    base = numbers(4, 6)
    tensors |= {
        "layout.base": base,
        "layout.tied": base,
        "layout.rows": base[1:3],
        "layout.columns": base[:, 2:4],
        "layout.transposed": base.t(),
        "layout.swapped": numbers(2, 3, 4).transpose(0, 2),
        "layout.every_other": base[::2, ::3],
        "layout.repeated": numbers(3).expand(2, 3),
        "layout.one_row": base[2:3].t(),
        "shape.scalar": torch.tensor(-1.5),
        "shape.in_a_storage": base[3, 5],
        "shape.empty": torch.empty(0, 4),
        "shape.axes": numbers(1, 2, 1, 3, 1),
        "class.parameter": torch.nn.Parameter(numbers(5)),
        "name.ünï.▁code": numbers(1),
    }
    return tensors


class Module(torch.nn.Module):
    """A module whose state dict has attributes of its own, a buffer, and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(3, 2)
        self.head = torch.nn.Linear(2, 3)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.tensor(7))


class Hostile:
    """What an attacker adds to a checkpoint: torch.load(weights_only=False) would run the command."""

    def __reduce__(self) -> tuple:
        return os.system, ("echo this checkpoint has run a command",)


def readable() -> dict:
    torch.manual_seed(0)
    module = Module().state_dict()
    return {
        "plain": (plain(), {}),
        "protocol-5": (plain(), {"pickle_protocol": 5}),
        "module": (module, {}),
    }


def refused() -> dict:
    weight = numbers(2, 2)
    return {
        "nested": ({"epoch": 3, "model": {"weight": weight}}, {}),
        "list": ([weight], {}),
        "hostile": ({"weight": weight, "extra": Hostile()}, {}),
        "hostile-protocol-4": ({"weight": weight, "extra": Hostile()}, {"pickle_protocol": 4}),
        "whole-module": (torch.nn.Linear(2, 2), {}),
        "negated": ({"weight": torch._neg_view(weight)}, {}),
        "complex": ({"weight": weight.to(torch.complex64)}, {}),
        "float8": ({"weight": weight.to(torch.float8_e4m3fn)}, {}),
        "sparse": ({"weight": weight.to_sparse()}, {}),
        "legacy": ({"weight": weight}, {"_use_new_zipfile_serialization": False}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder to write to")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, (content, options) in (readable() | refused()).items():
        torch.save(content, out / f"{name}.bin", **options)
    for name in readable():
        # torch's own restricted reader stops at protocol 3; these files are our own.
        loaded = torch.load(out / f"{name}.bin", weights_only=False)
        # safetensors writes no tensor that shares memory with another.
        own = {key: tensor.detach().clone(memory_format=torch.contiguous_format) for key, tensor in loaded.items()}
        save_file(own, out / f"{name}.safetensors", metadata={"torch": torch.__version__})
    print(f"{out}: {len(readable())} to be read, {len(refused())} to be refused")


if __name__ == "__main__":
    main()
