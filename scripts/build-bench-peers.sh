#!/bin/sh
# Builds the peers of `cenote bench log` into target/bench-peers: RocksDB of the system, and FASTER
# of the sources that the crate libfaster-sys carries. What cannot be built is left out, and said.
set -eu
cd "$(dirname "$0")/.."
out=target/bench-peers
mkdir -p "$out"
# What does not build is left out: an old one would be run in its place.
rm -f "$out/rocksdb" "$out/faster"
flags="-O3 -march=native -DNDEBUG -std=c++17 -pthread"

# shellcheck disable=SC2086 # a list of words
if ! g++ $flags scripts/peers/rocksdb.cc -o "$out/rocksdb" -lrocksdb; then
    echo "left out: RocksDB as a peer of the log store; it takes librocksdb-dev and g++"
fi

# As a condition it runs without `set -e`: each step says for itself that it failed.
faster() {
    manifest=scripts/peers/Cargo.toml
    cargo fetch --quiet --manifest-path "$manifest" || return 1
    from=$(cargo metadata --format-version 1 --manifest-path "$manifest" |
        python3 -c 'import json, os, sys
print(*(os.path.dirname(p["manifest_path"]) for p in json.load(sys.stdin)["packages"]
        if p["name"] == "libfaster-sys"))') || return 1
    [ -n "$from" ] || return 1
    rm -rf "$out/faster-src"
    cp -r "$from/FASTER/cc/src" "$out/faster-src" || return 1
    chmod -R u+w "$out/faster-src" || return 1
    # Pages of 1 MiB, as ours: with its own of 32 MiB its memory is at least 192 MiB.
    sed -i 's/kOffsetBits = 25/kOffsetBits = 20/' "$out/faster-src/core/address.h" || return 1
    # shellcheck disable=SC2086 # a list of words
    g++ $flags -fpermissive -w -I "$out/faster-src" scripts/peers/faster.cc \
        "$out"/faster-src/core/address.cc "$out"/faster-src/core/lss_allocator.cc \
        "$out"/faster-src/core/thread.cc "$out"/faster-src/environment/file_linux.cc \
        -o "$out/faster" -luuid -ltbb -laio -lstdc++fs
}
if ! faster; then
    echo "left out: FASTER as a peer of the log store; it takes g++, libaio-dev, libtbb-dev and uuid-dev"
fi
