#!/bin/sh
# Runs memcached 1.6.18's own tests (its t/) against cenote-memcached, or against another memcached.
#
#   scripts/memcached-suite.sh [-s FOLDER] [-m PROGRAM] [FILE...]
#
#   -s FOLDER    memcached's source [default: fetched once by apt-get into target/memcached-suite]
#   -m PROGRAM   what is tested [default: target/release/cenote-memcached]
#   FILE...      some of the tests, lru.t for one [default: all but those of its proxy, its disk
#                storage, its TLS library, and the one that looks at its source's white space]
#
# Says how many of them pass, and ends with 1 if one fails that scripts/memcached-suite.txt does not
# name, or one passes that it names. Needs perl, prove and cc.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$here/target}
program=$target/release/cenote-memcached
source=
while getopts s:m: option; do
    case $option in
    s) source=$OPTARG ;;
    m) program=$OPTARG ;;
    *) sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
program=$(command -v "$program") || { echo "no program to test: see -m" >&2; exit 2; }

# The sources of Debian, listed in a place of our own: the system's lists stay as they are.
fetch() {
    lists=$1/lists
    mkdir -p "$lists/partial"
    printf 'deb-src http://deb.debian.org/debian bookworm main\n' >"$1/sources.list"
    set -- -o "Dir::Etc::sourcelist=$1/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o "Dir::State::lists=$lists"
    apt-get "$@" update -qq >/dev/null
    apt-get "$@" source -qq --download-only memcached >/dev/null
    tar xf memcached_1.6.18.orig.tar.xz
}

if [ -z "$source" ]; then
    folder=$target/memcached-suite
    source=$folder/memcached-1.6.18
    if [ ! -d "$source/t" ]; then
        mkdir -p "$folder"
        (cd "$folder" && fetch "$folder")
    fi
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$source/t" "$source/doc" "$work/"
cc -o "$work/timedrun" "$source/timedrun.c"
# It takes what it runs for a debug build, which serves `debugtime`.
debug=
if "$program" --help 2>&1 | grep -q -e --debug-time; then debug=--debug-time; fi
printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$program" "$debug" >"$work/memcached-debug"
chmod +x "$work/memcached-debug"
cd "$work"

if [ $# -eq 0 ]; then
    # shellcheck disable=SC2046,SC2012 # memcached's names have no blanks
    set -- $(cd t && ls ./*.t | sed 's|^\./||' |
        grep -Ev '^(proxy|ssl_|extstore|whitespace)|-extstore')
fi
known=$here/scripts/memcached-suite.txt
passed=0
failed=
surprise=
for file; do
    if timeout 300 prove "t/$file" >"$work/out" 2>&1; then
        passed=$((passed + 1))
        if grep -q "^$file " "$known"; then
            surprise="$surprise $file(passes)"
        fi
    else
        failed="$failed $file"
        sed -n 's/^/    /; /Failed test\|got:\|expected:\|Failed to/p' "$work/out" | head -n 6 |
            sed "1s|^|$file\n|"
        grep -q "^$file " "$known" || surprise="$surprise $file(fails)"
    fi
done
echo "$passed of $# pass; others:${failed:- none}"
[ -z "$surprise" ] || { echo "not as scripts/memcached-suite.txt says:$surprise"; exit 1; }
