#!/bin/sh
# Runs the named benchmarks one after the other: a table for people on the terminal,
# JSON lines in target/bench/NAME.jsonl. Ends with a plain summary.
set -eu
cd "$(dirname "$0")/.."
failed=
for name in "$@"; do
    echo "== $name"
    if target/release/cenote bench "$name" --save "target/bench/$name.jsonl"; then
        :
    else
        failed="$failed $name"
    fi
done
echo
for name in "$@"; do
    case " $failed " in
    *" $name "*) echo "$name: failed" ;;
    *) echo "$name: $(wc -l <"target/bench/$name.jsonl") figures in target/bench/$name.jsonl" ;;
    esac
done
[ -z "$failed" ]
