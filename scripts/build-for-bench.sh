#!/bin/sh
# Builds the release programs with ISA-L as a peer where its build tools are installed, and
# without it, saying so, where they are not.
set -eu
cd "$(dirname "$0")/.."
missing=
for tool in nasm autoreconf libtoolize; do
    command -v "$tool" >/dev/null || missing="$missing $tool"
done
if [ -z "$missing" ] && cargo build --release --locked -p cenote -p cenote-lab --features cenote-lab/isal; then
    exit 0
fi
echo "left out: ISA-L as a peer of the codec benchmark; it did not build here${missing:+, missing:$missing}"
cargo build --release --locked -p cenote -p cenote-lab
