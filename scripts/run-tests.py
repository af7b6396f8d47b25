#!/usr/bin/env python3
"""Runs the test programs of the workspace side by side, and ends with what failed.

    scripts/run-tests.py short|long [--until TIME] [NAME...]

`short` leaves out tests in modules called `long`, `long` runs these alone. NAME is a part of a
program's name ("volume", "cenote kv"). Programs that use the same thing of the machine, such as
its swap, do not run at the same time: tests/schedule.toml says which, and which take longest.
With --until, a program that would hardly be through by TIME (seconds since 1970) is left out, and
said to be. What each printed is in target/test/NAME.log. A test that cannot run here prints
"skipped: REASON" and passes; the reasons are told at the end.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "target" / "test"
# How long a program may run before it counts as hung: this, and so many times what it usually takes.
# The longest take a third of what is the most.
LIMIT_S, LIMIT_TIMES, LIMIT_MAX_S = 600, 5, 1500
RESULT = re.compile(r"^test result: .*? (\d+) passed; (\d+) failed; (\d+) ignored", re.M)
FAILED = re.compile(r"^test (\S+) (?:- .* )?\.\.\. FAILED$", re.M)


class Program:
    """A test program, what it needs for itself, and how it ended."""

    def __init__(self, name, command, cwd=ROOT, seconds=5, needs=()):
        self.name, self.command, self.cwd = name, command, cwd
        self.seconds, self.needs = seconds, set(needs)
        self.log = LOGS / (name.replace(" ", "-") + ".log")
        self.passed = self.failed = 0
        self.complaint = None
        # Left out, or ended early, for want of time.
        self.is_late = False

    def run(self, arguments=(), until=None):
        began = time.monotonic()
        hung_after = min(LIMIT_S + LIMIT_TIMES * self.seconds, LIMIT_MAX_S)
        limit = hung_after if until is None else min(hung_after, until - time.time())
        environment = dict(os.environ, CARGO_MANIFEST_DIR=str(self.cwd))
        with open(self.log, "wb") as log:
            process = subprocess.Popen(
                [*self.command, *arguments], cwd=self.cwd, env=environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
                self.is_late = limit < hung_after
                self.complaint = f"still running after {limit:.0f} s, and killed"
        if self.is_late:
            print(f"late   {self.name}", flush=True)
            return
        text = self.text()
        for passed, failed, _ in RESULT.findall(text):
            self.passed += int(passed)
            self.failed += int(failed)
        if code != 0 and not self.failed:
            self.complaint = self.complaint or f"ended with {code} before it was through"
            self.failed = 1
        word = "FAILED" if self.failed else "ok"
        took = time.monotonic() - began
        print(f"{word:<7}{self.name:<28}{self.passed:>5} passed{took:>7.0f} s", flush=True)

    def text(self):
        return "" if self.is_late else self.log.read_text(errors="replace")

    def fits(self, until):
        """Whether it would be through by then, on a machine that is half as fast as ours."""
        return until is None or time.time() + 2 * self.seconds < until

    def left_out(self):
        if self.is_late:
            return [f"{self.name}: no time was left for it"]
        return re.findall(r"^skipped: (.*)$", self.text(), re.M)

    def say_why(self):
        """Prints what the failed tests printed."""
        text = self.text()
        # The second list of failures: the first has their output.
        parts = re.split(r"^---- (\S+) stdout ----$", text.split("\nfailures:\n")[1], flags=re.M) \
            if "\nfailures:\n" in text else []
        for name, said in zip(parts[1::2], parts[2::2]):
            lines = said.strip().splitlines()
            print(f"\n---- {self.name}: {name}")
            print("\n".join(lines[-80:]))
        if not parts:
            print(f"\n---- {self.name}")
            print("\n".join(text.splitlines()[-80:]))

    def lines_of_failures(self):
        """Each failed test on a line, with its seed, and where all of its output is."""
        text = self.text()
        for name in FAILED.findall(text):
            said = re.search(rf"^---- {re.escape(name)} stdout ----$(.*?)^(?:----|failures:)",
                             text, re.M | re.S)
            seeds = re.findall(r"(?:\b|_)seed:?[ =]*(0x[0-9a-f]+|\d+)", said[1], re.I) if said else []
            seed = f" (seed {seeds[-1]})" if seeds else ""
            yield f"  {self.name}: {name}{seed}"
        if self.complaint:
            yield f"  {self.name}: {self.complaint}"
        yield f"    all that it printed: {self.log.relative_to(ROOT)}"


class Lanes:
    """Programs on their way, at most `count` at a time, the longest first."""

    def __init__(self, programs, arguments, count, until):
        self.until = until
        self.waiting = sorted(programs, key=lambda program: -program.seconds)
        self.arguments, self.count = arguments, count
        self.busy = set()
        self.change = threading.Condition()

    def run(self):
        threads = [threading.Thread(target=self.lane) for _ in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def lane(self):
        while program := self.take():
            if program.fits(self.until):
                program.run(self.arguments, self.until)
            else:
                program.is_late = True
            with self.change:
                self.busy -= program.needs
                self.change.notify_all()

    def take(self):
        """The longest whose things are free; None when all have been taken."""
        with self.change:
            while self.waiting:
                for program in self.waiting:
                    if not program.needs & self.busy:
                        self.waiting.remove(program)
                        self.busy |= program.needs
                        return program
                self.change.wait()
        return None


def build(schedule, which):
    """Builds all test programs, and yields them."""
    command = ["cargo", "test", "--workspace", "--locked", "--no-run",
               "--message-format=json-render-diagnostics"]
    building = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    for line in building.stdout:
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message.get("executable"):
            continue
        if not message["profile"]["test"]:
            if message["target"]["name"] == "cenote":
                # What the programs in Python drive.
                os.environ["CENOTE"] = message["executable"]
            continue
        folder = Path(message["manifest_path"]).parent
        target = message["target"]
        kind = target["kind"][0]
        name = {"lib": "lib", "bin": f"bin {target['name']}"}.get(kind, target["name"])
        name = f"{folder.name} {name}"
        yield Program(
            name, [message["executable"], "--show-output"], folder,
            schedule[which].get(name, 5),
            (thing for thing, names in schedule["alone"].items() if name in names),
        )
    if building.wait() != 0:
        sys.exit("the tests do not build")
    build_libraries()


# What programs in other languages load, and how their tests are told where it is.
LIBRARIES = {"_cenote": "CENOTE_PYTHON_LIBRARY", "cenote_c": "CENOTE_C_LIBRARY"}


def build_libraries():
    """Builds what programs in other languages load, which cargo does not count among the tests.

    With the tests beside it all crates have the features that they have there: none is built again.
    """
    command = ["cargo", "build", "--workspace", "--locked", "--tests", "--lib",
               "--message-format=json-render-diagnostics"]
    building = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    for line in building.stdout:
        message = json.loads(line)
        variable = LIBRARIES.get(message.get("target", {}).get("name"))
        if variable and message.get("filenames"):
            files = message["filenames"]
            os.environ[variable] = next(name for name in files if name.endswith(".so"))
    if building.wait() != 0:
        sys.exit("the libraries for Python and C do not build")


def in_python(schedule, which):
    """The programs of tests/ops, which drive ours and the tools of those who operate it; and the
    tests of the packages for other languages."""
    files = [(f"ops {file.stem}", file) for file in sorted((ROOT / "tests" / "ops").glob("*.py"))]
    files += [(f"{language} bindings", ROOT / "bindings" / language / "tests" / "run.py")
              for language in ("c", "python")]
    files += [("python lmcache", ROOT / "bindings" / "python" / "tests" / "run_lmcache.py")]
    for name, file in files:
        if "\nif __name__" in file.read_text():
            seconds = schedule[which].get(name, 5)
            yield Program(name, [sys.executable, "-B", str(file)], seconds=seconds)


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in ("short", "long"):
        sys.exit(__doc__.strip())
    which, wanted, until = sys.argv[1], sys.argv[2:], None
    if wanted[:1] == ["--until"]:
        until, wanted = float(wanted[1]), wanted[2:]
    is_short = which == "short"
    LOGS.mkdir(parents=True, exist_ok=True)
    schedule = tomllib.loads((ROOT / "tests" / "schedule.toml").read_text())
    programs = list(build(schedule, which)) + list(in_python(schedule, which))
    programs += CHECKS if is_short else []
    unknown = {name for names in schedule["alone"].values() for name in names}
    unknown |= set(schedule["short"]) | set(schedule["long"])
    unknown -= {program.name for program in programs}
    if unknown:
        sys.exit(f"tests/schedule.toml names what there is not: {', '.join(sorted(unknown))}")
    if wanted:
        programs = [program for program in programs if any(w in program.name for w in wanted)]
    began = time.monotonic()
    # Most tests wait for something most of the time.
    lanes = (os.cpu_count() or 1) + 1
    print(f"running {len(programs)} test programs, {lanes} at a time", flush=True)
    Lanes(programs, ["--skip", "long::"] if is_short else ["long::"], lanes, until).run()
    # They build: no test may run meanwhile.
    builders = [DOCUMENTATION] if is_short else [SHIPPED, RDMA, MIRI, FUZZ]
    for other in [] if wanted else builders:
        programs.append(other)
        if other.fits(until):
            other.run(until=until)
        else:
            other.is_late = True

    failed = [program for program in programs if program.failed]
    left_out = sorted({reason for program in programs for reason in program.left_out()})
    if left_out:
        print("\nLeft out here, and why:")
        for reason in left_out:
            print(f"  {reason}")
    for program in failed:
        program.say_why()
    lines = [line for program in failed for line in program.lines_of_failures()]
    # For who runs both parts, and would not see what failed in the first.
    (LOGS / f"failed-{which}").write_text("".join(f"{line}\n" for line in lines))
    if failed:
        print("\nWhat failed:", *lines, sep="\n")
    print(f"\n{time.monotonic() - began:.0f} s without the build")
    passed, wrong = (sum(p.passed for p in programs), sum(p.failed for p in programs))
    print(f"{passed} passed, {wrong} failed, {len(left_out)} skipped")
    sys.exit(1 if failed else 0)


# What is asked of the sources alone.
CHECKS = [
    Program("unsafe", [sys.executable, "-B", "scripts/check-unsafe.py"]),
    Program("features", [sys.executable, "-B", "scripts/test-shipped.py", "features"]),
]
# The programs without what is for tests. It replaces the program that tests run.
SHIPPED = Program("shipped", [sys.executable, "-B", "scripts/test-shipped.py"], seconds=200)
# Examples in the documentation, by cargo itself.
DOCUMENTATION = Program("documentation", [
    "cargo", "test", "--workspace", "--locked", "--doc", "--no-fail-fast"], seconds=30)
# The rdma backend in a guest that has soft-RoCE. It replaces the program that tests run.
RDMA = Program("rdma in a guest", ["sh", "scripts/test-rdma.sh", "test"], seconds=400)
# Unsafe code in an interpreter. Builds with a toolchain of its own, in a folder of its own.
MIRI = Program("miri", ["sh", "scripts/miri.sh"], seconds=300)
# Parsers under made-up bytes. Builds with flags of its own, in a folder of its own.
FUZZ = Program("fuzz", ["sh", "scripts/fuzz.sh", os.environ.get("FUZZ_SECONDS", "5")], seconds=900)

main()
