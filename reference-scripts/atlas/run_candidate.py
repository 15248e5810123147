"""Runs one tiny model as a candidate and writes a dump of every module's output.

python run_candidate.py MODEL_DIR --out DUMP.safetensors [--dtype bf16] [--attention sdpa] [--compile]
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from recorder import Inputs, Run, run, write_dump
from tiny_models import example_inputs, quiet

DECODE = 1  # decoding steps after the prompt
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--dtype", choices=TYPES, default="f32")
    parser.add_argument("--attention", choices=("eager", "sdpa"), default="eager")
    parser.add_argument("--compile", action="store_true", help="compile the model with torch.compile")
    args = parser.parse_args()
    quiet()
    model = load_model(args.model, args.dtype, args.attention)
    steps = decode_steps(args.model)
    if args.compile:
        compile_model(model)
        steps = 0
    write_dump(args.out, model, run(model, prompt(model), steps), settings(model, args.dtype))


def compile_model(model: Any) -> None:
    """Compiles the whole model; hooks that exist at the first run become part of the compiled graph."""
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 4  # a part that needs more runs uncompiled
    model.forward = torch.compile(model.forward)
    model.is_compiled = True


def load_model(path: Path, dtype: str = "f32", attention: str = "eager") -> Any:
    """Loads a model for evaluation; with eager attention the experts are computed one by one, too."""
    model_class = class_of(path)
    options = {"dtype": TYPES[dtype], "local_files_only": True}
    wanted = [{"attn_implementation": attention, "experts_implementation": "eager"}] if attention == "eager" else []
    for more in [*wanted, {"attn_implementation": attention}]:
        try:
            return model_class.from_pretrained(path, **options, **more).eval()
        except (TypeError, ValueError):  # an architecture without experts, or without this kind of attention
            continue
    return model_class.from_pretrained(path, **options).eval()


def class_of(path: Path) -> Any:
    """Returns the class that the model's directory was made with."""
    name = json.loads((path / "config.json").read_text())["architectures"][0]
    if hasattr(transformers, name):
        return getattr(transformers, name)
    family = name.removesuffix("Encoder").lower()
    return getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name)


def prompt(model: Any) -> list[list[int]] | Inputs:
    """Returns the seeded prompt of 24 tokens as one pass, or the arrays of a model that reads no tokens."""
    inputs = example_inputs(model)
    return [inputs["input_ids"][0].tolist()] if "input_ids" in inputs else inputs


def decode_steps(path: Path, most: int = DECODE) -> int:
    """Returns the number of decoding steps after the prompt: 0 for a model without a usable cache."""
    listed = json.loads((path.parent / "models.json").read_text())["made"]
    return most if listed.get(path.name, {}).get("cache") else 0


def settings(model: Any, dtype: str) -> dict[str, str]:
    experts = getattr(model.config, "_experts_implementation", None) or "eager"
    compiled = {"torch_compile": "on"} if getattr(model, "is_compiled", False) else {}
    return {
        "dtype": dtype,
        "attention": model.config._attn_implementation,
        "experts": experts,
        "torch": torch.__version__,
        **compiled,
    }


def record(path: Path, dtype: str, attention: str) -> Run:
    model = load_model(path, dtype, attention)
    return run(model, prompt(model), decode_steps(path))


if __name__ == "__main__":
    main()
