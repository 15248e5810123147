"""Writes engine/src/quant/grids.rs: the grids of ggml's IQ1, IQ2 and IQ3 types, from the tables of the gguf package.

ggml and the gguf package are under the MIT license, Copyright (c) 2023-2026 The ggml authors.
"""

import argparse
import importlib.metadata
import subprocess
from pathlib import Path

import numpy as np
from gguf import quants

HEADER = """\
//! Grids of ggml's IQ1, IQ2 and IQ3 types: a code of a file is an index into a grid, and stands for 4 or 8 numbers.
//!
//! Written by `reference-scripts/make/make_grids.py` from gguf {version} (MIT license, Copyright (c) 2023-2026 The ggml
//! authors). A grid has few levels, so a packed entry has the index of the level of each number, the first number in
//! the lowest bits.

/// Unpacks a grid of `N`-number entries, `bits` bits for each number.
const fn unpack<const N: usize, const LEN: usize>(packed: [u16; LEN], levels: &[i8], bits: u32) -> [[i8; N]; LEN] {{
    let mut grid = [[0; N]; LEN];
    let mut entry = 0;
    while entry < LEN {{
        let (mut rest, mut index) = (packed[entry], 0);
        while index < N {{
            grid[entry][index] = levels[(rest & ((1 << bits) - 1)) as usize];
            rest >>= bits;
            index += 1;
        }}
        entry += 1;
    }}
    grid
}}
"""

NAMES = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"]


def table(name: str) -> str:
    """One grid as Rust code."""
    kind = getattr(quants, name)
    kind.init_grid()
    grid, (count, width) = kind.grid.reshape(kind.grid_shape), kind.grid_shape
    bits = 16 // width if width == 8 else 3
    indices = np.searchsorted(kind.grid_map, grid)
    packed = (indices.astype(np.uint32) << (bits * np.arange(width))).sum(axis=1)
    assert np.array_equal(np.array(kind.grid_map)[packed[:, None] >> (bits * np.arange(width)) & (2**bits - 1)], grid)
    numbers = ", ".join(str(number) for number in packed)
    doc = "IQ1_S and IQ1_M" if name == "IQ1_S" else name
    head = f"/// Grid of {doc}.\npub(super) static {name}: [[i8; {width}]; {count}] ="
    return f"{head} unpack([{numbers}], &{list(map(int, kind.grid_map))}, {bits});\n"


def main() -> None:
    out = Path(__file__).resolve().parents[2] / "engine/src/quant/grids.rs"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=out)
    options = parser.parse_args()
    header = HEADER.format(version=importlib.metadata.version("gguf"))
    options.out.write_text("\n".join([header, *map(table, NAMES)]))
    config = Path(__file__).resolve().parents[2] / "rustfmt.toml"
    subprocess.run(["rustfmt", "--edition", "2024", "--config-path", config, options.out], check=True)


if __name__ == "__main__":
    main()
