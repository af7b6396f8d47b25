#!/bin/sh
# Loads records by YCSB over spymemcached, updates them, and reads every one back and compares it.
#
#   ycsb.sh CLASSPATH SECONDS|- ADDRESS...
#
# With "-" it updates until its standard input ends, in rounds of some thousand operations.
# YCSB makes a record's fields out of its key and compares what it reads with them. Prints one line of
# JSON; ends with 1 when an insert was acknowledged and its record is gone or differs.
set -eu

classpath=$1
seconds=$2
shift 2
hosts=$(printf '%s,' "$@")
hosts=${hosts%,}
records=2000
dir=$(mktemp -d)
log=$dir/log
trap 'rm -rf "$dir"' EXIT
if [ "$seconds" = - ]; then
    exec 3<&0
    { cat <&3 >/dev/null; : >"$dir/stop"; } &
fi

ycsb() { # PHASE PROPERTY...
    phase=$1
    shift
    properties=
    for property in "$@"; do properties="$properties -p $property"; done
    # shellcheck disable=SC2086 # a list of words
    java -cp "$classpath" site.ycsb.Client "$phase" -db Memcached -threads 8 \
        -p memcached.hosts="$hosts" -p workload=site.ycsb.workloads.CoreWorkload \
        -p recordcount=$records -p dataintegrity=true -p writeallfields=true \
        -p fieldlengthdistribution=constant $properties >"$log" 2>&1 </dev/null || {
        cat "$log" >&2
        exit 1
    }
}

# count OPERATION STATUS: operations that ended so, of the last phase.
count() {
    sed -n "s/^\[$1\], Return=$2, \([0-9]*\).*/\1/p" "$log" | awk '{ sum += $1 } END { print sum + 0 }'
}

# `-load` has no limit of time; `-t` is the mixed phase.
ycsb -load
inserted=$(count INSERT OK)
updated=0
failed=0
lost_meanwhile=0
wrong_meanwhile=0
mix() { # PROPERTY...
    ycsb -t readproportion=0.5 updateproportion=0.5 requestdistribution=zipfian "$@"
    updated=$((updated + $(count UPDATE OK)))
    failed=$((failed + $(count UPDATE ERROR) + $(count READ ERROR)))
    lost_meanwhile=$((lost_meanwhile + $(count READ NOT_FOUND)))
    wrong_meanwhile=$((wrong_meanwhile + $(count VERIFY ERROR) + $(count VERIFY UNEXPECTED_STATE)))
}
if [ "$seconds" = - ]; then
    while :; do
        mix operationcount=5000
        [ ! -e "$dir/stop" ] || break
    done
else
    mix operationcount=100000000 maxexecutiontime="$seconds"
fi
ycsb -t readproportion=1 updateproportion=0 requestdistribution=sequential operationcount=$records
verified=$(count VERIFY OK)
lost=$(count READ NOT_FOUND)
wrong=$(($(count VERIFY ERROR) + $(count VERIFY UNEXPECTED_STATE)))
printf '{"client":"YCSB","acknowledged":%d,"failed":%d,"lost":%d,"wrong":%d,"verified":%d}\n' \
    $((inserted + updated)) "$failed" $((lost + lost_meanwhile)) $((wrong + wrong_meanwhile)) "$verified"
[ "$inserted" -eq $records ] && [ "$verified" -ge $records ] &&
    [ $((lost + lost_meanwhile + wrong + wrong_meanwhile)) -eq 0 ]
