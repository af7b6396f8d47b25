#!/bin/sh
# The rdma backend on a soft-RoCE device, in a guest whose kernel has one.
#
#   scripts/test-rdma.sh
#
# Builds with the feature `rdma` under target/rdma, boots the guest, runs the conformance suite
# and a small cluster there (scripts/test-rdma-guest.sh), and prints a summary. It needs no RDMA
# here. What cannot run prints "skipped: REASON" and succeeds. The whole output is in
# target/rdma/test.log. Speed in an emulated guest means nothing.
set -eu
cd "$(dirname "$0")/.."
directory=target/rdma
log=$directory/test.log
mkdir -p $directory

skip() {
    echo "skipped: rdma in a guest: $1"
    exit 0
}

for tool in cmake rdma fio; do
    command -v $tool >/dev/null || skip "$tool is not installed"
done
libraries=$(dirname "$(find /usr/lib /lib -name 'librxe-rdmav*.so' 2>/dev/null | head -n 1)")
[ "$libraries" != . ] || skip "the user space part of soft-RoCE (ibverbs-providers) is not installed"
verbs=$(dirname "$libraries")/libibverbs.so.1
[ -e "$verbs" ] || skip "libibverbs.so.1 is not installed"
find /usr/lib -name 'libclang*.so*' 2>/dev/null | grep -q . || skip "libclang is not installed"

echo "building with the feature rdma, under $directory"
CARGO_TARGET_DIR=$directory cargo build --locked --quiet -p cenote --features rdma
CARGO_TARGET_DIR=$directory cargo test --locked --quiet -p cenote-fabric --features rdma --no-run 2>/dev/null
built=$(find $directory/debug/deps -name 'conformance-*' -type f -perm -u+x -printf '%T@ %p\n' | sort -n | tail -n 1)
mkdir -p $directory/bin
strip -o $directory/bin/conformance "${built#* }"
strip -o $directory/bin/cenote $directory/debug/cenote

echo "running in the guest (two minutes or so)"
code=0
GUEST_KERNEL=linux-image-amd64 GUEST_SECONDS=900 \
GUEST_MODULES="crc32_generic dummy rdma_rxe ib_uverbs" \
GUEST_FILES="/etc/libibverbs.d/rxe.driver $libraries/$(basename "$libraries"/librxe-rdmav*.so) $verbs" \
    scripts/test-guest.sh $directory/guest scripts/test-rdma-guest.sh \
    "$(command -v rdma)" "$(command -v fio)" $directory/bin/conformance $directory/bin/cenote \
    >$log 2>&1 || code=$?
[ "$code" -ne 77 ] || skip "$(tail -n 1 $log)"

grep -aE '^test .*FAILED|panicked|^test result|^conformance took|^killed|READ:|WRITE:|every block|nothing is left' $log || true
if [ "$code" -ne 0 ]; then
    echo "rdma in a guest FAILED (all of it in $log):"
    tail -n 30 $log
    exit 1
fi
echo "rdma: the conformance suite and a cluster that lost a host are right"
