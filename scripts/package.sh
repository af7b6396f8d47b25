#!/bin/sh
# Makes a package of what was built, for Debian or for systems with RPM, and says where it is.
#
#   scripts/package.sh deb|rpm [--programs DIR] [--version VERSION] [--fast] OUT
#
# Needs nfpm, on the PATH or named by NFPM. The same programs and files make the same package: all
# times in it are SOURCE_DATE_EPOCH, or that of the last commit. --fast compresses less, for tests.
set -eu
cd "$(dirname "$0")/.."
kind=${1:-}
[ $# -eq 0 ] || shift
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
case $kind in deb | rpm) ;; *) kind= ;; esac
if [ $# -ne 1 ] || [ -z "$kind" ]; then
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
if [ "$kind" = deb ]; then
    {
        echo "Cenote is under the Apache License, version 2.0: /usr/share/common-licenses/Apache-2.0"
        echo "What is linked into its programs, with licences: third-party.txt.gz"
    } > "$doc/copyright"
    rm "$doc/LICENSE"
else
    # Debian's own place; zsh looks here elsewhere.
    mv "$stage/usr/share/zsh/vendor-completions" "$stage/usr/share/zsh/site-functions"
fi
find "$stage/usr/share/man" -type f -exec gzip -9n {} +
gzip -9n "$doc/CHANGELOG.md" "$doc/third-party.txt"
find "$stage" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
mkdir -p "$out"
sed "s/^  compression: xz/  compression: $compression/" dist/package/nfpm.yaml > "$work/nfpm.yaml"
VERSION=$version STAGE=$stage \
    "${NFPM:-nfpm}" package --config "$work/nfpm.yaml" --packager "$kind" --target "$out"
