#!/bin/sh
# Parsers under libFuzzer: bytes that are made up from those that reached something new.
#
#     scripts/fuzz.sh [SECONDS [TARGET...]]
#
# Builds the targets of `fuzz/` with the toolchain of everything else and runs each for SECONDS
# (600; 0 replays what is known, and no more): over the seeds in fuzz/corpus, and over what earlier
# runs found, which is kept in target/fuzz. One line for each; ends with 1 and an input's path if
# one fails. An input fails that panics, takes ten seconds or a gigabyte.
#
# Instrumented by the compiler's own pass, so that no nightly toolchain is needed. Sanitizers are
# left out, which would need one.
set -eu
cd "$(dirname "$0")/.."

seconds=${1:-600}
[ $# -eq 0 ] || shift
# shellcheck disable=SC2046 # names of targets have no blanks
[ $# -gt 0 ] || set -- $(basename -s .rs fuzz/fuzz_targets/*.rs)

skip() {
    echo "skipped: $1"
    exit 0
}

machine=$(uname -m)
[ "$machine" = x86_64 ] || [ "$machine" = aarch64 ] || skip "no libFuzzer on $machine"
command -v "${CXX:-c++}" > /dev/null || skip "libFuzzer needs a C++ compiler"
triple=$machine-unknown-linux-gnu
build=${CARGO_TARGET_DIR:-target}/fuzz
mkdir -p "$build"

# What cargo-fuzz gives the compiler. A triple of its own, so that build scripts go without.
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares"
bins=$(printf -- ' --bin %s' "$@")
# shellcheck disable=SC2086 # a list of options
if ! CARGO_TARGET_DIR=$build RUSTFLAGS="--cfg fuzzing $coverage" \
    cargo build --manifest-path fuzz/Cargo.toml --locked --release --target "$triple" $bins \
    > "$build/build.log" 2>&1
then
    cat "$build/build.log"
    exit 1
fi

failed=0
for target in "$@"; do
    found=$build/$target
    log=$build/$target.log
    seeds=fuzz/corpus/$target
    mkdir -p "$found" "$build/failed"
    longest=$(sed -n 's|^// Longest input: \([0-9]*\) bytes.$|\1|p' "fuzz/fuzz_targets/$target.rs")
    [ "$seconds" = 0 ] && limit=-runs=0 || limit=-max_total_time=$seconds
    code=0
    "$build/$triple/release/$target" "$limit" -max_len="$longest" -rss_limit_mb=1024 -timeout=10 \
        -print_final_stats=1 -artifact_prefix="$build/failed/$target-" "$found" "$seeds" \
        > "$log" 2>&1 || code=$?
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    speed=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
    reached=$(sed -n 's/^#.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    line=$(printf '%-18s %9s runs %7s/s %5s edges' \
        "$target" "${runs:-0}" "${speed:-0}" "${reached:-0}")
    if [ "$code" -eq 0 ]; then
        echo "$line"
        continue
    fi
    failed=1
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    echo "$line FAILED: ${input:-no input, see $log}"
    grep -A 3 -E "panicked at|^==[0-9]+== *ERROR" "$log" | head -n 6 | sed 's/^/    /'
done
exit $failed
