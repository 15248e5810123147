#!/usr/bin/env bash
# usage: make_tiny_llama2_dumps.sh TRANSFORMERS_VENV LLAMA_CPP_VENV
#
# Makes every dump in checkpoints/tiny-llama2/dumps again, byte for byte. The first environment is one with
# requirements.txt, the second is build_dump_llama_cpp.sh's.

set -euo pipefail

if [[ $# -ne 2 ]]; then
    echo "usage: $0 TRANSFORMERS_VENV LLAMA_CPP_VENV" >&2
    exit 2
fi
transformers=$1 llama_cpp=$2
scripts=$(dirname "$0")
model=$scripts/../checkpoints/tiny-llama2
dumps=$model/dumps
input=(--prompt "Once upon a time, there was" --decode 4 --threads 1)

"$transformers/bin/python" "$scripts/dump_transformers.py" --model "$model/hf" --name tiny-llama2 "${input[@]}" \
    --dtype f32 --out "$dumps/transformers-f32.safetensors"

# An f32 cache beside f32 weights, so that nothing at all is rounded to f16; elsewhere llama.cpp's default.
dump_llama_cpp() { # WEIGHTS KV_CACHE
    "$llama_cpp/bin/dump_llama_cpp" --model "$model/tiny-llama2-$1.gguf" "${input[@]}" \
        --kv "$2" --out "$dumps/llama.cpp-$1.safetensors"
}
dump_llama_cpp f32 f32
dump_llama_cpp f16 f16
dump_llama_cpp q8_0 f16
