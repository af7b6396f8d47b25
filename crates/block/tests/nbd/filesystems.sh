# Makes a file system of kind $3 in the export $1, through nbdfuse and a loop
# device in directory $2; writes to it, mounts it again, compares, checks with $4.
set -eu
uri=$1 place=$2 kind=$3 check=$4
for tool in nbdfuse losetup "mkfs.$kind" "${check%% *}"; do
    command -v "$tool" >/dev/null || { echo "skipped: $tool is not installed"; exit 0; }
done
[ -e /dev/fuse ] || { echo "skipped: no /dev/fuse"; exit 0; }
modprobe "$kind" 2>/dev/null || true
grep -qw "$kind" /proc/filesystems || { echo "skipped: this kernel has no $kind"; exit 0; }
mkdir "$place/fuse" "$place/mount"
loop= fuse=
end() {
    mountpoint -q "$place/mount" && umount "$place/mount"
    [ -z "$loop" ] || losetup -d "$loop"
    # Unmounting alone leaves nbdfuse waiting in its operations.
    [ -z "$fuse" ] || { kill "$fuse" && wait "$fuse" || true; }
    mountpoint -q "$place/fuse" && umount "$place/fuse" || true
}
trap end EXIT
nbdfuse --pidfile "$place/pid" "$place/fuse/nbd" "$uri" >/dev/null 2>&1 &
fuse=$!
until [ -s "$place/pid" ]; do kill -0 "$fuse" && sleep 0.05; done
loop=$(losetup --find --show "$place/fuse/nbd") || { echo "skipped: no loop device"; exit 0; }
"mkfs.$kind" -q "$loop" >/dev/null
mount -t "$kind" "$loop" "$place/mount"
mkdir "$place/mount/tree"
for n in 1 2 3 4 5 6 7 8; do head -c 5000000 /dev/urandom >"$place/mount/tree/$n"; done
rm "$place/mount/tree/3"
before=$(cd "$place/mount/tree" && cat * | sha256sum)
umount "$place/mount"
mount -t "$kind" "$loop" "$place/mount"
after=$(cd "$place/mount/tree" && cat * | sha256sum)
[ "$before" = "$after" ]
umount "$place/mount"
$check "$loop" >/dev/null 2>&1
echo clean
