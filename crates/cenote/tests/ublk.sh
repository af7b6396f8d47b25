# What the guest of tests/ublk.rs does, with cenote, fio, nbd-client and the test's own program,
# which is in $PATH under the name in /bin/ublk-*.
set -eu
program=$(basename /bin/ublk-*)
well=/tmp/well
modprobe ublk_drv
modprobe nbd

fails() { # COMMAND...
    if "$@"; then
        echo "this was to fail: $*"
        exit 1
    fi
}
await() { # FILE PROCESS: until the file has something in it
    while ! [ -s "$1" ]; do
        kill -0 "$2"
        sleep 0.05
    done
}
done_writes() { # DEVICE: writes that it has ended
    awk '{ print $5 }' "/sys/block/$(basename "$1")/stat"
}
until_written() { # DEVICE COUNT PROCESS
    while [ "$(done_writes "$1")" -lt "$2" ]; do kill -0 "$3"; done
}
# Each block carries its own checksum and position; a wrong byte ends fio with an error. The rate
# is so low that deaths land in the middle.
verify() { # DEVICE SIZE
    fio --name=verify --filename="$1" --direct=1 --ioengine=libaio --rw=randwrite --bs=4k \
        --size="$2" --iodepth=16 --rate_iops=1500 --verify=crc32c --do_verify=1 --verify_fatal=1 \
        --verify_state_save=0 --output=/tmp/fio.out || { cat /tmp/fio.out; return 1; }
}

cenote up --hosts 4 --memory 160M --dir $well

# A volume as a device, and a host that dies.
cenote volume create v0 --dir $well --size 32M --scheme rs:2+1
cenote ublk --dir $well --volume v0 >/run/ready &
server=$!
await /run/ready $server
cat /run/ready
device=$(sed 's/.* at //' /run/ready)
verify "$device" 16M &
load=$!
until_written "$device" 1500 $load
victim=$(find $well/hosts -name pid | sort | head -n 1)
kill -9 "$(cut -d' ' -f1 "$victim")"
wait $load
echo "every block was right although a host died"

# Its server is killed. Until volumes outlive their owner it comes back empty, which has to be meant.
kill -9 $server
fails wait $server
fails cenote ublk --dir $well --volume v0 --recover
fails cenote ublk --dir $well --volume v0
rm /run/ready
cenote ublk --dir $well --volume v0 --recover --empty >/run/ready &
server=$!
await /run/ready $server
[ "$(sed 's/.* at //' /run/ready)" = "$device" ]
verify "$device" 4M
echo "an empty volume took the device over"
kill -9 $server
fails wait $server
dd if="$device" of=/dev/null bs=4k count=1 2>/run/dd &
waiting=$!
cenote ublk --dir $well --volume v0 --delete
fails wait $waiting
[ ! -e "$device" ]
echo "what waited for a deleted device failed"

# A disk that outlives its server: the load goes on over three deaths.
truncate -s 32M /run/disk
serve() {
    rm -f /run/device
    CENOTE_GUEST_DISK=/run/disk "$program" --exact the_server --nocapture >/run/server 2>&1 &
    server=$!
    while ! [ -s /run/device ]; do
        kill -0 $server || { cat /run/server; exit 1; }
        sleep 0.05
    done
}
serve
device=$(cat /run/device)
verify "$device" 24M &
load=$!
export CENOTE_GUEST_RECOVER=1
for count in 1000 2500 4000; do
    until_written "$device" $count $load
    kill -9 $server
    fails wait $server 2>/dev/null
    serve
    [ "$(cat /run/device)" = "$device" ]
done
wait $load
echo "every block was right although the server died three times"
touch /run/stop
wait $server
[ ! -e "$device" ]

# The same kind of volume by ublk and by the kernel's nbd, turn by turn.
cenote volume create b0 --dir $well --size 64M --scheme plain
cenote volume create b1 --dir $well --size 64M --scheme plain
rm /run/ready
cenote ublk --dir $well --volume b0 >/run/ready &
ublk=$!
await /run/ready $ublk
cenote nbd --dir $well --volume b1 --socket /run/nbd >/run/ready-nbd &
nbd=$!
await /run/ready-nbd $nbd
nbd-client -unix /run/nbd /dev/nbd0 -name b1 -block-size 4096 -connections 2 >/dev/null
device=$(sed 's/.* at //' /run/ready)
measure() { # DEVICE RW DEPTH: requests per second
    fio --name=m --filename="$1" --direct=1 --ioengine=libaio --rw="$2" --bs=4k --iodepth="$3" \
        --time_based --runtime="${CENOTE_GUEST_SECONDS:-2}" --norandommap --randrepeat=0 \
        --output-format=terse --terse-version=3 | awk -F';' '{ print $8 + $49 }'
}
for path in "$device" /dev/nbd0; do
    fio --name=fill --filename="$path" --direct=1 --rw=write --bs=64k --output=/dev/null
done
for rw in randread randwrite; do
    for depth in 1 32; do
        for round in 1 2 3; do
            echo "$(measure "$device" $rw $depth) $(measure /dev/nbd0 $rw $depth)"
        done | sort -n -k1,1 >/tmp/rounds
        # The median of the rounds' ratios.
        awk '{ print $1 / $2, $1, $2 }' /tmp/rounds | sort -n | sed -n 2p |
            awk -v name="$rw depth $depth" '{ printf "ublk to nbd, 4 KiB %s: %.2f (%d to %d a second)\n", name, $1, $2, $3 }'
    done
done
nbd-client -d /dev/nbd0 >/dev/null
kill $nbd $ublk
wait $nbd
wait $ublk
[ ! -e "$device" ]
cenote down --dir $well
echo "nothing is left"
