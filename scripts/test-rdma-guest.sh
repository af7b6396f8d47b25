#!/bin/sh
# What the guest of test-rdma.sh does. `test`: the conformance suite over a soft-RoCE device, then
# a cluster of cenote's own over it, one host of four killed under a verifying load. `bench`: our
# verbs beside perftest.
set -eu

modprobe crc32_generic
modprobe dummy
modprobe rdma_rxe
modprobe ib_uverbs
ip link add d0 type dummy
ip link set d0 mtu 9000 up
ip addr add 10.7.7.1/24 dev d0
rdma link add rxe0 type rxe netdev d0
# One descriptor per window and the suite has ten thousand; hosts lock what they lend.
# shellcheck disable=SC3045 # busybox has it
ulimit -n 65536
# shellcheck disable=SC3045
ulimit -l unlimited

cenote fabric list
cenote fabric list | grep 'rdma *yes *rxe0 (10.7.7.1)'

if [ "${what:-test}" = bench ]; then
    exec cenote bench fabric --transport rdma
fi

began=$(cut -d. -f1 /proc/uptime)
CENOTE_CONFORMANCE_RDMA=10.7.7.1 conformance rdma::
echo "conformance took $(($(cut -d. -f1 /proc/uptime) - began)) s"

well=/tmp/well
cenote up --hosts 4 --memory 96M --transport rdma --dir $well
cenote status --dir $well
cenote volume create v0 --dir $well --size 48M --scheme rs:2+1
cenote nbd --dir $well --volume v0 --socket $well/nbd >$well/ready &
server=$!
while ! [ -s $well/ready ]; do
    kill -0 $server
    sleep 0.1
done
# Each block carries its own checksum and position; a wrong byte ends fio with an error. The rate
# is so low that the kill lands in the middle.
fio --name=verify --ioengine=nbd --uri="nbd+unix:///?socket=$well/nbd" --rw=randwrite --bs=4k \
    --size=8M --iodepth=8 --rate_iops=1500 --verify=crc32c --do_verify=1 --verify_fatal=1 \
    --verify_state_save=0 --output=/tmp/fio.out &
load=$!
written() {
    cenote volume status v0 --dir $well --json | sed -n 's/.*"pages_written": *\([0-9]*\).*/\1/p'
}
while [ "$(written)" -lt 600 ]; do kill -0 $load; done
victim=$(find $well/hosts -name pid | sort | head -n 1)
kill -9 "$(cut -d' ' -f1 "$victim")"
echo "killed $(basename "$(dirname "$victim")") under load, after $(written) pages"
if ! wait $load; then
    cat /tmp/fio.out
    exit 1
fi
grep -E 'READ:|WRITE:' /tmp/fio.out
echo "every block was right"
kill $server
wait $server || true
cenote down --dir $well
echo "nothing is left"
