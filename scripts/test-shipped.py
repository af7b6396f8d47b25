#!/usr/bin/env python3
"""Tests the programs with the features that users get, and with no others.

    scripts/test-shipped.py [features]

The test programs are built together, so what one of them needs (injected faults, doors for the fuzz
targets) is compiled into all. `features` alone asks cargo which features the programs have when they
are built as `make build` does: that takes a second and builds nothing. Without it they are built so,
unoptimised, looked through for what must not be in them, and used: a disk, a cache, a store and the
key-value store are written, lose a process to kill -9, and are read.
"""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ["-p", "cenote", "-p", "cenote-lab", "-p", "cenote-memcached"]
# Features that are for tests alone, and a part of the symbols of what they compile in.
FOR_TESTS = {"injected-faults": b"15injected_faults6CHOSEN", "fuzz": b"4fuzz"}

os.environ["CENOTE"] = str(ROOT / "target" / "debug" / "cenote")
sys.path.insert(0, str(ROOT / "tests" / "ops"))
from harness import CENOTE, folder, main, need, run, wait_for  # noqa: E402


def features():
    """The features of each of our crates in the programs."""
    command = ["cargo", "tree", *PACKAGES, "--locked", "--edges", "normal,build", "--prefix", "none",
               "--format", "{p}|{f}"]
    found = {}
    for line in run(*command, cwd=ROOT).stdout.splitlines():
        name = re.match(r"(cenote\S*) v[^|]*\|(\S*)", line)
        if name:
            found.setdefault(name[1], set()).update(name[2].removesuffix("(*)").split(","))
    return found


def test_no_feature_for_tests_is_on():
    found = features()
    for name in ("cenote", "cenote-kv", "cenote-sim", "cenote-pool", "cenote-store", "cenote-volume"):
        assert name in found, f"{name} is not among {sorted(found)}"
    assert "cenote-test-kit" not in found, "a program for users has what tests share"
    wrong = {name: sorted(on & FOR_TESTS.keys()) for name, on in found.items() if on & FOR_TESTS.keys()}
    assert not wrong, f"a program for users has what is for tests: {wrong}"
    # What is looked for is there to be found. Nothing of the workspace turns the doors on.
    for name in ("block", "cache", "fabric", "kv", "kv-cluster", "store", "volume"):
        manifest = (ROOT / "crates" / name / "Cargo.toml").read_text()
        assert "\nfuzz = []\n" in manifest, f"{name} has doors for the fuzz targets"
    command = ["cargo", "tree", "-p", "cenote-sim", "--locked", "--edges", "normal,dev", "--prefix", "none",
               "--format", "{p}|{f}"]
    told = run(*command, cwd=ROOT).stdout
    assert "injected-faults" in told, "the tests of cenote-sim have injected faults"


def built_test_no_code_for_tests_is_in_the_programs():
    for program in ("cenote", "cenote-lab", "cenote-memcached"):
        code = (CENOTE.parent / program).read_bytes()
        assert b"cenote_pool" in code, f"{program} has no symbols to look through"
        for feature, symbol in FOR_TESTS.items():
            assert symbol not in code, f"{program} has code of the feature {feature}"
        # What measures and simulates is in a program of its own.
        for crate in (b"cenote_bench", b"cenote_papers", b"cenote_sim"):
            assert (crate in code) == (program == "cenote-lab"), f"{crate} in {program}"
        assert b"cenote_test_kit" not in code, f"{program} has code that tests share"


def pid(path):
    return int(path.read_text().split()[0])


def kill(path):
    """Ends a process as a power cut does."""
    number = pid(path)
    os.kill(number, 9)
    wait_for(lambda: not runs(number), f"process {number} runs")


def runs(number):
    try:
        return ") Z " not in Path(f"/proc/{number}/stat").read_text()
    except FileNotFoundError:
        return False


