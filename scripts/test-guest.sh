#!/bin/sh
# Runs a shell script as root in a small virtual machine whose kernel has nbd.
#
#   scripts/test-guest.sh DIR SCRIPT PROGRAM...
#
# DIR keeps the kernel for the next time. Each PROGRAM is in the guest's /bin with the libraries
# it needs; beside them there are busybox and the kernel's modules, none of them loaded yet. What
# the script prints comes out here; the exit code is the script's. 77: the guest cannot be had, and
# the last line says why. Nothing is installed, and the guest has no network.
#
# Environment, for guests that need more than that:
#   GUEST_KERNEL   the package that names the kernel, or, from a ^ on, an expression for kernels'
#                  packages of which the newest is taken  [linux-image-cloud-amd64]
#   GUEST_MODULES  modules to take along, with all that they need  [nbd]
#   GUEST_FILES    files that are to lie in the guest where they lie here
#   GUEST_MEMORY   [1536M]
#   GUEST_CPUS     [2]
#   GUEST_SECONDS  how long it may run  [300]
set -eu

metapackage=${GUEST_KERNEL:-linux-image-cloud-amd64}
modules=${GUEST_MODULES:-nbd}

directory=$1
script=$2
shift 2

skip() {
    echo "$1"
    exit 77
}

for tool in qemu-system-x86_64 cpio busybox apt-get dpkg-deb depmod ldd; do
    command -v $tool >/dev/null || skip "$tool is not installed"
done
[ "$(uname -m)" = x86_64 ] || skip "the guest is made for x86_64"

mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
kernel=$directory/kernel
if [ ! -e "$kernel/complete" ]; then
    rm -rf "$kernel"
    mkdir -p "$kernel"
    case $metapackage in
    ^*) package=$(apt-cache pkgnames linux-image- 2>/dev/null |
        grep -E -e "$metapackage" | sort -V | tail -n 1) ;;
    # The package without a version only names the newest one.
    *) package=$(apt-cache depends "$metapackage" 2>/dev/null |
        sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -n 1) ;;
    esac
    [ -n "$package" ] || skip "no package of a kernel is known; apt-get update may help"
    (cd "$kernel" && apt-get download -qq "$package" >/dev/null 2>&1) ||
        skip "the package $package cannot be fetched"
    dpkg-deb -x "$kernel"/*.deb "$kernel"
    rm "$kernel"/*.deb
    touch "$kernel/complete"
fi

root=$(mktemp -d "$directory/root.XXXXXX")
trap 'rm -rf "$root" "$root.cpio" "$root.console"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/run"
cp "$(command -v busybox)" "$root/bin/busybox"
libraries() { # FILE: takes the libraries along that it needs
    for library in $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*'); do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
}
for program in "$@"; do
    # Without what only debuggers read: the guest's kernel unpacks all of this into its memory.
    strip -o "$root/bin/$(basename "$program")" "$program" 2>/dev/null ||
        cp "$program" "$root/bin/"
    libraries "$program"
done
# shellcheck disable=SC2086 # a list of paths
for file in ${GUEST_FILES:-}; do
    mkdir -p "$root$(dirname "$file")"
    cp -L "$file" "$root$file"
    libraries "$file"
done
release=$(basename "$kernel"/lib/modules/*)
# Once: it reads every module that there is.
[ -e "$kernel/lib/modules/$release/modules.dep" ] || depmod -b "$kernel" "$release"
mkdir -p "$root/lib/modules/$release"
for name in $modules; do
    # A name, in the file's own spelling, and what it needs: paths under the modules' folder.
    # shellcheck disable=SC2013 # words are meant: paths without blanks
    for module in $(sed -n "s|^\(.*/$name\.ko[^:]*\): *|\1 |p" "$kernel/lib/modules/$release/modules.dep"); do
        mkdir -p "$root/lib/modules/$release/$(dirname "$module")"
        cp "$kernel/lib/modules/$release/$module" "$root/lib/modules/$release/$module"
    done
done
depmod -b "$root" "$release" 2>/dev/null
cp "$script" "$root/script"
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mkdir -p /sbin /usr/bin
ln -s /bin/modprobe /sbin/modprobe
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup /sys/fs/cgroup
ip link set lo up
# Through a pipe: what looks for a terminal finds none.
{ sh /script; echo "guest exit code $?"; } </dev/null 2>&1 | cat
poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio --quiet -R 0:0 -o -H newc) >"$root.cpio"

# The processor's clock is the emulator's own, so it is reliable; the kernel would take a slow one.
# Not tmpfs for the root: programs on it would count as shared memory that can be swapped out.
console=$root.console
timeout "${GUEST_SECONDS:-300}" qemu-system-x86_64 -accel tcg -cpu max -smp "${GUEST_CPUS:-2}" -m "${GUEST_MEMORY:-1536M}" -nographic -no-reboot -nodefaults \
    -serial stdio -kernel "$kernel"/boot/vmlinuz-* -initrd "$root.cpio" \
    -append 'console=ttyS0 tsc=reliable loglevel=1 panic=-1 rootfstype=ramfs' </dev/null | sed -u 's/\r$//' | tee "$console"
code=$(sed -n 's/^guest exit code //p' "$console" | tail -n 1)
exit "${code:-1}"
