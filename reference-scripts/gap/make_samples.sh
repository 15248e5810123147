#!/usr/bin/env bash
# Makes tests/data/gap: pairs of log-probabilities of shipped models, two of them with routing replay data, and batches of
# them as libraries save them. make_parquet.py makes tests/data/gap/parquet from these.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
out=${1:-tests/data/gap}
correct=f32_cache,f32_sdpa,f16_cache,bf16_cache,bf16_sdpa,bf16_eager
faults=temperature_0.7,top_p_0.9,greedy_token,stale_prefix,packed,versions
"$python" reference-scripts/gap/make_pairs.py --name tiny-qwen3 --folder checkpoints/tiny-qwen3/hf --sequences 16 \
    --steps 40 --columns "$correct,$faults" --out "$out"
"$python" reference-scripts/gap/make_pairs.py --name tiny-llama3 --folder checkpoints/tiny-llama3/hf --sequences 16 \
    --steps 40 --columns "f32_cache,f32_sdpa,bf16_cache,bf16_sdpa,temperature_1.2,positions_from_25" --out "$out"
for model in tiny-qwen3moe tiny-mixtral; do
    "$python" reference-scripts/gap/make_routes.py --folder tests/data/architectures/$model/hf --sequences 24 --steps 20 \
        --out "$out/$model.jsonl"
done
"$python" reference-scripts/gap/make_batches.py --pairs "$out/tiny-qwen3.jsonl" --routes "$out/tiny-qwen3moe.jsonl" --out "$out"
