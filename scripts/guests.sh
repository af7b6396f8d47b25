#!/bin/sh
# Builds the procedures of crates/proc-sdk as WebAssembly modules into crates/proc/guests.
# Needs the target wasm32-unknown-unknown of the toolchain; the modules are committed, so that
# nothing else does.
set -eu
cd "$(dirname "$0")/.."
out=crates/proc/guests
target=${CARGO_TARGET_DIR:-target}
export CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_LTO=true CARGO_PROFILE_RELEASE_STRIP=true
export CARGO_PROFILE_RELEASE_OPT_LEVEL=3 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 CARGO_PROFILE_RELEASE_PANIC=abort
# No shadow stack of a megabyte: a frame and a node fit into 64 KiB.
export RUSTFLAGS="-C link-arg=-zstack-size=32768 --remap-path-prefix=$PWD=."
mkdir -p "$out"
for name in echo walk lookup filter; do
    cargo build -p cenote-proc-sdk --example "$name" --release --target wasm32-unknown-unknown
    cp "$target/wasm32-unknown-unknown/release/examples/$name.wasm" "$out/$name.wasm"
done
ls -l "$out"
