#!/bin/sh
# Runs one real client of memcached as a load that checks what it was promised.
#
#   tests/clients/run.sh CLIENT SECONDS|- ADDRESS...  clients: pymemcache pylibmc gomemcache tools ycsb
#   tests/clients/run.sh CLIENT prepare               makes ready what it needs, which may take minutes
#
# With "-" for the seconds it goes on until its standard input ends.
# Any address has to answer for all keys (or be the only one); somebody else may kill nodes
# meanwhile. Ends with 0 when every acknowledged value was read back right, with 1 when not, with 77
# and a line "skipped: REASON" when the client cannot be had here. What registries give is kept under
# target/clients, at the versions that the files beside this one name.
set -eu
cd "$(dirname "$0")"
client=$1
shift
order=${1:-}
kept=${CARGO_TARGET_DIR:-$PWD/../../target}/clients
mkdir -p "$kept"
kept=$(cd "$kept" && pwd)

# Two that run at a time make what they need one after the other.
exec 9>"$kept/lock"
flock 9

skip() {
    echo "skipped: $*"
    exit 77
}

# prepare COMMAND...: what it says is shown only if it fails, as the reason.
prepare() {
    "$@" >"$kept/prepare.log" 2>&1 || skip "$1: $(grep -v '^[[:space:]]*$' "$kept/prepare.log" | tail -n 1)"
}

need() {
    command -v "$1" >/dev/null || skip "$1 is not installed"
}

# start COMMAND...: the client itself, once all that it needs is there.
start() {
    [ "$order" = prepare ] || exec 9>&- "$@"
}

case $client in
pymemcache | pylibmc)
    need python3
    venv=$kept/python
    if ! cmp -s python/requirements.txt "$venv/requirements.txt"; then
        rm -rf "$venv"
        prepare python3 -m venv "$venv"
        prepare "$venv/bin/pip" install --quiet --disable-pip-version-check -r python/requirements.txt
        cp python/requirements.txt "$venv/"
    fi
    start "$venv/bin/python" python/load.py "$client" "$@"
    ;;
gomemcache)
    need go
    cd gomemcache
    GOMODCACHE=$kept/../go/modules GOCACHE=$kept/../go/build CGO_ENABLED=0
    export GOMODCACHE GOCACHE CGO_ENABLED
    prepare go mod download -modcacherw
    go build -mod=readonly -modcacherw -o "$kept/gomemcache" .
    start "$kept/gomemcache" "$@"
    ;;
tools)
    need memccp
    start ./tools.sh "$@"
    ;;
ycsb)
    need java
    need mvn
    need javac
    classes=$kept/ycsb
    if ! cmp -s ycsb/pom.xml "$classes/pom.xml"; then
        rm -rf "$classes"
        mkdir -p "$classes"
        prepare mvn -q -B -f ycsb/pom.xml -Dmaven.repo.local="$kept/maven" \
            org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath \
            -Dmdep.outputFile="$classes/classpath"
        cp ycsb/pom.xml "$classes/"
    fi
    classpath=$classes:$(cat "$classes/classpath")
    if ! cmp -s ycsb/Memcached.java "$classes/Memcached.java"; then
        javac -nowarn -d "$classes" -cp "$classpath" ycsb/Memcached.java
        cp ycsb/Memcached.java "$classes/"
    fi
    start ./ycsb.sh "$classpath" "$@"
    ;;
*)
    sed -n '4,5s/^# *//p' run.sh >&2
    exit 2
    ;;
esac
