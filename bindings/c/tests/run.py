#!/usr/bin/env python3
"""Runs C programs over the library for C, against real clusters, as cargo's test programs run.

The library is the one that scripts/run-tests.py had cargo build; without that,
`cargo build -p cenote-c` makes it. tests/calls.c is built with the address sanitizer.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = PACKAGE.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "ops"))

import harness  # noqa: E402
from harness import CENOTE, TARGET, folder, need, run, skip, wait_for  # noqa: E402

LIBRARY = Path(os.environ.get("CENOTE_C_LIBRARY", TARGET / "debug" / "libcenote_c.so"))
STRICT = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
SANITIZED = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@contextlib.contextmanager
def cluster(hosts):
    """The folder of a cluster of so many hosts."""
    with folder() as place:
        well = place / "well"
        run(CENOTE, "up", "--hosts", hosts, "--memory", "64M", "--dir", well)
        try:
            yield well
        finally:
            run(CENOTE, "down", "--dir", well, code=None)


def built(place, source, *flags):
    """The program of a source, linked as a user would link it."""
    need("cc")
    if not LIBRARY.exists():
        skip(f"{LIBRARY} is not built (cargo build -p cenote-c builds it)")
    program = place / Path(source).stem
    run("cc", *STRICT, *flags, "-I", PACKAGE / "include", PACKAGE / source, "-o", program,
        LIBRARY, "-pthread", f"-Wl,-rpath,{LIBRARY.parent}")
    return program


def test_the_example_runs():
    with cluster(6) as well:
        ended = run(built(well, "examples/pages.c"), well / "cluster.toml")
        assert ended.stdout == "rs:4+2, 4194304 bytes stored\n", ended.stdout


def test_the_guide_shows_the_example():
    guide = (ROOT / "docs" / "guides" / "c.md").read_text()
    block = guide.partition("```c\n")[2].partition("```")[0]
    example = (PACKAGE / "examples" / "pages.c").read_text()
    assert block.split() and "".join(block.split()) in "".join(example.split()), block


def test_the_header_is_for_cpp_as_well():
    need("c++")
    with folder() as place:
        source = place / "header.cpp"
        source.write_text('#include "cenote.h"\nint main() { return cenote_last_error()[0]; }\n')
        run("c++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-I", PACKAGE / "include",
            "-fsyntax-only", source)


def test_a_volume_keeps_bytes_when_a_host_is_killed():
    with cluster(3) as well:
        program = built(well, "tests/calls.c", *SANITIZED)
        calls = subprocess.Popen([program, "volume", well / "cluster.toml"], text=True,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert calls.stdout.readline() == "kill\n"
        host = int((well / "hosts" / "h01" / "pid").read_text())
        os.kill(host, signal.SIGKILL)
        wait_for(lambda: is_gone(host), "the end of the host")
        said, _ = calls.communicate("killed\n", timeout=300)
        assert (said, calls.returncode) == ("done\n", 0)


def is_gone(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_cache():
    with cluster(3) as well:
        run(CENOTE, "cache", "create", "c0", "--size", "8M", "--region", "1M", "--copies", 2,
            "--dir", well)
        ended = run(built(well, "tests/calls.c", *SANITIZED), "cache", well, "c0")
        assert ended.stdout == "done\n", ended.stdout


def test_what_no_caller_should_pass():
    with cluster(3) as well:
        program = built(well, "tests/calls.c", *SANITIZED)
        ended = run(program, "hostile", well / "cluster.toml")
        assert ended.stdout == "done\n", ended.stdout


def test_the_library_has_what_the_header_declares():
    need("nm")
    symbols = run("nm", "-D", "--defined-only", LIBRARY).stdout.split()
    ours = {symbol for symbol in symbols if symbol.startswith("cenote_")}
    header = (PACKAGE / "include" / "cenote.h").read_text()
    assert ours == set(re.findall(r"\b(cenote_\w+)\(", header)), ours


if __name__ == "__main__":
    harness.main(globals())
