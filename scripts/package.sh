#!/bin/sh
# Makes a Debian package of what was built, and says where it is.
#
#   scripts/package-deb.sh [--programs DIR] [--version VERSION] [--fast] OUT
#
# Needs nfpm, on the PATH or named by NFPM. The same programs and files make the same package: all
# times in it are SOURCE_DATE_EPOCH, or that of the last commit. --fast compresses less, for tests.
set -eu
cd "$(dirname "$0")/.."
programs=target/release
compression=xz
version=
while [ $# -gt 1 ]; do
    case $1 in
    --programs) programs=$2; shift 2 ;;
    --version) version=$2; shift 2 ;;
    --fast) compression=gzip; shift ;;
    *) break ;;
    esac
done
if [ $# -ne 1 ]; then
    sed -n '4s/^# *//p' "$0" >&2
    exit 2
fi
out=$1
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH
version=${version:-$("$programs/cenote" --version | cut -d ' ' -f 2)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/root
umask 022
sh scripts/install.sh --programs "$programs" --prefix /usr --destdir "$stage" >/dev/null
doc=$stage/usr/share/doc/cenote
python3 scripts/licences.py --list "$doc/third-party.txt" --sbom "$doc/cenote.cdx.json"
{
    echo "Cenote is under the Apache License, version 2.0: /usr/share/common-licenses/Apache-2.0"
    echo "What is linked into its programs, with licences: third-party.txt.gz"
} > "$doc/copyright"
rm "$doc/LICENSE"
find "$stage/usr/share/man" -type f -exec gzip -9n {} +
gzip -9n "$doc/CHANGELOG.md" "$doc/third-party.txt"
find "$stage" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
mkdir -p "$out"
sed "s/^  compression: xz/  compression: $compression/" dist/deb/nfpm.yaml > "$work/nfpm.yaml"
VERSION=$version STAGE=$stage \
    "${NFPM:-nfpm}" package --config "$work/nfpm.yaml" --packager deb --target "$out"
