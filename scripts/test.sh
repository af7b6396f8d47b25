#!/bin/sh
# Runs every test of the workspace and ends with a plain summary.
#
# A test, or a part of one, that cannot run here prints "skipped: REASON" and passes; the
# summary repeats each of those lines. The whole output is in target/test.log.
set -eu
cd "$(dirname "$0")/.."
mkdir -p target
log=target/test.log
status=target/test.status

# The log gets everything; the terminal the lines that show progress.
{
    cargo test --workspace --locked --no-fail-fast -- --show-output 2>&1 && echo 0 >"$status" || echo $? >"$status"
    # After the tests, and in their log: it builds the same crates with another feature.
    sh scripts/test-rdma.sh test 2>&1 || echo 1 >"$status"
} | tee "$log" | grep --line-buffered -E '^ +(Compiling|Running|Doc-tests)|^test result|^error|has been running for|^(rdma|building with|running in the guest)' || true
code=$(cat "$status")

if [ "$code" -ne 0 ]; then
    echo
    echo "What failed (all of it in $log):"
    grep -E '^(error|warning: unused)|\.\.\. FAILED$' "$log" || true
    # The output of failed tests: panics with the lines after them.
    grep -A 12 'panicked at' "$log" || true
    # What the guest said last.
    sed -n '/^rdma in a guest FAILED/,$p' "$log"
fi

left_out=$(grep -hE '^skipped: ' "$log" | sort -u || true)
if [ -n "$left_out" ]; then
    echo
    echo "Left out here, and why:"
    printf '%s\n' "$left_out" | sed 's/^skipped: /  /'
fi
echo
grep -E '^test result' "$log" | awk '
    { passed += $4; failed += $6; ignored += $8 }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, ignored }' || true
exit "$code"
