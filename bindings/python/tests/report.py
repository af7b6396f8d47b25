"""A plugin of pytest that prints what cargo's test programs print: scripts/run-tests.py reads it."""

_failures = []
_counts = {"passed": 0, "failed": 0}


def _name(report):
    return report.nodeid.rpartition("/")[2].replace(" ", "_")


def _told(name, report):
    _failures.append((name, "\n".join([report.longreprtext, *(text for _, text in report.sections)])))


def pytest_runtest_logreport(report):
    name = _name(report)
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        print(f"skipped: {reason.removeprefix('Skipped: ')}\ntest {name} ... ok", flush=True)
        _counts["passed"] += 1
    elif report.failed:
        _told(name, report)
        _counts["failed"] += 1
        print(f"test {name} ... FAILED", flush=True)
    elif report.when == "call":
        _counts["passed"] += 1
        print(f"test {name} ... ok", flush=True)


def pytest_collectreport(report):
    if report.failed:
        _told(report.nodeid, report)
        _counts["failed"] += 1
        print(f"test {report.nodeid} ... FAILED", flush=True)


def pytest_sessionfinish():
    if _failures:
        print("\nfailures:\n")
        for name, said in _failures:
            print(f"---- {name} stdout ----\n{said}")
        print("\nfailures:\n" + "\n".join(f"    {name}" for name, _ in _failures))
    word = "FAILED" if _failures else "ok"
    print(f"\ntest result: {word}. {_counts['passed']} passed; {_counts['failed']} failed; 0 ignored")
