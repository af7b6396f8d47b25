#!/bin/sh
# Writes values by the tools of libmemcached, and reads back what was acknowledged.
#
#   tools.sh SECONDS|- ADDRESS...
#
# With "-" it writes until its standard input ends.
# The tools leave no dead server out: since any address answers for all keys, each write asks one
# address, and after an error the next. Prints one line of JSON; ends with 1 when an acknowledged
# value is gone or another is in its place.
set -eu

seconds=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/values" "$dir/found"

# What memccapable asks of the text protocol, of the first address.
if ! memccapable -h "${1%:*}" -p "${1##*:}" -a >"$dir/capable" 2>&1; then
    cat "$dir/capable" >&2
    echo "memccapable is not content" >&2
    exit 1
fi

# with TOOL FILE: asks the addresses in turn until one answers.
with() {
    tool=$1
    for address in $addresses; do
        if timeout 10 "$tool" --servers="$address" "$2" 2>"$dir/error"; then
            return 0
        fi
        failed=$((failed + 1))
    done
    return 1
}

addresses=$*
acknowledged=0
failed=0
step=0
if [ "$seconds" = - ]; then
    exec 3<&0
    { cat <&3 >/dev/null; : >"$dir/stop"; } &
else
    { sleep "$seconds"; : >"$dir/stop"; } &
fi
while [ ! -e "$dir/stop" ]; do
    file=$dir/values/tool-$step
    { printf '%s.' "$step"; head -c $((step * 37 % 4000)) /dev/urandom | base64 -w 0; } >"$file"
    if with memccp "$file"; then
        acknowledged=$((acknowledged + 1))
    else
        rm "$file"
    fi
    step=$((step + 1))
done

lost=0
wrong=0
for file in "$dir"/values/*; do
    found=$dir/found/${file##*/}
    with memccat "${file##*/}" >"$found" || true
    # memccat ends what it prints with a newline of its own.
    if [ ! -s "$found" ]; then
        lost=$((lost + 1))
    elif [ "$(cat "$file")" != "$(cat "$found")" ]; then
        wrong=$((wrong + 1))
    fi
done
printf '{"client":"libmemcached tools","acknowledged":%d,"failed":%d,"lost":%d,"wrong":%d}\n' \
    "$acknowledged" "$failed" "$lost" "$wrong"
[ $((lost + wrong)) -eq 0 ] && [ "$acknowledged" -gt 0 ]
