# What the guest of tests/ublk.rs does, with cenote, fio and nbd-client.
set -eu
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
        --size="$2" --iodepth=16 --rate_iops=1000 --verify=crc32c --do_verify=1 --verify_fatal=1 \
        --verify_state_save=0 --output=/tmp/fio.out || { cat /tmp/fio.out; return 1; }
}

cenote up --hosts 4 --memory 160M --dir $well

serve() { # VOLUME: says the device
    rm -f "/run/ready-$1"
    cenote ublk --dir $well --volume "$1" >"/run/ready-$1" &
    server=$!
    await "/run/ready-$1" $server
    cat "/run/ready-$1"
    device=$(sed 's/.* at //' "/run/ready-$1")
}

# A load over the death of a host, and of two servers: the device goes on where it was.
cenote volume create v0 --dir $well --size 32M --scheme rs:2+1
serve v0
first=$device
verify "$device" 12M &
load=$!
until_written "$device" 600 $load
victim=$(find $well/hosts -name pid | sort | head -n 1)
kill -9 "$(cut -d' ' -f1 "$victim")"
for count in 1200 2000; do
    until_written "$device" $count $load
    kill -9 $server
    fails wait $server 2>/dev/null
    serve v0
    [ "$device" = "$first" ]
done
# A device has one server.
fails cenote ublk --dir $well --volume v0
wait $load
echo "every block was right although a host and two servers died"

# A server that cannot start leaves the device to the next, which serves it whoever reads what it says.
kill -9 $server
fails wait $server 2>/dev/null
dd if="$device" of=/dev/null bs=4k count=1 iflag=direct 2>/run/dd &
waiting=$!
fails cenote ublk --dir $well --volume v0 --metrics 0.0.0.0:9641
[ -e "$device" ]
cenote ublk --dir $well --volume v0 >/dev/full &
server=$!
wait $waiting
kill -0 $server
echo "what waited for a server that could not start was served by the next"

# A server that does not come back.
kill -9 $server
fails wait $server 2>/dev/null
dd if="$device" of=/dev/null bs=4k count=1 iflag=direct 2>/run/dd &
waiting=$!
cenote ublk --dir $well --volume v0 --delete
fails wait $waiting
[ ! -e "$device" ]
echo "what waited for a deleted device failed"
cenote volume delete v0 --dir $well

# The same kind of volume by ublk and by the kernel's nbd, turn by turn.
cenote volume create b0 --dir $well --size 16M --scheme plain
cenote volume create b1 --dir $well --size 16M --scheme plain
serve b0
ublk=$server
cenote nbd --dir $well --volume b1 --socket /run/nbd >/run/ready-nbd &
nbd=$!
await /run/ready-nbd $nbd
nbd-client -unix /run/nbd /dev/nbd0 -name b1 -block-size 4096 -connections 2 >/dev/null
measure() { # DEVICE RW DEPTH: requests per second
    fio --name=m --filename="$1" --direct=1 --ioengine=libaio --rw="$2" --bs=4k --iodepth="$3" \
        --size=8M --time_based --runtime=1 --norandommap --randrepeat=0 \
        --output-format=terse --terse-version=3 | awk -F';' '{ print $8 + $49 }'
}
# More rounds for a figure that is written down; one shows that it works.
rounds=1
for path in "$device" /dev/nbd0; do
    fio --name=fill --filename="$path" --direct=1 --rw=write --bs=64k --size=8M --output=/dev/null
done
for rw in randread randwrite; do
    for depth in 1 32; do
        for round in $(seq $rounds); do
            ours=$(measure "$device" $rw $depth)
            echo "$ours $(measure /dev/nbd0 $rw $depth)"
        done >/tmp/rounds
        # The median of the rounds' ratios.
        awk '{ print $1 / $2, $1, $2 }' /tmp/rounds | sort -n | sed -n "$((rounds / 2 + 1))p" |
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
