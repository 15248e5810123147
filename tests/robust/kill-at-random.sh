#!/bin/bash
# Kills runs at random moments, and sees that the next run is as if nothing had been.
# Usage: kill-at-random.sh MOMENTS XCHECK FOLDER; of each command so many runs are killed, by SIGKILL, SIGTERM or SIGINT.
set -u
moments=${1:?how many moments} xcheck=${2:?the program} folder=${3:?an empty folder}
mkdir -p "$folder" && cd "$folder" || exit 2
export XCHECK_CACHE=$PWD/cache HF_HOME=$PWD/hf
signals=(KILL TERM INT)
bad=0
# Says whether what is there is whole.
whole="$xcheck inspect"

# disturb NAME CLEAN COMMAND...: kills COMMAND somewhere in the time that it takes, then runs it again, which must end with 0.
disturb() {
    local name=$1 clean=$2 begun=$EPOCHREALTIME killed=0
    shift 2
    "$@" >out 2>err || { echo "$name: it ends with $?, undisturbed" && cat out err && bad=1 && return; }
    local most=$EPOCHREALTIME
    most=$(awk -v from="$begun" -v to="$most" 'BEGIN { print to - from }')
    [ -n "$clean" ] && rm -rf "$clean"
    for ((moment = 0; moment < moments; moment++)); do
        local signal=${signals[RANDOM % 3]} wait
        wait=$(awk -v r=$RANDOM -v most="$most" 'BEGIN { print most * r / 32768 }')
        # In the background of a script SIGINT is ignored, unless it is told otherwise.
        env --default-signal=INT "$@" >/dev/null 2>&1 &
        local process=$!
        sleep "$wait"
        kill -$signal $process 2>/dev/null
        wait $process 2>/dev/null
        [ $? -gt 128 ] && killed=$((killed + 1))
        if [ -n "$clean" ] && [ -e "$clean" ]; then
            $whole "$clean" >/dev/null 2>&1 || { echo "$name: $clean is there and not whole" && bad=1; }
            rm -rf "$clean"
        fi
        if ! "$@" >out 2>err; then
            echo "$name, killed by SIG$signal after $wait s: the next run ended with $?"
            cat out err
            bad=1
        fi
        [ -n "$clean" ] && rm -rf "$clean"
    done
    echo "$name: $killed of $moments were killed before they ended"
}

tokens=$(seq -s, 3 200)
disturb run '' $xcheck run --model tiny-llama2 --report report --quiet
disturb dump d $xcheck dump --model tiny-llama2 --tokens "$tokens" --decode 2 --out d
disturb safetensors d.safetensors $xcheck dump --model tiny-llama2 --tokens "$tokens" --decode 2 --out d.safetensors
shards=(--model tiny-llama2 --reference base.safetensors --quiet)
$xcheck dump --model tiny-llama2 --tokens "$tokens" --decode 2 --out base.safetensors >/dev/null || bad=1
disturb resume '' $xcheck run "${shards[@]}" --shard 1/2 --resume --report s1
$xcheck run "${shards[@]}" --shard 2/2 --report s2 >/dev/null || bad=1
disturb merge '' $xcheck merge s1 s2 --report merged --quiet
disturb plan '' $xcheck plan --model tiny-llama2 --reference base.safetensors
whole="$xcheck kld --model tiny-llama2"
text=$(seq -s, 3 229) # enough of it for statistics
disturb kld k.kld $xcheck dump --model tiny-llama2 --tokens "$text" --ctx 226 --kld k.kld
if [ -n "${XCHECK_DOWNLOAD:-}" ]; then # a model of a hub that HF_ENDPOINT names
    disturb download '' $xcheck models --download "$XCHECK_DOWNLOAD"
fi
sleep 2.1 # what was begun just now is nobody's yet
$xcheck run --model tiny-llama2 --report report --quiet >/dev/null || bad=1
$xcheck dump --model tiny-llama2 --tokens 1 --out last >/dev/null || bad=1
$xcheck run "${shards[@]}" --shard 1/2 --resume --report s1 >/dev/null || bad=1
$xcheck merge s1 s2 --report merged --quiet >/dev/null || bad=1
left=$(find . \( -name '.xcheck-*' -o -name '.tmp*' \) -not -path './cache/*' | wc -l)
[ "$left" = 0 ] || { echo "$left unfinished files are left"; bad=1; }
[ $bad = 0 ] && echo "nothing was disturbed"
exit $bad
