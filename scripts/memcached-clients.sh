#!/bin/sh
# Runs the own tests of memcached's clients against cenote-memcached and against memcached.
#
#   scripts/memcached-clients.sh [-m PROGRAM] [-p PEER] [CLIENT...]
#
#   -m PROGRAM   what is tested [default: target/release/cenote-memcached]
#   -p PEER      what is expected: what passes with it is to pass [default: memcached]
#   CLIENT...    pymemcache, pylibmc, gomemcache, node-memcached, dalli [default: all]
#
# Ends with 1 if a test fails with PROGRAM that passes with PEER and scripts/memcached-clients.txt does
# not name, or one passes that it names. Each client's servers listen on 127.0.0.1 in a network
# namespace of their own. What registries give is kept in target/clients/suites, at the versions below. Needs
# python3 with venv, go, node with npm, ruby with dalli, ip and unshare; a client whose language is not
# here is left out. Dalli's own tests are in no registry: ours call what it offers.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$here/target}
program=$target/release/cenote-memcached
peer=memcached
while getopts m:p: option; do
    case $option in
    m) program=$OPTARG ;;
    p) peer=$OPTARG ;;
    *) sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
program=$(command -v "$program") || { echo "no program to test: see -m" >&2; exit 2; }
peer=$(command -v "$peer") || { echo "skipped: memcached is not installed"; exit 77; }
[ $# -gt 0 ] || set -- pymemcache pylibmc gomemcache node-memcached dalli

kept=$target/clients/suites
mkdir -p "$kept"
kept=$(cd "$kept" && pwd)
known=$here/scripts/memcached-clients.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# As root, unless who runs this is: another user may have a namespace of their own.
as_root=
[ "$(id -u)" -eq 0 ] || as_root=--map-root-user
# shellcheck disable=SC2086 # nothing, or one word
unshare $as_root --net true 2>"$work/why" || { echo "skipped: $(cat "$work/why")"; exit 77; }

python_suite() { # CLIENT VERSION
    command -v python3 >/dev/null || { echo "python3 is not installed"; return 1; }
    [ ! -e "$kept/$1-$2/ready" ] || return 0
    rm -rf "${kept:?}/$1-$2" "${kept:?}/$1"
    python3 -m venv "$kept/$1" &&
        "$kept/$1/bin/pip" install --quiet --disable-pip-version-check \
            "$1==$2" pytest==7.1.1 Faker==40.63.0 zstd==1.5.7.2 &&
        (cd "$kept" && "$kept/$1/bin/pip" download --quiet --disable-pip-version-check --no-deps \
            --no-binary :all: "$1==$2" && tar xf "$1-$2.tar.gz") &&
        : >"$kept/$1-$2/ready"
}

# Makes a client's tests ready; says why not. Each step is told whether the last one did: errors end
# nothing where a function is asked how it went.
prepare() {
    case $1 in
    pymemcache) python_suite pymemcache 4.0.0 ;;
    pylibmc) python_suite pylibmc 1.6.3 ;;
    gomemcache)
        command -v go >/dev/null || { echo "go is not installed"; return 1; }
        # At the version that its load has.
        (cd "$here/tests/clients/gomemcache" &&
            GOMODCACHE=$target/go/modules GOCACHE=$target/go/build CGO_ENABLED=0 \
                go test -mod=readonly -modcacherw -c -o "$kept/gomemcache.test" \
                github.com/bradfitz/gomemcache/memcache)
        ;;
    node-memcached)
        command -v npm >/dev/null || { echo "npm is not installed"; return 1; }
        [ ! -e "$kept/node-memcached/ready" ] || return 0
        rm -rf "$kept/node-memcached"
        mkdir "$kept/node-memcached"
        (cd "$kept/node-memcached" &&
            npm pack --silent memcached@2.2.2 && tar xf memcached-2.2.2.tgz && cd package &&
            npm pkg delete devDependencies scripts &&
            npm install --silent --no-audit --no-fund --ignore-scripts --no-save \
                mocha@12.0.3 should@13.2.3) && : >"$kept/node-memcached/ready"
        ;;
    dalli) ruby -e 'require "dalli"' || { echo "ruby with dalli is not installed"; return 1; } ;;
    *) echo "$1 is none of the clients"; return 1 ;;
    esac
}

# Runs a client's tests with servers on ports 11211 to 11213; $1 is the client. In the namespace.
cat >"$work/run" <<'END'
set -eu
ip link set lo up
servers=
trap 'kill $servers' EXIT
threads=4
# Its first test flushes on one connection without reading the answer, and stores on the next: one thread
# takes them in that order.
[ "$1" != gomemcache ] || threads=1
for port in 11211 11212 11213; do
    memcached -l 127.0.0.1 -p "$port" -t "$threads" &
    servers="$servers $!"
