#!/bin/sh
# Checks licences, sources and duplicates of our dependencies with cargo-deny.
#
# A cargo-deny on the PATH is used as it is; otherwise one is built once under
# target/tools, which takes some minutes. The advisory database is left out: it is
# fetched from a git repository, which a build machine may not reach. Where it is
# reachable, run `cargo deny check advisories` as well.
set -eu
cd "$(dirname "$0")/.."
version=0.20.2
if command -v cargo-deny >/dev/null; then
    deny=cargo-deny
else
    deny=target/tools/bin/cargo-deny
    if [ ! -x "$deny" ]; then
        echo "building cargo-deny $version under target/tools (once, some minutes)"
        if ! cargo install cargo-deny --quiet --locked --version "$version" --root target/tools; then
            echo "cargo-deny cannot be had here; licences and sources are not checked" >&2
            exit 1
        fi
    fi
fi
"$deny" --all-features --locked check bans licenses sources
