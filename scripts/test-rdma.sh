#!/bin/sh
# The rdma backend on a soft-RoCE device, in a guest whose kernel has one.
#
#   scripts/test-rdma.sh [test|bench]
#
# Builds with the feature `rdma`, boots the guest and runs there, of scripts/test-rdma-guest.sh,
# `test`: the conformance suite and a small cluster; or `bench`: `cenote bench fabric` beside
# perftest. It needs no RDMA here. What cannot run prints "skipped: REASON" and succeeds. The whole
# output is in target/rdma/test.log or bench.log. Speed in an emulated guest says little; ratios say some.
set -eu
cd "$(dirname "$0")/.."
what=${1:-test}
directory=target/rdma
log=$directory/$what.log
mkdir -p $directory/bin

skip() {
    echo "skipped: rdma in a guest: $1"
    exit 0
}

for tool in cmake rdma fio ib_read_lat ib_write_lat ib_read_bw ib_write_bw; do
    command -v $tool >/dev/null || skip "$tool is not installed"
done
libraries=$(dirname "$(find /usr/lib /lib -name 'librxe-rdmav*.so' 2>/dev/null | head -n 1)")
[ "$libraries" != . ] || skip "the user space part of soft-RoCE (ibverbs-providers) is not installed"
verbs=$(dirname "$libraries")/libibverbs.so.1
[ -e "$verbs" ] || skip "libibverbs.so.1 is not installed"
find /usr/lib -name 'libclang*.so*' 2>/dev/null | grep -q . || skip "libclang is not installed"

# In the folder of every other build, most of which it shares; what it makes is copied away, since
# the next build without the feature replaces it.
executable() { # NAME CARGO-ARGUMENTS...: builds, and says where the program is
    name=$1
    shift
    cargo "$@" --locked --quiet --message-format=json |
        sed -n "s|.*\"executable\":\"\([^\"]*/${name}[^\"/]*\)\".*|\1|p" | tail -n 1
}
echo "building with the feature rdma"
if [ "$what" = test ]; then
    cp "$(executable conformance test -p cenote-fabric --features rdma --test conformance --no-run)" \
        $directory/bin/conformance
    cp "$(executable cenote build -p cenote --features rdma)" $directory/bin/cenote
else
    cp "$(executable cenote build --release -p cenote --features rdma)" $directory/bin/cenote
    cp "$(executable cenote-lab build --release -p cenote-lab --features rdma)" $directory/bin/cenote-lab
fi

echo "running in the guest (two minutes or so)"
began=$(date +%s)
case $what in
# One processor: two processes that talk all the time are faster on one emulated one than on two.
test) programs="$(command -v fio) $directory/bin/conformance" processors=1 ;;
# Two: either side looks for completions without a pause.
*) processors=2 programs="$directory/bin/cenote-lab $(command -v ib_read_lat) $(command -v ib_write_lat) $(command -v ib_read_bw) $(command -v ib_write_bw)" ;;
esac
sed "1i what=$what" scripts/test-rdma-guest.sh >$directory/guest.sh
code=0
# shellcheck disable=SC2086 # a list of paths
GUEST_KERNEL=linux-image-amd64 GUEST_SECONDS=600 GUEST_CPUS=$processors \
GUEST_MODULES="crc32_generic dummy rdma_rxe ib_uverbs" \
GUEST_FILES="/etc/libibverbs.d/rxe.driver $libraries/$(basename "$libraries"/librxe-rdmav*.so) $verbs" \
    scripts/test-guest.sh $directory/guest $directory/guest.sh \
    "$(command -v rdma)" $directory/bin/cenote $programs \
    >"$log" 2>&1 || code=$?
[ "$code" -ne 77 ] || skip "$(tail -n 1 "$log")"

grep -aE '^test .*FAILED|panicked|^test result|^conformance took|^killed|READ:|WRITE:|every block|nothing is left|^rdma |^fabric' "$log" || true
if [ "$code" -ne 0 ]; then
    echo "rdma in a guest FAILED (all of it in $log):"
    tail -n 30 "$log"
    exit 1
fi
[ "$what" = bench ] || echo "rdma: the conformance suite and a cluster that lost a host are right"
echo "the guest took $(($(date +%s) - began)) s"
