"""A plugin of pytest that prints what cargo's test programs print, for scripts/run-tests.py."""

import os

# pytest takes what goes to standard output from when it has read its arguments on.
_out = os.fdopen(os.dup(1), "w")
_failures = []
_counts = {"passed": 0, "failed": 0}


def _name(report):
    return report.nodeid.rpartition("/")[2].replace(" ", "_")


def _told(name, report):
    said = [report.longreprtext, *(text for _, text in report.sections)]
    _failures.append((name, "\n".join(said)))


def pytest_runtest_logreport(report):
    name = _name(report)
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        print(f"skipped: {reason.removeprefix('Skipped: ')}\ntest {name} ... ok", file=_out, flush=True)
        _counts["passed"] += 1
    elif report.failed:
        _told(name, report)
        _counts["failed"] += 1
        print(f"test {name} ... FAILED", file=_out, flush=True)
    elif report.when == "call":
        _counts["passed"] += 1
        print(f"test {name} ... ok", file=_out, flush=True)


def pytest_collectreport(report):
    if report.failed:
        _told(report.nodeid, report)
        _counts["failed"] += 1
        print(f"test {report.nodeid} ... FAILED", file=_out, flush=True)


def pytest_sessionfinish():
    if _failures:
        print("\nfailures:\n", file=_out)
        for name, said in _failures:
            print(f"---- {name} stdout ----\n{said}", file=_out)
        print("\nfailures:\n" + "\n".join(f"    {name}" for name, _ in _failures), file=_out)
    word = "FAILED" if _failures else "ok"
    passed, failed = _counts["passed"], _counts["failed"]
    said = f"{passed} passed; {failed} failed; 0 ignored"
    print(f"\ntest result: {word}. {said}", file=_out, flush=True)
