#!/usr/bin/env bash
# usage: make_dumps.sh TRANSFORMERS_VENV LLAMA_CPP_VENV [MODEL...]
#
# Makes every dump in checkpoints/MODEL/dumps again, byte for byte, of every model if none is named. The first
# environment is one with requirements.txt, the second is build_dump_llama_cpp.sh's. The variable TINYGRAD_VENV names
# one with requirements-tinygrad.txt: without it, tinygrad's dumps are left as they are. CHECKPOINTS names another
# folder of models.

set -euo pipefail

if [[ $# -lt 2 ]]; then
    echo "usage: $0 TRANSFORMERS_VENV LLAMA_CPP_VENV [MODEL...]" >&2
    exit 2
fi
transformers=$1 llama_cpp=$2
shift 2
here=$(dirname "$0")
scripts=$here/../dump
checkpoints=${CHECKPOINTS:-$here/../../checkpoints}

dump_transformers() { # MODEL DTYPE INPUT...
    "$transformers/bin/python" "$scripts/dump_transformers.py" --model "$checkpoints/$1/hf" --name "$1" \
        --dtype "$2" --out "$checkpoints/$1/dumps/transformers-$2.safetensors" --threads 1 "${@:3}"
}

dump_llama_cpp() { # MODEL WEIGHTS KV_CACHE INPUT...
    "$llama_cpp/bin/dump_llama_cpp" --model "$checkpoints/$1/$1-$2.gguf" --kv "$3" \
        --out "$checkpoints/$1/dumps/llama.cpp-$2.safetensors" --threads 1 "${@:4}"
}

# No FMA instructions and nothing of this machine's CPU, so that another x86-64 makes the same dump.
dump_tinygrad() { # MODEL DIRECTORY INPUT...
    if [[ -z ${TINYGRAD_VENV:-} ]]; then
        echo "note: TINYGRAD_VENV is not set, $1's dump by tinygrad stays as it is" >&2
        return
    fi
    DEV=CPU:CLANG:x86_64,x86-64 "$TINYGRAD_VENV/bin/python" "$scripts/dump_tinygrad.py" --model "$checkpoints/$1/$2" \
        --name "$1" --out "$checkpoints/$1/dumps/tinygrad-f32.safetensors" "${@:3}"
}

make_dumps() { # MODEL
    local input dtypes dtype weights cache tinygrad_model=
    if [[ ! -d $checkpoints/$1/hf ]]; then
        echo "error: no folder $checkpoints/$1/hf; make_tiny_models.py makes it" >&2
        exit 2
    fi
    input=(--tokens 1,393,395,260,394,486,263,305,315,17,200,77 --decode 3) # the input that make_tiny_models.py checks
    dtypes=(f32 bf16)
    case $1 in
        tiny-llama2) input=(--prompt "Once upon a time, there was" --decode 4) ;;
        tiny-qwen3 | tiny-llama3 | tiny-gemma3) dtypes+=(f16) ;;
        tiny-gpt2)
            input=(--prompt "Once, Mia's fox said 7 times" --decode 3)
            dtypes+=(f16)
            tinygrad_model=pt # what tinygrad's own example reads
            ;;
    esac
    for dtype in "${dtypes[@]}"; do
        dump_transformers "$1" "$dtype" "${input[@]}"
    done
    # An f32 cache beside f32 weights, so that nothing at all is rounded to f16; elsewhere llama.cpp's default.
    # Models that llama.cpp does not read have no GGUF files.
    for weights in f32 f16 q8_0 mxfp4; do
        cache=f16
        [[ $weights == f32 ]] && cache=f32
        if [[ -e $checkpoints/$1/$1-$weights.gguf ]]; then
            dump_llama_cpp "$1" "$weights" "$cache" "${input[@]}"
        fi
    done
    if [[ -n $tinygrad_model ]]; then
        dump_tinygrad "$1" "$tinygrad_model" "${input[@]}"
    fi
    if [[ $1 == tiny-qwen3next ]]; then
        # More tokens than a chunk of the gated delta rule, which has 64.
        dump_transformers "$1" f32 --tokens "$(seq -s, 3 3 420)" --decode 1 \
            --taps conv_act,q_unit,k_unit,beta,decay,recurrent_state,recurrent_out \
            --out "$checkpoints/$1/long/transformers-f32.safetensors"
    fi
    if [[ $1 == tiny-qwen3moe ]]; then
        dump_experts "$1" "${input[@]}"
    fi
}

# A mixture of experts in another order of sums, with so many tokens that rounding chooses other experts for some, and under
# autocast: not all taps.
dump_experts() { # MODEL INPUT...
    local taps=embed,attn_norm,q,k,v,attn_context,attn_out,ffn_norm,router_logits,experts,expert_weights,ffn_out,block_out
    local inside=q_norm,k_norm,q_rope,k_rope,attn_scores,attn_weights,expert_gate,expert_up,expert_act,expert_out
    dump_transformers "$1" bf16 --attention sdpa --tokens "$(seq -s, 3 5 448)" --decode 0 --taps "$taps" \
        --out "$checkpoints/$1/dumps/transformers-sdpa-bf16.safetensors"
    dump_transformers "$1" f32 "${@:2}" --autocast bf16 --decode 1 --taps "$taps,$inside" \
        --out "$checkpoints/$1/dumps/transformers-autocast-bf16.safetensors"
}

if [[ $# -eq 0 ]]; then
    set -- tiny-llama2 tiny-qwen3 tiny-llama3 tiny-gemma3 tiny-gemma3-vision tiny-gpt2
fi
for model in "$@"; do
    make_dumps "$model"
done
