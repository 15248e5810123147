#!/bin/bash
# Runs fuzz targets for some time in all. Usage: fuzz/run.sh HOURS [TARGET...]
# Needs a Rust toolchain alone: libFuzzer comes with libfuzzer-sys, and nightly is used if it is there.
# Exit codes: 0 nothing was found, 1 something was, 2 it could not be built. What was done is in found/figures.tsv, too.
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
programs=target/$host/release
seconds=$(awk -v h="$hours" -v n=${#targets[@]} 'BEGIN { printf "%d", h * 3600 / n }')
mkdir -p found
failed=0

# figure NAME LOG: what libFuzzer has counted.
figure() { sed -n "s/^stat::$1: *//p" "$2" | tail -1; }

for target in "${targets[@]}"; do
    corpus=found/corpus/$target log=found/$target.log begun=$SECONDS
    mkdir -p "$corpus"
    # A hang is a second; a machine that does other work too is slower than that.
    "$programs/$target" "$corpus" "corpus/$target" -max_total_time="$seconds" -rss_limit_mb=2048 -malloc_limit_mb=1024 \
        -timeout="${FUZZ_TIMEOUT:-5}" -report_slow_units=1 -max_len=65536 -artifact_prefix="found/$target-" -print_final_stats=1 2>"$log"
    if [ $? != 0 ]; then
        failed=1
        echo "$target has found something: $(ls -t found/"$target"-* | head -1)"
    fi
    printf '%s\t%s\t%s\t%s\t%s\n' "$target" "$(figure number_of_executed_units "$log")" $((SECONDS - begun)) \
        "$(figure slowest_unit_time_sec "$log")" "$(figure peak_rss_mb "$log")" | tee -a found/figures.tsv |
        awk -F'\t' '{ printf "%s: %d executions in %d s, the slowest %d s, at most %d MB\n", $1, $2, $3, $4, $5 }'
done
exit $failed
