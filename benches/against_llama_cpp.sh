#!/usr/bin/env bash
# usage: against_llama_cpp.sh LLAMA_CPP_VENV MODEL.gguf [ROUNDS [THREADS [TOKENS]]]
#
# Times our engine and llama.cpp in turns on one file, and prints how fast ours is as a ratio: 1 is llama.cpp's speed,
# more is faster. The environment is one that reference-scripts/dump/build_dump_llama_cpp.sh builds, the file for example
# one that reference-scripts/make/make_random_gguf.py makes. Of each figure the least of all rounds counts (3 by default).
#
# Both read the same TOKENS tokens (64 by default) and compute the logits of every position ("prefill"), or of the last
# only ("prefill-last"), then 32 tokens one by one ("decode").
# Processor seconds include those in which a thread of llama.cpp waits for another; with one thread there are none.
#
# A build of llama.cpp that a signal ends (some die with weights that they lay out anew in memory) is run once more without
# that layout, and the figures say so; if it dies again, they say that there are none. Any other failure ends it all.

set -euo pipefail

if [[ $# -lt 2 ]]; then
    sed -n '2p' "$0" | cut -c3- >&2
    exit 2
fi
python=$(realpath -s "$1")/bin/python model=$(realpath "$2") rounds=${3:-3} threads=${4:-2} tokens=${5:-64}
cd "$(dirname "$0")/.."

cargo bench --quiet --no-run --bench generate
results=$(mktemp)
trap 'rm "$results"' EXIT
load() { cut -d' ' -f1 /proc/loadavg; }

# llama.cpp's figures with that kind of attention: `repacked` or `as-stored`, whichever lives.
layout=repacked
theirs() {
    local flash=$1 options=() figures status
    while true; do
        options=(--threads "$threads" --tokens "$tokens" --repetitions 1 --flash "$flash")
        [[ $layout == repacked ]] || options+=(--no-repack)
        status=0
        figures=$("$python" reference-scripts/check/bench_llama_cpp.py "$model" "${options[@]}") || status=$?
        if [[ $status == 0 ]]; then
            sed "s/^/flash-$flash /" <<<"$figures" >>"$results"
            return
        fi
        if ((status <= 128)); then # no signal ended it: it has said why
            echo "error: bench_llama_cpp.py failed with status $status" >&2
            exit "$status"
        fi
        echo "llama.cpp died of signal $((status - 128)), with its weights $layout" >&2
        [[ $layout == repacked ]] || return 0
        layout=as-stored
        sed -i '/^flash-/d' "$results" # of one kind only
    done
}

for ((round = 1; round <= rounds; round++)); do
    echo "round $round of $rounds, load $(load)" >&2
    cargo bench --quiet --bench generate -- "$model" "$threads" 1 auto "$tokens" | sed 's/^/ours /' >>"$results"
    for flash in off auto; do
        theirs "$flash"
    done
done

echo "$tokens tokens, $threads threads, $rounds rounds, load now $(load)"
[[ $layout == repacked ]] || echo "llama.cpp died with repacked weights: its figures are those of weights as stored"
awk '
    function least(key, value) { if (!(key in best) || value < best[key]) best[key] = value }
    { least($1 " " $2 " wall", $3); least($1 " " $2 " cpu", $4) }
    END {
        printf "%-13s %-10s %10s %10s %7s %9s\n", "", "", "ours, s", "theirs, s", "ratio", "cpu ratio"
        split("prefill prefill-last decode", names)
        split("flash-off flash-auto", modes)
        for (n = 1; n <= 3; n++) for (m = 1; m <= 2; m++) {
            mine = "ours " names[n]; theirs = modes[m] " " names[n]
            if (!((theirs " wall") in best)) {
                printf "%-13s %-10s %10.4f %10s\n", names[n], modes[m], best[mine " wall"], "none: died"
                continue
            }
            printf "%-13s %-10s %10.4f %10.4f %7.2f %9.2f\n", names[n], modes[m], best[mine " wall"],
                best[theirs " wall"], best[theirs " wall"] / best[mine " wall"], best[theirs " cpu"] / best[mine " cpu"]
        }
        printf "load: %.2f s; memory besides the file: %d MB\n", best["ours load wall"], best["ours own-megabytes wall"]
    }
' "$results"
