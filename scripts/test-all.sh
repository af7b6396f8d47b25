#!/bin/sh
# Runs both parts of the tests, and says at the end what failed in either.
set -u
cd "$(dirname "$0")/.." || exit
code=0
make test || code=1
make test-long || code=1
if [ "$code" -ne 0 ]; then
    echo "What failed in all:"
    cat target/test/failed-short target/test/failed-long
fi
exit "$code"
