#!/bin/bash
# Kills runs at random moments, and sees that the next run is as if nothing had been.
# Usage: kill-at-random.sh MOMENTS XCHECK FOLDER; of each command so many runs are killed, by SIGKILL, SIGTERM or SIGINT.
set -u
moments=${1:?how many moments} xcheck=${2:?the program} folder=${3:?an empty folder}
mkdir -p "$folder" && cd "$folder" || exit 2
export XCHECK_CACHE=$PWD/cache HF_HOME=$PWD/hf
signals=(KILL TERM INT)
bad=0

# disturb NAME SECONDS CLEAN COMMAND...: kills COMMAND after at most SECONDS, then runs it again, which must end with 0.
disturb() {
    local name=$1 most=$2 clean=$3
    shift 3
    for ((moment = 0; moment < moments; moment++)); do
        local signal=${signals[RANDOM % 3]} wait
        wait=$(awk -v r=$RANDOM -v most="$most" 'BEGIN { print most * r / 32768 }')
        "$@" >/dev/null 2>&1 &
        local process=$!
        sleep "$wait"
        kill -$signal $process 2>/dev/null
        wait $process 2>/dev/null
        [ -n "$clean" ] && [ -e "$clean" ] && { $xcheck inspect "$clean" >/dev/null 2>&1 || { echo "$name: $clean is there and not whole"; bad=1; }; rm -rf "$clean"; }
        if ! "$@" >out 2>err; then
            echo "$name, killed by SIG$signal after $wait s: the next run ended with $?"
            cat out err
            bad=1
        fi
        [ -n "$clean" ] && rm -rf "$clean"
    done
}

tokens=$(seq -s, 3 200)
disturb run 0.4 '' $xcheck run --model tiny-llama2 --report report --quiet
disturb dump 0.4 d $xcheck dump --model tiny-llama2 --tokens "$tokens" --decode 2 --out d
disturb safetensors 0.4 d.safetensors $xcheck dump --model tiny-llama2 --tokens "$tokens" --decode 2 --out d.safetensors
if [ -n "${XCHECK_DOWNLOAD:-}" ]; then # a model of a hub that HF_ENDPOINT names
    disturb download 0.5 '' $xcheck models --download "$XCHECK_DOWNLOAD"
fi
sleep 2.1 # what was begun just now is nobody's yet
$xcheck run --model tiny-llama2 --report report --quiet >/dev/null || bad=1
$xcheck dump --model tiny-llama2 --tokens 1 --out last >/dev/null || bad=1
left=$(find . -name '.xcheck-*' -not -path './cache/*' | wc -l)
[ "$left" = 0 ] || { echo "$left unfinished files are left"; bad=1; }
[ $bad = 0 ] && echo "nothing was disturbed"
exit $bad
