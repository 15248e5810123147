#!/usr/bin/env python3
"""Writes the weights of a GGUF file, decoded by transformers to f32, as a Hugging Face directory."""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="GGUF file")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    options = parser.parse_args()
    folder, name = options.file.parent, options.file.name
    decoded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    # transformers refuses to save a model that it read from a GGUF file.
    config = decoded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(decoded.state_dict())
    model.save_pretrained(options.out)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(options.out)


if __name__ == "__main__":
    main()
