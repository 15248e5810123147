#!/usr/bin/env bash
# usage: make_engine_dumps.sh TRANSFORMERS_VENV MLX_VENV CTRANSLATE2_VENV DUMP_CANDLE
#
# Makes tests/data/engines again. The environments are those of requirements.txt, requirements-mlx.txt and
# requirements-ctranslate2.txt, the last is the program built of dump_candle. The last bits depend on the processor.

set -euo pipefail

if [[ $# -ne 4 ]]; then
    echo "usage: $0 TRANSFORMERS_VENV MLX_VENV CTRANSLATE2_VENV DUMP_CANDLE" >&2
    exit 2
fi
transformers=$1/bin/python mlx=$2/bin/python ctranslate2=$3/bin/python candle=$4
here=$(dirname "$0")
scripts=$here/../dump
checkpoints=$here/../../checkpoints
out=$here/../../tests/data/engines
older=$(mktemp -d)
trap 'rm -r "$older"' EXIT
mkdir -p "$out"

# The tokens of the shipped dumps.
declare -A tokens=(
    [tiny-llama2]=1,393,395,260,394,486,263,305,315
    [tiny-llama3]=1,393,395,260,394,486,263,305,315,17,200,77
    [tiny-qwen3]=1,393,395,260,394,486,263,305,315,17,200,77
    [tiny-gemma3]=1,393,395,260,394,486,263,305,315,17,200,77
)

# What is small, without the caches and the wide rows of the feed-forward block.
taps=embed,attn_norm,q,k,v,q_rope,k_rope,attn_context,attn_out,ffn_norm,ffn_out,block_out,final_norm
taps+=,logits,last_logits,argmax,probs,generated

run() { # MODEL FILE PROGRAM...
    "${@:3}" --name "$1" --tokens "${tokens[$1]}" --out "$out/$1/$2.safetensors"
}

for model in "${!tokens[@]}"; do
    mkdir -p "$out/$model"
    "$transformers" "$scripts/older_config.py" --model "$checkpoints/$model/hf" --out "$older/$model"
done

for dtype in f32 bf16; do
    model=tiny-llama2 hf=$checkpoints/tiny-llama2/hf
    run $model transformers-sdpa-$dtype "$transformers" "$scripts/dump_transformers.py" --model "$hf" \
        --dtype $dtype --attention sdpa --decode 1 --taps "$taps"
    run $model mlx-lm-$dtype "$mlx" "$scripts/dump_mlx.py" --model "$hf" --dtype $dtype --decode 1 --taps "$taps"
    run $model candle-$dtype "$candle" --model "$hf" --dtype $dtype --decode 2
done
run tiny-llama2 mlx-lm-f32-one-by-one "$mlx" "$scripts/dump_mlx.py" --model "$hf" --decode 1 --one-by-one \
    --taps block_out,last_logits,argmax,generated
run tiny-llama2 candle-f32-one-by-one "$candle" --model "$hf" --decode 1 --one-by-one
run tiny-llama2 ctranslate2-f32 "$ctranslate2" "$scripts/dump_ctranslate2.py" --model "$hf" --decode 2
run tiny-llama2 ctranslate2-int8 "$ctranslate2" "$scripts/dump_ctranslate2.py" --model "$hf" --decode 2 \
    --compute int8_float32
run tiny-llama2 candle-gguf-q8_0 "$candle" --model "$checkpoints/tiny-llama2/tiny-llama2-q8_0.gguf" --decode 2

for cast in "tiny-llama3 bf16 sdpa" "tiny-qwen3 f16 eager" "tiny-gemma3 bf16 sdpa"; do
    read -r model dtype attention <<<"$cast"
    run "$model" transformers-autocast-$dtype "$transformers" "$scripts/dump_transformers.py" --model "$checkpoints/$model/hf" \
        --autocast $dtype --attention $attention --decode 1 --taps "$taps,q_norm,k_norm,attn_post_norm,ffn_post_norm"
done

# Fused by torch.compile, which leaves unrounded what stays in one kernel.
for kind in "tiny-gemma3 bf16 sdpa" "tiny-qwen3 f16 eager"; do
    read -r model dtype attention <<<"$kind"
    run "$model" transformers-compiled-$dtype "$transformers" "$scripts/dump_transformers.py" --compile --dtype $dtype \
        --model "$checkpoints/$model/hf" --attention $attention --decode 1 \
        --taps "$taps,q_norm,k_norm,attn_scores,attn_weights,attn_post_norm,attn_residual,ffn_post_norm"
done

# Each engine's own mistakes, and the same model where it makes none.
model=tiny-llama3 hf=$checkpoints/tiny-llama3/hf
run $model mlx-lm-f32 "$mlx" "$scripts/dump_mlx.py" --model "$hf" --decode 1 --taps "$taps"
run $model mlx-lm-f32-older-keys "$mlx" "$scripts/dump_mlx.py" --model "$older/$model" --decode 1 --taps "$taps"
for dtype in f32 bf16; do
    run $model candle-$dtype "$candle" --model "$hf" --dtype $dtype --decode 2
    run $model candle-$dtype-older-keys "$candle" --model "$older/$model" --dtype $dtype --decode 2
done
run $model candle-gguf-f32 "$candle" --model "$checkpoints/$model/$model-f32.gguf" --decode 2
run $model ctranslate2-f32 "$ctranslate2" "$scripts/dump_ctranslate2.py" --model "$hf" --decode 2

model=tiny-qwen3 hf=$checkpoints/tiny-qwen3/hf
run $model candle-f32-older-keys "$candle" --model "$older/$model" --decode 2
run $model candle-gguf-f32 "$candle" --model "$checkpoints/$model/$model-f32.gguf" --decode 2
run $model ctranslate2-f32 "$ctranslate2" "$scripts/dump_ctranslate2.py" --model "$hf" --decode 2

model=tiny-gemma3 hf=$checkpoints/tiny-gemma3/hf
for dtype in f32 bf16; do
    run $model mlx-lm-$dtype "$mlx" "$scripts/dump_mlx.py" --model "$hf" --dtype $dtype --decode 1 \
        --taps embed,block_out,final_norm,logits,last_logits,argmax,generated
done
run $model candle-f32-older-keys "$candle" --model "$older/$model" --decode 2
run $model candle-gguf-f32 "$candle" --model "$checkpoints/$model/$model-f32.gguf" --decode 2