done
python3 - <<'PYTHON'
import socket, time
deadline = time.monotonic() + 30
for port in 11211, 11212, 11213:
    while socket.socket().connect_ex(("127.0.0.1", port)):
        assert time.monotonic() < deadline, f"nobody listens on {port}"
        time.sleep(0.05)
PYTHON
case $1 in
pymemcache)
    cd "$KEPT/pymemcache-4.0.0"
    timeout 240 "$KEPT/pymemcache/bin/python" -m pytest -c /dev/null --rootdir . -p no:cacheprovider -q -rA \
        --tb=short -m "not benchmark and not tls" pymemcache
    ;;
pylibmc)
    cd "$KEPT/pylibmc-1.6.3"
    timeout 240 "$KEPT/pylibmc/bin/python" -m pytest -c /dev/null --rootdir . -p no:cacheprovider -q -rA \
        --tb=short tests
    ;;
gomemcache)
    # It gives items two seconds and touches them after one. A server counts whole seconds: begun within
    # one, they have but one second and what is left of another.
    python3 -c 'import time; time.sleep(1 - time.time() % 1)'
    timeout 240 "$KEPT/gomemcache.test" -test.v
    ;;
node-memcached)
    cd "$KEPT/node-memcached/package"
    # What its client does without a server is left out: it asks `ping`, and an address that is silent.
    files=$(ls test/*.test.js | grep -v connections)
    # shellcheck disable=SC2086 # a list of files
    MEMCACHED__HOST=127.0.0.1 timeout 240 node_modules/.bin/mocha --require should --exit --ui bdd \
        --timeout 10000 --reporter tap $files
    ;;
dalli) timeout 240 ruby "$HERE/tests/clients/dalli/exercise.rb" 127.0.0.1:11211 127.0.0.1:11212 127.0.0.1:11213 ;;
esac
END

# Writes the names of tests and how they ended: "passed NAME", "failed NAME".
verdicts() {
    sed -n -E -e 's/^PASSED +(.*)$/passed \1/p' -e 's/^(FAILED|ERROR) +([^ ]+).*$/failed \2/p' \
        -e 's/^ *--- PASS: ([^ ]+).*$/passed \1/p' -e 's/^ *--- FAIL: ([^ ]+).*$/failed \1/p' \
        -e 's/^ok [0-9]+ (.*)$/passed \1/p' -e 's/^not ok [0-9]+ (.*)$/failed \1/p' "$1" | sort
}

surprises=0
for client; do
    if ! prepare "$client" >"$work/prepare" 2>&1; then
        echo "skipped: $client: $(grep -v '^[[:space:]]*$' "$work/prepare" | tail -n 1)"
        continue
    fi
    for side in ours theirs; do
        mkdir -p "$work/$side"
        server=$program
        [ $side = ours ] || server=$peer
        # Root has to say that it means to be.
        printf '#!/bin/sh\nexec "%s" -u root "$@"\n' "$server" >"$work/$side/memcached"
        chmod +x "$work/$side/memcached"
        # shellcheck disable=SC2086 # nothing, or one word
        HERE=$here KEPT=$kept PATH=$work/$side:$PATH unshare $as_root --net sh "$work/run" "$client" \
            >"$work/$side/$client" 2>&1 || true
        verdicts "$work/$side/$client" >"$work/$side/verdicts"
    done
    ours=$(grep -c '^passed ' "$work/ours/verdicts") || true
    theirs=$(grep -c '^passed ' "$work/theirs/verdicts") || true
    echo "$client: $ours tests pass, $theirs with ${peer##*/}"
    if [ "$ours" -eq 0 ]; then
        tail -n 20 "$work/ours/$client"
        surprises=$((surprises + 1))
    fi
    sed -n 's/^passed //p' "$work/theirs/verdicts" >"$work/expected"
    sed -n 's/^passed //p' "$work/ours/verdicts" | comm -13 - "$work/expected" >"$work/missed"
    sed -n "s/^$client //p" "$known" | sort >"$work/known"
    comm -23 "$work/missed" "$work/known" >"$work/new"
    comm -13 "$work/missed" "$work/known" >"$work/mended"
    if [ -s "$work/new" ]; then
        surprises=$((surprises + 1))
        sed "s/^/  fails with ours alone: /" "$work/new"
        grep -A 12 -F -f "$work/new" "$work/ours/$client" | head -n 60
    fi
    if [ -s "$work/mended" ]; then
        surprises=$((surprises + 1))
        sed "s/^/  no longer fails with ours alone: /" "$work/mended"
    fi
done
[ "$surprises" -eq 0 ]
