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

# Whether a comparison has found every value bit by bit, and no tap that one of the two lacks. Exit code 0 says less: within tolerance.
all_the_same() {
    local identical
    identical=$(grep -E 'taps? bit-identical' <<<"$1") && ! grep -qvF ' 100 % of the values' <<<"$identical" && ! grep -q 'note: not recorded' <<<"$1"
}

judge() { # NAME WHAT HOLDS COMMAND...: the command passes, and HOLDS holds of what it says
    local said
    if said=$("${@:4}" --no-report 2>&1) && "$3" "$said"; then
        echo "ok     $1: $2"
    else
        echo "WRONG  $1: $2" && tail -n 12 <<<"$said" && wrong=1
    fi
}

for dump in "$1"/*; do
    name=$(basename "$dump")
    [[ -e $right/$name && $name != expected.json ]] || continue
    checked=$((checked + 1))
    judge "$name" "every stage is explained by rounding" true "$xcheck" audit "$dump" --model tiny-llama3 --layer 0
    judge "$name" "the values are those of right/$name" all_the_same "$xcheck" compare "$dump" "$right/$name"
done
if ((checked == 0)); then
    echo "nothing in $1 has the name of a dump in right/" >&2
    exit 2
fi
exit $wrong