def built_test_a_disk_and_a_cache_lose_a_host_each_and_nothing_else():
    need("nbdcopy")
    with folder() as place:
        well = place / "well"
        at = ["--dir", well]
        written, read = place / "written", place / "read"
        written.write_bytes(os.urandom(8 << 20))
        try:
            run(CENOTE, "up", "--hosts", "5", "--memory", "64M", *at)
            run(CENOTE, "nbd", "--volume", "v0", "--size", "8M", "--scheme", "rs:2+1",
                "--socket", well / "nbd", "--background", *at)
            uri = f"nbd+unix:///v0?socket={well}/nbd"
            run("nbdcopy", written, uri)
            run(CENOTE, "cache", "create", "c0", "--size", "4M", "--region", "1M", "--copies", "2", *at)
            bench = ["cache", "bench", "c0", "--record", "64", "--reads", "50", "--duration", "1s", *at]
            run(CENOTE, *bench)
            kill(well / "hosts" / "h03" / "pid")
            run("nbdcopy", uri, read)
            assert read.read_bytes() == written.read_bytes(), "other bytes after a host died"
            run(CENOTE, *bench)
            status = json.loads(run(CENOTE, "cache", "status", "c0", "--json", *at).stdout)
            assert not status["status"]["losses"], status
        finally:
            # It is no part of the cluster, so that `down` leaves it.
            run(CENOTE, "volume", "stop", "v0", *at, code=None)
            run(CENOTE, "down", "--force", *at, code=None)


def built_test_a_store_that_is_killed_has_what_was_stored():
    with folder() as place:
        key, store = place / "cluster.key", place / "objects"
        run(CENOTE, "key", "new", "--out", key)
        run(CENOTE, "store", "create", store, "--size", "16M")
        serve = [CENOTE, "store", "serve", store, "--listen", f"tcp:127.0.0.1:{port()}", "--key", key,
                 "--background"]
        address = serve[5]
        run(*serve)
        try:
            run(CENOTE, "store", "put", address, "greeting", "--key", key, input="hello")
            kill(store / "pid")
            run(*serve)
            got = run(CENOTE, "store", "get", address, "greeting", "--key", key).stdout
            assert got == "hello", got
        finally:
            if runs(pid(store / "pid")):
                kill(store / "pid")


def built_test_nodes_that_lose_one_have_what_was_set():
    need("etcd")
    with folder() as place:
        at = ["--dir", place]
        try:
            run(CENOTE, "kv", "up", "--nodes", "4", "--groups", "4", "--code", "2+1", "--memory", "64M", *at)
            for number in range(50):
                assert talk(place, "n00", f"set key{number} 0 0 5\r\n{number:05}\r\n") == "STORED\r\n"
            kill(place / "nodes" / "n02" / "pid")
            for number in range(50):
                wanted = f"VALUE key{number} 0 5\r\n{number:05}\r\nEND\r\n"
                told = []

                def is_there():
                    told[:] = [talk(place, "n01", f"get key{number}\r\n")]
                    return told[0] == wanted

                wait_for(is_there, lambda: f"{told} in place of {wanted!r}")
        finally:
            run(CENOTE, "kv", "down", *at, code=None)


def built_test_the_memcached_alone_answers():
    number = port()
    user = ["-u", "root"] if os.getuid() == 0 else []
    command = [CENOTE.parent / "cenote-memcached", "-p", str(number), "-l", "127.0.0.1", *user]
    program = subprocess.Popen(command)
    try:
        wait_for(lambda: program.poll() is not None or is_open(number), "it does not listen")
        assert ask(number, "set a 0 0 1\r\nx\r\n") == "STORED\r\n"
        assert ask(number, "get a\r\n") == "VALUE a 0 1\r\nx\r\nEND\r\n"
    finally:
        program.kill()
        program.wait()


def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def is_open(number):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", number)) == 0


def ask(number, text):
    """The reply to one request, until it is whole."""
    with socket.create_connection(("127.0.0.1", number), 30) as client:
        client.sendall(text.encode())
        reply = b""
        while not reply.endswith((b"END\r\n", b"STORED\r\n")) and b"ERROR" not in reply:
            part = client.recv(4096)
            if not part:
                break
            reply += part
    return reply.decode()


def talk(place, node, text):
    """The reply of a node to one request."""
    said = json.loads(run(CENOTE, "kv", "status", "--json", "--dir", place, code=None).stdout)
    found = [one for one in said["nodes"] if one["name"] == node]
    address = found[0]["registration"]["clients"][0]
    return ask(int(address.rpartition(":")[2]), text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["features"]:
        del sys.argv[1]
        main({"test_no_feature_for_tests_is_on": test_no_feature_for_tests_is_on})
    offline = ["--offline"] if os.environ.get("CARGO_NET_OFFLINE") else []
    if subprocess.call(["cargo", "build", *PACKAGES, "--locked", *offline], cwd=ROOT):
        sys.exit("the programs do not build")
    main({name.removeprefix("built_"): test for name, test in globals().items() if "test_" in name[:11]})
