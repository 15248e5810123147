#!/bin/bash
# Runs fuzz targets for some hours in all. Usage: fuzz/run.sh HOURS [TARGET...]
# Needs a Rust toolchain alone: libFuzzer comes with libfuzzer-sys, and nightly is used if it is there.
set -u
hours=${1:?how many hours} && shift
cd "$(dirname "$0")" || exit 2
targets=("$@")
[ ${#targets[@]} = 0 ] && for file in fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
if rustup toolchain list 2>/dev/null | grep -q '^nightly'; then toolchain=+nightly; else toolchain=; export RUSTC_BOOTSTRAP=1; fi
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1"
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="$coverage ${FUZZ_RUSTFLAGS-}" cargo $toolchain build --release --target "$host" || exit 2
seconds=$(awk -v h="$hours" -v n=${#targets[@]} 'BEGIN { printf "%d", h * 3600 / n }')
mkdir -p found
failed=0
for target in "${targets[@]}"; do
    mkdir -p "found/corpus/$target"
    echo "$target: $seconds s"
    "target/$host/release/$target" "found/corpus/$target" "corpus/$target" -max_total_time="$seconds" -rss_limit_mb=2048 \
        -malloc_limit_mb=1024 -timeout=20 -max_len=65536 -artifact_prefix="found/$target-" -print_final_stats=1 2>"found/$target.log"
    [ $? = 0 ] || { failed=1; echo "$target has found something: $(ls found/"$target"-* 2>/dev/null | tail -1)"; }
    grep -a 'stat::number_of_executed_units\|stat::average_exec' "found/$target.log" | tr '\n' ' '; echo
done
exit $failed
