#!/usr/bin/env bash
# usage: make_kld.sh LLAMA_PERPLEXITY
#
# Writes tests/data/kld anew: what llama.cpp's llama-perplexity says of two files of tiny-llama3. Any build of it will do (Debian
# has one in llama.cpp-tools-extra); the shipped files are of 0.7.0, AVX2. The model's values are random, and so are its words:
# what counts is that both programs say the same of them.

set -euo pipefail

if [[ $# -ne 1 ]]; then
    echo "usage: $0 LLAMA_PERPLEXITY" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$root/tests/data/kld
models=$root/checkpoints/tiny-llama3
run() { "$1" "${@:2}" -c 16 -b 16 -t 1 -fa off; }

rm -f "$out"/*.kld "$out"/*.sha256 "$out/table.txt"
# 15 chunks of 7 rows each: of fewer than 100 tokens there are no statistics.
run "$1" -m "$models/tiny-llama3-f32.gguf" -f "$out/text.txt" --chunks 15 --kl-divergence-base "$out/tiny-llama3-f32.kld"
run "$1" -m "$models/tiny-llama3-q8_0.gguf" --kl-divergence-base "$out/tiny-llama3-f32.kld" --kl-divergence 2> /dev/null |
    sed -n '/^=/,$p' > "$out/table.txt"
# Another file is as long: its hash says as much.
run "$1" -m "$models/tiny-llama3-q8_0.gguf" -f "$out/text.txt" --chunks 15 --kl-divergence-base "$out/q8_0.kld"
(cd "$out" && sha256sum q8_0.kld | cut -d ' ' -f 1 > tiny-llama3-q8_0.sha256)
rm "$out/q8_0.kld"
