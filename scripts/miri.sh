#!/bin/sh
# Unsafe code that makes no system call, interpreted by Miri: accesses out of bounds, unaligned, to
# memory that was given back, or beside another thread's.
#
#     scripts/miri.sh
#
# Needs a nightly toolchain with the components miri and rust-src; MIRI_TOOLCHAIN names another one than
# `nightly`. What maps files or makes calls that Miri does not know is left out, and so is arithmetic
# without unsafe code: Miri is some hundred times slower than a processor.
set -eu
cd "$(dirname "$0")/.."

toolchain=${MIRI_TOOLCHAIN:-nightly}

skip() {
    echo "skipped: $1"
    exit 0
}

# Asked by path: a toolchain that is not there must not be installed by asking for it.
command -v rustup > /dev/null || skip "Miri needs rustup"
rustup toolchain list | grep -q "^$toolchain" || skip "Miri needs a nightly toolchain"
sysroot=$(rustup run "$toolchain" rustc --print sysroot)
[ -x "$sysroot/bin/cargo-miri" ] || skip "Miri is not installed (rustup component add miri rust-src)"
[ -d "$sysroot/lib/rustlib/src/rust/library" ] ||
    skip "Miri needs the library's source (rustup component add rust-src)"

# Files of tests are in the system's own folder for them, and clocks are real.
export MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS:-}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri"

# A crate, and the tests of the parts that are run.
interpret() {
    crate=$1
    shift
    echo "== $crate: $*"
    cargo "+$toolchain" miri test --locked -p "$crate" --lib -- "$@"
}

# The kernels: the portable one, and the loop of the wide ones over a model of their instructions.
interpret cenote-codec kernel:: code::
# Words in mapped memory, pages' buffers, and what threads share without a lock.
interpret cenote-volume backing::entries:: claims:: directory:: extents:: flights:: sides:: workers::
