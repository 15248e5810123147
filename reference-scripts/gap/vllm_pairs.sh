#!/usr/bin/env bash
# Judges rollouts of vLLM against TRL's trainer, for two tiny models and SmolLM2 135M in f32 and bf16.
# usage: VLLM=python TRL=python XCHECK=program vllm_pairs.sh SMOLLM2.gguf OUT
# VLLM is the Python of ../engines/vllm; TRL has trl, torch, transformers and gguf.
set -euo pipefail
gguf=$(realpath "$1") out=$(realpath "$2")
cd "$(dirname "$0")/../.."
vllm=${VLLM:-python3} trl=${TRL:-python3} xcheck=${XCHECK:-xcheck}
export HF_HUB_OFFLINE=1
mkdir -p "$out/pairs"
[ -d "$out/smollm2" ] || "$trl" reference-scripts/gap/decode_gguf.py "$gguf" --out "$out/smollm2"

pair() { # NAME FOLDER DTYPE TEMPERATURE [OPTION...]
    local name=$1 folder=$2 dtype=$3 temperature=$4 rollouts=$out/$1-$3-$4.jsonl
    shift 4
    [ -s "$rollouts" ] || "$vllm" reference-scripts/gap/vllm_rollouts.py --folder "$folder" --dtype "$dtype" \
        --temperature "$temperature" --out "$rollouts" "$@"
    "$trl" reference-scripts/gap/trl_pairs.py --name "$name" --folder "$folder" --dtype "$dtype" \
        --temperature "$temperature" --rollouts "$rollouts" --xcheck "$xcheck" --out "$out/pairs"
}

for dtype in f32 bf16; do
    for model in tiny-llama2 tiny-qwen3; do
        pair $model "checkpoints/$model/hf" $dtype 1.0 --sequences 256
        pair $model "checkpoints/$model/hf" $dtype 0.7 --sequences 128
    done
    pair smollm2 "$out/smollm2" $dtype 1.0 --texts --sequences 128 --steps 16
done
