# What the guest of tests/guest.rs does: cenote's own commands under a program that swaps, one
# host of three killed under it. The program is in $PATH under the name in /bin/guest-*.
set -eu
program=$(basename /bin/guest-*)
group=/sys/fs/cgroup/small

cenote doctor | grep 'swap device'
cenote up --hosts 3 --memory 160M --dir /tmp/well
cenote swap on --dir /tmp/well --size 256M --scheme rs:2+1 --priority 10 2>/tmp/warnings
cat /tmp/warnings
cat /proc/swaps
grep -q '^/dev/nbd0 ' /proc/swaps

echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mkdir $group
echo 48M >$group/memory.max
(
    echo 0 >$group/cgroup.procs
    CENOTE_GUEST_PROGRAM=1 exec "$program" --exact the_program --nocapture
) &
child=$!
while [ ! -e /run/filled ]; do
    kill -0 $child
    sleep 0.1
done
cenote swap status --dir /tmp/well
[ "$(cat $group/memory.swap.current)" -gt 67108864 ]

victim=$(find /tmp/well/hosts -name pid | sort | head -n 1)
kill -9 "$(cut -d' ' -f1 "$victim")"
echo "killed $(basename "$(dirname "$victim")")"
touch /run/go
wait $child
echo "every page was right"

cenote swap off --dir /tmp/well
if grep nbd /proc/swaps; then exit 1; fi
[ ! -e /sys/block/nbd0/pid ]
cenote down --dir /tmp/well
echo "nothing is left"
