#!/bin/bash
# Brings what fuzz/run.sh has found of new paths into the corpus, as few small inputs as reach them. Usage: fuzz/minimise.sh [TARGET...]
# What is there for a reason has a name; what only reaches a path has a hash, and goes where another reaches it too.
set -eu
cd "$(dirname "$0")"
targets=("$@")
[ ${#targets[@]} = 0 ] && for file in fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
programs=target/$(rustc -vV | sed -n 's/^host: //p')/release
for target in "${targets[@]}"; do
    few=$(mktemp -d) named=$(mktemp -d)
    find "corpus/$target" -type f -regextype posix-extended -not -regex '.*/[0-9a-f]{40}' -exec cp {} "$named" \;
    # By lines of code that are reached, not by how often: these are fewer.
    "$programs/$target" -merge=1 -set_cover_merge=1 -use_counters=0 -max_len=512 -timeout=20 "$few" "$named" "found/corpus/$target" "corpus/$target" 2>found/merge.log
    find "corpus/$target" -type f -regextype posix-extended -regex '.*/[0-9a-f]{40}' -delete
    # The largest reach the most; the others are found again in seconds.
    find "$few" -type f -printf '%s %p\n' | sort -rn | head -48 | cut -d' ' -f2- | xargs -I{} cp -n {} "corpus/$target"
    echo "$target: $(find "corpus/$target" -type f | wc -l) files, $(cat "corpus/$target"/* | wc -c) bytes"
    rm -r "$few" "$named"
done
