#!/usr/bin/env bash
# usage: lock_requirements.sh
#
# Writes locked/: every package that an engine's environment needs, with its version and SHA-256, for Linux, macOS and
# Windows. `xcheck reference` installs these and nothing else. Needs uv (pip install uv) and PyPI.

set -euo pipefail

scripts=$(cd "$(dirname "$0")" && pwd)
cd "$scripts"

# What torch's wheel for Linux asks for and no run on the CPU loads: 1.3 of 5.6 GB. The other CUDA libraries are linked into
# torch itself, which does not start without them.
unused=(triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cuda-cccl nvidia-cusolver nvidia-nvtx)

lock() { # ENGINE REQUIREMENTS OPTION...
    echo "# Made by lock_requirements.sh of $2." > "locked/$1.txt"
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --emit-build-options \
        --no-annotate --no-header "${@:3}" "$2" >> "locked/$1.txt"
    echo "locked/$1.txt: $(grep -c '==' "locked/$1.txt") packages"
}

mkdir -p locked
lock transformers requirements.txt "${unused[@]/#/--no-emit-package=}"
lock llama.cpp requirements-llama-cpp.txt
lock mlx requirements-mlx.txt
lock tinygrad requirements-tinygrad.txt
