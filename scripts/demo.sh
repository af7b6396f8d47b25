#!/bin/sh
# The main job. Without root there is no swap and no memory cgroup: then it shows what is
# left, a disk on twelve hosts that survives two of them, and says what was left out.
set -eu
cd "$(dirname "$0")/.."
cenote=$PWD/target/release/cenote
if [ "$(id -u)" -eq 0 ]; then
    exec "$cenote" demo
fi

dir=$(mktemp -d)
server=
finish() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ -z "$server" ] || wait "$server" 2>/dev/null || true
    "$cenote" down --force --dir "$dir" >/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT TERM
"$cenote" up --hosts 12 --memory 64M --dir "$dir"
"$cenote" nbd --dir "$dir" --size 256M --scheme rs:8+2 --socket "$dir/nbd" >"$dir/ready" &
server=$!
while [ ! -s "$dir/ready" ]; do
    kill -0 "$server" || exit 1
    sleep 0.1
done
if command -v nbdcopy >/dev/null; then
    head -c 64M /dev/urandom >"$dir/data"
    truncate -s 256M "$dir/data"
    nbdcopy "$dir/data" "nbd+unix:///?socket=$dir/nbd"
    echo "64 MiB of random bytes written; killing h02 and h07"
    kill -9 "$(cat "$dir/hosts/h02/pid")" "$(cat "$dir/hosts/h07/pid")"
    nbdcopy "nbd+unix:///?socket=$dir/nbd" "$dir/back"
    cmp "$dir/data" "$dir/back"
    echo "every byte read back is right"
else
    echo "left out: writing and reading, because nbdcopy (Debian libnbd-bin) is not installed"
fi
"$cenote" status --dir "$dir" || true
echo "left out: swapping memcached to it, because swap and memory cgroups need root"
