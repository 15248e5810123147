#!/usr/bin/env python3
"""Writes a copy of a model directory whose config.json has the keys of transformers 4 too; the weights are links.

transformers 5 writes RoPE's numbers as `rope_parameters`. An engine that looks for `rope_theta` and `rope_scaling`
alone runs another model without a word, or refuses it: this directory is the same model for both.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from model_files import load_config, with_older_keys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model directory")
    parser.add_argument("--out", type=Path, required=True, help="a new directory")
    arguments = parser.parse_args()
    config = with_older_keys(load_config(arguments.model))
    arguments.out.mkdir(parents=True)
    for path in sorted(arguments.model.iterdir()):
        if path.is_file() and path.name != "config.json":
            (arguments.out / path.name).symlink_to(path.resolve())
    (arguments.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"error: {error}")
