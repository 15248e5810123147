#!/usr/bin/env python3
"""Writes a llama2.c model with random weights, in the shape of stories15M unless told otherwise: something to time."""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
import llama2c_file
from llama2c_file import Sizes

# dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len
SHAPES = {
    "15M": Sizes(288, 768, 6, 6, 6, 32000, 256),
    "42M": Sizes(512, 1376, 8, 8, 8, 32000, 1024),
    "110M": Sizes(768, 2048, 12, 12, 12, 32000, 1024),
}


def random_weights(sizes: Sizes) -> dict[str, list[np.ndarray]]:
    """Weights that keep activations near 1."""
    rng = np.random.default_rng(1)
    kv = sizes.dim // sizes.n_heads * sizes.n_kv_heads

    def matrices(count: int, rows: int, columns: int) -> list[np.ndarray]:
        return [rng.standard_normal((rows, columns), np.float32) / np.float32(columns**0.5) for _ in range(count)]

    layers, norm = sizes.n_layers, np.ones(sizes.dim, np.float32)
    return {
        "token_embedding": matrices(1, sizes.vocab_size, sizes.dim),
        "rms_att": [norm] * layers,
        "wq": matrices(layers, sizes.dim, sizes.dim),
        "wk": matrices(layers, kv, sizes.dim),
        "wv": matrices(layers, kv, sizes.dim),
        "wo": matrices(layers, sizes.dim, sizes.dim),
        "rms_ffn": [norm] * layers,
        "w1": matrices(layers, sizes.hidden_dim, sizes.dim),
        "w2": matrices(layers, sizes.dim, sizes.hidden_dim),
        "w3": matrices(layers, sizes.hidden_dim, sizes.dim),
        "rms_final": [norm],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="15M")
    parser.add_argument("--version", type=int, choices=llama2c_file.VERSIONS, default=0)
    parser.add_argument("--group", type=int, default=32, help="elements that share a scale in version 2")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    arguments = parser.parse_args()
    sizes = SHAPES[arguments.shape]
    weights = random_weights(sizes)
    llama2c_file.write_model(arguments.out, arguments.version, sizes, weights, True, arguments.group)


if __name__ == "__main__":
    main()
