#!/usr/bin/env python3
"""Looks for code that rustc 1.95 to 1.97 leaves out of optimized builds (rust-lang/rust#158206).

    scripts/check-codegen.py

The compiler's pass SimplifyComparisonIntegral may take away `b = x == CONSTANT` although `b` is still
used beside the branch on it. This builds the whole workspace and all it depends on as `cargo build
--release` does, in a folder of its own, compares each function before and after that pass, and ends
with 1 and the functions' names if one has lost a value. `target/release` is not touched.

Cargo runs it as the compiler's wrapper, with the compiler and its arguments.
"""

import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PASS = "SimplifyComparisonIntegral"
REPORT = "CENOTE_CODEGEN_REPORT"
COMPARISON = re.compile(r"^\s+(_\d+) = (?:Eq|Ne|Lt|Le|Gt|Ge)\(.*\);", re.M)


def lost(before, after):
    """Locals whose definition the pass took away and that are used all the same."""
    gone = collections.Counter(COMPARISON.findall(before)) - collections.Counter(COMPARISON.findall(after))
    return [local for local in gone if re.search(rf"(?:copy|move) \(?{local}\b", after)]


def wrap(command):
    """Compiles, and reports what it finds. The exit code of the compiler."""
    # Not what cargo and build scripts ask of the compiler: those are to see a stable one.
    is_crate = any(argument.startswith("metadata=") for argument in command)
    if not is_crate or "build_script_build" in command or "proc-macro" in command:
        return subprocess.call(command)
    with tempfile.TemporaryDirectory() as folder:
        flags = ["-Z", f"dump-mir={PASS}", "-Z", f"dump-mir-dir={folder}"]
        code = subprocess.call(command + flags, env={**os.environ, "RUSTC_BOOTSTRAP": "1"})
        report(pathlib.Path(folder))
    return code


def report(folder):
    functions, found = 0, []
    for path in folder.glob(f"*.{PASS}.before.mir"):
        functions += 1
        after = path.with_name(path.name.replace(".before.", ".after."))
        if lost(path.read_text(), after.read_text()):
            found.append(f"{path.name.split('.' + PASS)[0]}\n")
    with open(os.environ[REPORT], "a") as out:
        out.writelines(found)
        out.write(f"functions {functions}\n")


def main():
    if len(sys.argv) > 1:
        return wrap(sys.argv[1:])
    workspace = pathlib.Path(__file__).resolve().parent.parent
    target = workspace / "target" / "codegen"
    path = target / "report"
    target.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    environment = {
        **os.environ,
        "RUSTC_WRAPPER": str(pathlib.Path(__file__).resolve()),
        # One that is compiled already says nothing.
        "CARGO_TARGET_DIR": tempfile.mkdtemp(dir=target),
        "CARGO_PROFILE_RELEASE_DEBUG": "0",
        REPORT: str(path),
    }
    build = ["cargo", "build", "--release", "--workspace", "--locked"]
    try:
        code = subprocess.call(build, cwd=workspace, env=environment)
    finally:
        subprocess.call(["rm", "-rf", environment["CARGO_TARGET_DIR"]])
    lines = path.read_text().splitlines()
    counts = [int(line.split()[1]) for line in lines if line.startswith("functions ")]
    found = sorted({line for line in lines if not line.startswith("functions ")})
    for name in found:
        print(f"miscompiled: {name}")
    print(f"{sum(counts)} functions of {len(counts)} crates, {len(found)} miscompiled")
    return 1 if code or found or not sum(counts) else 0


sys.exit(main())
