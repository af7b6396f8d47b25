"""Runs tests written in Python as cargo's test programs run: the same arguments and closing line.

A test is a function whose name begins with `test_` (or `long_test_`, which stands for the module
`long` of the Rust tests). It fails by an exception, and is left out by `skip(REASON)`.
scripts/run-tests.py starts these programs, and reads what they print.
"""

import contextlib
import fcntl
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# The program under test; scripts/run-tests.py says where cargo put it.
CENOTE = Path(os.environ.get("CENOTE", TARGET / "debug" / "cenote"))
# How long anything is waited for that takes a second. Longer than a loaded machine needs.
LIMIT_S = 60


class Skipped(Exception):
    """Why a test cannot run here."""


def skip(reason):
    raise Skipped(reason)


def need(*programs):
    """Leaves the test out where one of these is not installed."""
    for program in programs:
        if not shutil.which(program):
            skip(f"{program} is not installed (scripts/install-packages.sh installs it)")


def run(*command, code=0, timeout=300, **more):
    """Runs a command to its end; what it printed. Another exit code is an error that shows all."""
    command = [str(word) for word in command]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **more)
    if code is not None and ended.returncode != code:
        raise AssertionError(
            f"{' '.join(command)}\nended with {ended.returncode}, not {code}\n"
            f"{ended.stdout[-6000:]}{ended.stderr[-6000:]}"
        )
    return ended


def wait_for(condition, what, limit_s=LIMIT_S):
    """Asks until the answer is true, and returns it; after `limit_s` that is an error."""
    deadline = time.monotonic() + limit_s
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s} s: {what() if callable(what) else what}")
        time.sleep(0.05)
    return answer


def tools(whose="ops", wanted=ROOT / "tests" / "ops" / "requirements.txt"):
    """The environment with the packages of such a file, installed once; its folder."""
    place = TARGET / whose / "python"
    place.mkdir(parents=True, exist_ok=True)
    installed = place / "requirements.txt"
    # Two programs that need it at the same time do not both make it.
    with open(place / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if installed.exists() and installed.read_bytes() == wanted.read_bytes():
            return place / "venv"
        for command in (
            [sys.executable, "-m", "venv", "--clear", place / "venv"],
            [place / "venv/bin/pip", "install", "-q", "--no-deps", "--no-compile",
             "--requirement", wanted],
        ):
            ended = run(*command, code=None)
            if ended.returncode != 0:
                said = (ended.stderr.strip() or ended.stdout.strip()).splitlines()[-1:]
                shown = wanted.relative_to(ROOT)
                skip(f"packages of {shown} cannot be had: {''.join(said)}")
        shutil.copy(wanted, installed)
    return place / "venv"


@contextlib.contextmanager
def folder():
    """A folder for a test, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="cenote-ops-") as path:
        yield Path(path)


def main(tests):
    """Runs the tests in `tests`, a module's globals, that the arguments ask for."""
    is_long = "long::" in sys.argv and "--skip" not in sys.argv
    prefix = "long_test_" if is_long else "test_"
    words = [word for word in sys.argv[1:] if not word.startswith("--") and word != "long::"]
    chosen = [
        (name.removeprefix(prefix), test)
        for name, test in tests.items()
        if name.startswith(prefix) and callable(test) and all(word in name for word in words)
    ]
    failures = []
    for name, test in chosen:
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                test()
            word = "ok"
        except Skipped as reason:
            print(f"skipped: {reason}")
            word = "ok"
        except Exception:  # noqa: BLE001 -- a test may fail by any
            failures.append((name, said.getvalue() + traceback.format_exc()))
            word = "FAILED"
        print(f"test {name} ... {word}", flush=True)
    if failures:
        print("\nfailures:\n")
        for name, said in failures:
            print(f"---- {name} stdout ----\n{said}")
        print("\nfailures:\n" + "\n".join(f"    {name}" for name, _ in failures))
    word = "FAILED" if failures else "ok"
    passed = len(chosen) - len(failures)
    print(f"\ntest result: {word}. {passed} passed; {len(failures)} failed; 0 ignored")
    sys.exit(1 if failures else 0)
