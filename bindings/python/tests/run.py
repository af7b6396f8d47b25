#!/usr/bin/env python3
"""Runs the tests of the package `cenote`, against real clusters, as cargo's test programs run.

The library is the one that scripts/run-tests.py had cargo build; without that,
`cargo build -p cenote-python` makes it. It is put together with the Python files as in a wheel.
"""

import os
import shutil
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = PACKAGE.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "ops"))

import harness  # noqa: E402
from harness import TARGET, Skipped, skip  # noqa: E402

LIBRARY = Path(os.environ.get("CENOTE_PYTHON_LIBRARY", TARGET / "debug" / "lib_cenote.so"))
METADATA = "Metadata-Version: 2.1\nName: cenote\nVersion: 0.1.0\n"
ENTRY_POINTS = "[fsspec.specs]\ncenote = cenote.fs.CenoteFileSystem\n"


def assembled():
    """A folder with what a wheel would install."""
    if not LIBRARY.exists():
        skip(f"{LIBRARY} is not built (cargo build -p cenote-python builds it)")
    place = TARGET / "python" / f"package-{os.getpid()}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(PACKAGE / "python" / "cenote", place / "cenote",
                    ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(LIBRARY, place / "cenote" / "_cenote.abi3.so")
    about = place / "cenote-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(METADATA)
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    return place


def is_long():
    return "long::" in sys.argv and "--skip" not in sys.argv


def nothing(reason=None):
    """What a program prints that runs no test."""
    if reason is not None:
        print(f"skipped: {reason}\n")
    print("test result: ok. 0 passed; 0 failed; 0 ignored")
    return 0


def main(environment_of=lambda: harness.tools("python", PACKAGE / "tests" / "requirements.txt"),
         tests=("--ignore", PACKAGE / "tests" / "test_lmcache.py", PACKAGE / "tests")):
    """Runs these tests in the environment that is made by `environment_of`."""
    words = [word for word in sys.argv[1:] if not word.startswith("--") and word != "long::"]
    try:
        python = environment_of() / "bin" / "python"
        place = assembled()
    except Skipped as reason:
        return nothing(reason)
    command = [python, "-m", "pytest", "-p", "report", "-p", "no:terminal",
               "-m", "long" if is_long() else "not long", "--rootdir", PACKAGE,
               "-c", PACKAGE / "pyproject.toml", *tests]
    if words:
        command += ["-k", " and ".join(words)]
    paths = [place, PACKAGE / "tests", ROOT / "tests" / "ops"]
    environment = dict(
        os.environ, CENOTE=str(harness.CENOTE), PYTHONPATH=os.pathsep.join(map(str, paths)),
        PYTHONPYCACHEPREFIX=str(TARGET / "python" / "pycache"),
        MYPY_CACHE_DIR=str(TARGET / "python" / "mypy"),
    )
    try:
        return os.spawnve(os.P_WAIT, python, [str(word) for word in command], environment)
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
