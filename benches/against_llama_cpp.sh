#!/usr/bin/env bash
# usage: against_llama_cpp.sh LLAMA_CPP_VENV MODEL.gguf [ROUNDS [THREADS]]
#
# Times our engine and llama.cpp in turns on one file, and prints how fast ours is as a ratio: 1 is llama.cpp's speed,
# more is faster. The environment is the one that reference-scripts/build_dump_llama_cpp.sh builds, the file for example
# one that reference-scripts/make_random_gguf.py makes. Of each figure the least of all rounds counts (3 by default).
#
# Both read the same 64 tokens and compute the logits of every position ("prefill"), or of the last only
# ("prefill-last"), then 32 tokens one by one ("decode").
# Processor seconds include those in which a thread of llama.cpp waits for another; with one thread there are none.

set -euo pipefail

if [[ $# -lt 2 ]]; then
    echo "usage: $0 LLAMA_CPP_VENV MODEL.gguf [ROUNDS [THREADS]]" >&2
    exit 2
fi
python=$(realpath -s "$1")/bin/python model=$(realpath "$2") rounds=${3:-3} threads=${4:-2}
cd "$(dirname "$0")/.."

cargo bench --quiet --no-run --bench generate
results=$(mktemp)
trap 'rm "$results"' EXIT
load() { cut -d' ' -f1 /proc/loadavg; }

for ((round = 1; round <= rounds; round++)); do
    echo "round $round of $rounds, load $(load)" >&2
    cargo bench --quiet --bench generate -- "$model" "$threads" 1 | sed 's/^/ours /' >>"$results"
    for flash in off auto; do
        "$python" reference-scripts/bench_llama_cpp.py "$model" --threads "$threads" --repetitions 1 --flash "$flash" |
            sed "s/^/flash-$flash /" >>"$results"
    done
done

echo "$threads threads, $rounds rounds, load now $(load)"
awk '
    function least(key, value) { if (!(key in best) || value < best[key]) best[key] = value }
    { least($1 " " $2 " wall", $3); least($1 " " $2 " cpu", $4) }
    END {
        printf "%-13s %-10s %10s %10s %7s %9s\n", "", "", "ours, s", "theirs, s", "ratio", "cpu ratio"
        split("prefill prefill-last decode", names)
        split("flash-off flash-auto", modes)
        for (n = 1; n <= 3; n++) for (m = 1; m <= 2; m++) {
            mine = "ours " names[n]; theirs = modes[m] " " names[n]
            printf "%-13s %-10s %10.4f %10.4f %7.2f %9.2f\n", names[n], modes[m], best[mine " wall"],
                best[theirs " wall"], best[theirs " wall"] / best[mine " wall"], best[theirs " cpu"] / best[mine " cpu"]
        }
        printf "load: %.2f s; memory besides the file: %d MB\n", best["ours load wall"], best["ours own-megabytes wall"]
    }
' "$results"
