#!/usr/bin/env bash
# usage: check.sh DIR
#
# Holds dumps that a writer in a new language has made against those of `right/`: each file or folder of DIR that has the
# name of one there. XCHECK names the program (default: xcheck).

set -euo pipefail

if [[ $# -ne 1 || ! -d $1 ]]; then
    echo "usage: $0 DIR, a folder of dumps named as those in right/" >&2
    exit 2
fi
right=$(dirname "$0")/right
xcheck=${XCHECK:-xcheck}
wrong=0 checked=0

judge() { # NAME WHAT PIECE COMMAND...
    local said
    if said=$("${@:4}" --no-report 2>&1) && ! grep "taps bit-identical" <<<"$said" | grep -qv "$3"; then
        echo "ok     $1: $2"
    else
        echo "WRONG  $1: $2" && tail -n 12 <<<"$said" && wrong=1
    fi
}

for dump in "$1"/*; do
    name=$(basename "$dump")
    [[ -e $right/$name && $name != expected.json ]] || continue
    checked=$((checked + 1))
    judge "$name" "every stage is explained by rounding" "" "$xcheck" audit "$dump" --model tiny-llama3 --layer 0
    judge "$name" "the values are those of right/$name" "100 % of the values" "$xcheck" compare "$dump" "$right/$name"
done
if ((checked == 0)); then
    echo "nothing in $1 has the name of a dump in right/" >&2
    exit 2
fi
exit $wrong
