#!/bin/sh
# Runs both parts of the tests, and says at the end what failed in either.
#
#   scripts/test-all.sh [MINUTES]   of the long part only what fits into so many minutes in all
set -u
cd "$(dirname "$0")/.." || exit
until=${1:+$(($(date +%s) + $1 * 60))}
code=0
make test || code=1
# What the long part needs takes minutes to install and to build.
if [ -n "$until" ] && [ $((until - $(date +%s))) -lt 420 ]; then
    echo "left out: the long part, as no time was left for it"
    : > target/test/failed-long
else
    make test-long ${until:+UNTIL="$until"} || code=1
fi
if [ "$code" -ne 0 ]; then
    echo "What failed in all:"
    cat target/test/failed-short target/test/failed-long
fi
exit "$code"
