#!/usr/bin/env bash
# usage: [LLAMA2C_RUN=run LLAMA2C_RUNQ=runq] make_llama2c_dumps.sh VENV
#
# Makes every dump of the llama2.c files that ship again; VENV is one with requirements.txt. The two variables name
# your own builds of run.c and runq.c, made with -g and without -ffast-math: with them nothing is written that they do
# not compute, bit for bit, and the manifests say so.

set -euo pipefail

if [[ $# -ne 1 ]]; then
    echo "usage: $0 VENV" >&2
    exit 2
fi
python=$1/bin/python
here=$(dirname "$0")
scripts=$here/../dump
checkpoints=$here/../../checkpoints
data=$here/../../tests/data/llama2c
tokenizers=(--tokenizer "$checkpoints/tiny-llama2/hf/tokenizer.model")

dump() { # MODEL_FILE OUT PROGRAM OPTION...
    local program=()
    if [[ -n $3 ]]; then
        program=(--program "$3" --program-tokenizer "$checkpoints/tiny-llama2c/tokenizer.bin")
    fi
    "$python" "$scripts/dump_llama2c.py" --model "$1" --out "$2" --prompt "Once upon a time, there was" \
        "${tokenizers[@]}" "${program[@]}" "${@:4}"
}

models=$checkpoints/tiny-llama2c
mkdir -p "$models/dumps"
dump "$models/tiny-llama2c-v0.bin" "$models/dumps/llama2.c-v0.safetensors" "${LLAMA2C_RUN:-}" --decode 4
dump "$models/tiny-llama2c-v2.bin" "$models/dumps/llama2.c-v2.safetensors" "${LLAMA2C_RUNQ:-}" --decode 4
dump "$data/tiny-llama2c-v1.bin" "$data/tiny-llama2c-v1.safetensors" "" --decode 4 # no program reads it
dump "$data/tiny-llama2-v2.bin" "$data/tiny-llama2-v2.safetensors" "${LLAMA2C_RUNQ:-}" --decode 2
dump "$data/untied-v0.bin" "$data/untied-v0.safetensors" "${LLAMA2C_RUN:-}" --decode 2
