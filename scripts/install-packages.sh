#!/bin/sh
# Installs the Debian packages that the named groups need, only those that are missing.
#
#   scripts/install-packages.sh GROUP...     groups: build test long rdma demo bench apps lint
#   scripts/install-packages.sh --list       every package, its groups and why
#
# Without root, or on another system, it says what is missing and what will be left
# out for it, and ends with success: what can be done is done.
set -eu

# package | groups | why, and what is left out without it | a command that does instead
rows() {
    cat <<'END'
make|build|runs the Makefile
gcc|build|links Rust programs
libc6-dev|build|links Rust programs
fio|test long rdma bench|checks every byte over NBD; the load of the benchmarks
rocksdb-tools|long|db_bench and ldb on mounted files
stress-ng|long|its checks of file systems on mounted files
libnbd-bin|test demo apps|nbdinfo and nbdcopy against our NBD server; what the demonstration shows without root; nbdfuse
nbdkit|test bench apps|its nbd plugin as a client of ours, its memory plugin as the peer
qemu-utils|test|qemu-img and qemu-io against our NBD server
mount|test demo apps|losetup, swapon and mounting what mkfs made
util-linux|test demo|mkswap
jq|test|reads JSON in the examples of the documents
openssl|test|certificates in the examples of the documents
bsdutils|test|script, a terminal for cenote top
rpm|test|lists, installs and removes the RPM
systemd|test|systemd-analyze, which checks the units
chromium|test|shows the dashboard to its tests, without a screen
prometheus|test|scrapes our metrics, checks our alert rules (promtool) and dashboards|promtool
iproute2|test|hosts in network namespaces whose links are cut
e2fsprogs|test bench|ext4 on our device
xfsprogs|test|XFS on our device
btrfs-progs|test|Btrfs on our device
qemu-system-x86|long rdma|a guest whose kernel has nbd, for a machine without
nbd-client|test long|attaches nbd of the kernel, beside which ublk is measured
busybox-static|long rdma|the shell of that guest
cpio|long rdma|packs the files of that guest
etcd-server|test|the store in which a cluster of kv nodes agrees: tests of its client, cenote kv up
memcached|test demo apps bench|the unmodified program whose memory does not fit; the peer of our key-value store
golang-go|test long|Porcupine, which judges histories of the store, gomemcache, one of its clients, and a collector of OpenTelemetry|go
python3|test long|runs the test programs side by side|python3
python3-numpy|test|arrays of a program whose heap is in a cluster
python3-venv|test long|pymemcache and pylibmc, clients of the store; Helm and other tools of packages
maven|long|fetches YCSB and spymemcached|mvn
default-jdk-headless|long|YCSB, a client of the store|javac
redis-server|test apps bench|another program whose memory does not fit; another peer
redis-tools|apps|redis-benchmark, its load
postgresql|apps|a third one, with pgbench
libmemcached-tools|test apps|memccp, memccat and memccapable, clients of the store in both protocols; memaslap, a second opinion on the load of memcached
npm|long|runs the own tests of node-memcached, a client of the store|npm
ruby-dalli|long|Dalli, another client of the store
perl|long|prove, which runs memcached's own tests (scripts/memcached-suite.sh)|prove
shellcheck|lint|checks the scripts
g++|bench|builds RocksDB and FASTER for the benchmark of the log store
librocksdb-dev|bench|RocksDB, a peer of the log store and of the object store
libaio-dev|bench|FASTER, another peer
libtbb-dev|bench|the same
uuid-dev|bench|the same
nasm|bench|assembles ISA-L, a peer of the codec benchmark
autoconf|bench|configures ISA-L
automake|bench|configures ISA-L
libtool|bench|configures ISA-L
libclang-dev|bench rdma|reads C headers for Rust: of ISA-L, of libibverbs
cmake|rdma|builds the bindings of libibverbs
iproute2|rdma|makes a soft-RoCE device, in the guest
kmod|long rdma|finds the modules that the guest needs
ibverbs-providers|rdma|libibverbs and its soft-RoCE part, in the guest
perftest|rdma|the peer of the rdma benchmark, in the guest
END
}

if [ "${1-}" = --list ]; then
    rows | while IFS='|' read -r package groups why _; do
        printf '%-20s %-12s %s\n' "$package" "$groups" "$why"
    done
    exit 0
fi
if [ $# -eq 0 ]; then
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi

installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

wanted() { # GROUPS-OF-PACKAGE GROUP...
    of=" $1 "; shift
    for group in "$@"; do
        case $of in *" $group "*) return 0 ;; esac
    done
    return 1
}

have_dpkg=yes
command -v dpkg-query >/dev/null && command -v apt-get >/dev/null || have_dpkg=no

missing=
report=
list=$(mktemp)
trap 'rm -f "$list"' EXIT
rows >"$list"
while IFS='|' read -r package groups why instead; do
    wanted "$groups" "$@" || continue
    if [ $have_dpkg = yes ] && installed "$package"; then continue; fi
    if [ -n "$instead" ] && command -v "$instead" >/dev/null; then continue; fi
    missing="$missing $package"
    report="$report$(printf '  %-20s %s' "$package" "$why")
"
done <"$list"

[ -n "$missing" ] || exit 0

if [ $have_dpkg = no ]; then
    echo "This is no Debian: install what is missing by hand. What may be needed:"
    printf '%s' "$report"
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "Not root: these Debian packages are not installed, and what needs them is left out:"
    printf '%s' "$report"
    echo "To have them: run as root  scripts/install-packages.sh $*"
    exit 0
fi

echo "Installing Debian packages:"
printf '%s' "$report"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # a list of words
apt-get install -y -qq --no-install-recommends $missing >/dev/null
