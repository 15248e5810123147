#!/usr/bin/env bash
# usage: make_dumps.sh ONNXRUNTIME_VENV VLLM_VENV SGLANG_VENV MISTRALRS_VENV TRANSFORMERS_VENV
#
# Makes the dumps of the first four engines in tests/data/engines again, and those of several devices, each environment as its
# folder's README.md says.

set -euo pipefail

if [[ $# -ne 5 ]]; then
    echo "usage: $0 ONNXRUNTIME_VENV VLLM_VENV SGLANG_VENV MISTRALRS_VENV TRANSFORMERS_VENV" >&2
    exit 2
fi
onnxruntime=$1/bin/python vllm=$2/bin/python sglang=$3/bin/python mistralrs=$4/bin/python torchrun=$5/bin/torchrun
here=$(dirname "$0")
checkpoints=$here/../../checkpoints
out=$here/../../tests/data/engines
older=$(mktemp -d)
trap 'rm -r "$older"' EXIT
for model in tiny-llama2 tiny-llama3 tiny-qwen3; do
    "$vllm" "$here/../dump/older_config.py" --model "$checkpoints/$model/hf" --out "$older/$model"
done

# The tokens of the shipped dumps, and what is small and tells where an engine rounds.
tokens=1,393,395,260,394,486,263,305,315,17,200,77
taps=embed,attn_norm,q,k,v,q_rope,k_rope,attn_context,attn_out,attn_residual
taps+=,ffn_norm,ffn_gate,ffn_up,ffn_act,ffn_out,block_out,final_norm,last_logits,argmax

run() { # MODEL FILE PROGRAM...
    mkdir -p "$out/$1"
    rm -f "$out/$1/$2.safetensors"
    "${@:3}" --name "$1" --tokens "${our_tokens:-$tokens}" --out "$out/$1/$2.safetensors"
}

ort=("$onnxruntime" "$here/onnxruntime/dump_onnxruntime.py" --taps "$taps,logits")
run tiny-gpt2 onnxruntime-f32 "${ort[@]}" --model "$checkpoints/tiny-gpt2/hf"
run tiny-gemma3 onnxruntime-f32 "${ort[@]}" --taps "${taps/ffn_gate,ffn_up,/},logits" --model "$checkpoints/tiny-gemma3/hf"
run tiny-llama3 onnxruntime-f32 "${ort[@]}" --model "$checkpoints/tiny-llama3/hf" --decode 0
run tiny-llama3 onnxruntime-f32-older-keys "${ort[@]}" --model "$older/tiny-llama3" --decode 0
run tiny-llama3 onnxruntime-f32-older-keys-off "${ort[@]}" --model "$older/tiny-llama3" --optimise off --decode 0
run tiny-llama3 onnxruntime-f32-older-keys-exp "${ort[@]}" --model "$older/tiny-llama3" --sigmoid exp --decode 0
run tiny-qwen3 onnxruntime-int8-older-keys "${ort[@]}" --taps logits,argmax --model "$older/tiny-qwen3" --quantise

for dtype in f32 bf16; do
    for engine in vllm sglang; do
        run tiny-qwen3 $engine-$dtype "${!engine}" "$here/$engine/dump_$engine.py" --taps "$taps" --dtype $dtype \
            --model "$checkpoints/tiny-qwen3/hf"
    done
done

# Several devices: the products that they share, and what these start from.
our_tokens=1,393,395,260,394,486,263,305
taps=attn_context,attn_out,attn_residual,ffn_act,ffn_out,block_out
shared=("$vllm" "$here/vllm/dump_vllm_tensor_parallel.py" --taps "$taps,last_logits")
run tiny-qwen3 vllm-tp2-f16 "${shared[@]}" --ranks 2 --dtype f16 --model "$checkpoints/tiny-qwen3/hf"
run tiny-llama2 vllm-tp4-bf16 "${shared[@]}" --ranks 4 --dtype bf16 --model "$checkpoints/tiny-llama2/hf"
ranks=("$torchrun" --standalone --nproc-per-node 4 "$here/../dump/dump_tensor_parallel.py")
run tiny-llama2 transformers-tp4-bf16 "${ranks[@]}" --taps "$taps,logits" --dtype bf16 --model "$checkpoints/tiny-llama2/hf"

# What they save by themselves, under their own names.
foreign=$here/../../tests/data/foreign
our_tokens=1,5,9,12,3,7
scratch=$older/scratch.safetensors
"$vllm" "$here/vllm/dump_vllm.py" --model "$checkpoints/tiny-qwen3/hf" --tokens "$our_tokens" --out "$scratch" \
    --hooked "$foreign/tiny-qwen3-vllm.pt"
rm "$scratch"
"$sglang" "$here/sglang/dump_sglang.py" --model "$checkpoints/tiny-qwen3/hf" --tokens "$our_tokens" --out "$scratch" \
    --raw "$foreign/tiny-qwen3-sglang.pt"
our_tokens=

mistral=("$mistralrs" "$here/mistralrs/dump_mistralrs.py")
run tiny-qwen3 mistralrs-f32-older-keys "${mistral[@]}" --model "$older/tiny-qwen3"
run tiny-qwen3 mistralrs-f32-older-keys-kv-f32 "${mistral[@]}" --model "$older/tiny-qwen3" --kv f32
our_tokens=1,393,395,260,394,486,263,305,315
run tiny-llama2 mistralrs-bf16-older-keys "${mistral[@]}" --model "$older/tiny-llama2" --dtype bf16
run tiny-llama2 mistralrs-gguf-q8_0 "${mistral[@]}" --model "$checkpoints/tiny-llama2/tiny-llama2-q8_0.gguf" \
    --prompt "Once upon a time, there was" --tokenizer "$checkpoints/tiny-llama2/hf/tokenizer.json" \
    --config "$checkpoints/tiny-llama2/hf/config.json"
