#!/usr/bin/env bash
# usage: make_batch_dumps.sh TRANSFORMERS_VENV
#
# Makes the dumps in tests/data/sequences again, byte for byte: what transformers computes of several sequences at once,
# padded and packed, and with a mask that hides nothing of others; and of one in some rows. The environment is one with
# requirements.txt.

set -euo pipefail

if [[ $# -ne 1 ]]; then
    sed -n '2p' "$0" | cut -c3- >&2
    exit 2
fi
python=$(realpath -s "$1")/bin/python
cd "$(dirname "$0")"
out=../../tests/data/sequences
mkdir -p "$out"

dump() { # MODEL NAME OPTIONS...
    rm -f "$out/$2.safetensors"
    "$python" ../dump/dump_batch.py --model "../../checkpoints/$1/hf" --name "$1" --decode 1 \
        --tokens 1,393,395,260,394 --tokens 1,486,263 --tokens 1,305,315,17,200,77,21 --tokens 1,88 \
        --out "$out/$2.safetensors" "${@:3}"
}

attention=embed,q_rope,k_rope,k_cache,v_cache,attn_scores,attn_weights,attn_context,block_out
dump tiny-llama3 llama3-padded
dump tiny-llama3 llama3-padded-bf16 --dtype bf16
dump tiny-llama3 llama3-padded-mistake --mistake --taps "$attention"
dump tiny-gpt2 gpt2-packed --packed
dump tiny-gpt2 gpt2-packed-mistake --packed --mistake --taps "$attention"

rm -f "$out/llama3-rows.safetensors"
"$python" ../dump/dump_transformers.py --model ../../checkpoints/tiny-llama3/hf --name tiny-llama3 --decode 1 \
    --tokens 1,393,395,260,394,486,263,305 --rows 0,3-4,7 --out "$out/llama3-rows.safetensors"
