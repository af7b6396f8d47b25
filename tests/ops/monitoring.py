#!/usr/bin/env python3
"""What operators see: metrics, probes, alert rules, dashboards, structured logs.

Real processes are started, and a real Prometheus scrapes them.
"""

import json
import re
import socket
import subprocess
import tempfile
import urllib.parse
from pathlib import Path

import harness
from cluster import Cluster, Process, get
from harness import CENOTE, ROOT, folder, need, run, wait_for

DIST = ROOT / "dist"
DASHBOARDS = sorted((DIST / "grafana").glob("*.json"))
RULES = DIST / "prometheus" / "alerts.yml"
# Of ours, and of memcached's exporter, whose names a node of the key-value store uses.
METRIC = r"\b(?:cenote|memcached)_[a-z0-9_]+\b"
# What Grafana puts into queries. The window holds several scrapes of a second.
VARIABLES = {"$__rate_interval": "10s", "$cluster": ".*", "$instance": ".*"}


class Shared:
    """One cluster for all tests here, started when the first needs it."""

    cluster = None
    place = None

    @classmethod
    def get(cls):
        if cls.cluster is None:
            cls.place = tempfile.TemporaryDirectory(prefix="cenote-ops-")
            cls.cluster = Cluster(Path(cls.place.name)).__enter__()
        return cls.cluster

    @classmethod
    def end(cls):
        if cls.cluster is not None:
            cls.cluster.__exit__()
            cls.place.cleanup()


def complaints(page):
    """What promtool says of a page; nothing of a good one."""
    need("promtool")
    ended = run("promtool", "check", "metrics", code=None, input=page)
    return (ended.stdout + ended.stderr).strip() or ("failed" if ended.returncode else "")


def test_promtool_finds_fault_with_a_page_that_breaks_the_conventions():
    bad = "# HELP cenote_reads Reads.\n# TYPE cenote_reads counter\ncenote_reads 1\n"
    assert "_total" in complaints(bad), complaints(bad)
    assert complaints(bad.replace("cenote_reads", "cenote_reads_total")) == ""


def test_promtool_takes_the_metrics_of_every_process():
    kinds = set()
    for kind, address, page in Shared.get().pages():
        assert complaints(page) == "", (kind, address, complaints(page))
        assert "\ncenote_build_info{" in page, (kind, page)
        kinds.add(kind)
    assert kinds == {"host", "volume", "cache", "store", "kv"}, kinds


def test_latencies_are_histograms_by_operation():
    pages = "".join(page for kind, _, page in Shared.get().pages() if kind == "volume")
    for operation in ("read", "write"):
        name = f"cenote_volume_{operation}_latency_seconds"
        assert f"# TYPE {name} histogram\n" in pages, pages
        counts = re.findall(rf"^{name}_count (\d+)$", pages, re.M)
        assert sum(map(int, counts)) > 0, f"{operation}: nothing was timed: {counts}"


def timed(page, name, operation):
    """How many of an operation a histogram has."""
    found = re.search(rf'^{name}_count{{operation="{operation}"}} (\d+)$', page, re.M)
    assert found, f"{name} {operation}: {page}"
    return int(found[1])


def test_nodes_and_stores_time_each_operation_as_often_as_it_was_asked_for():
    cluster = Shared.get()
    name = "cenote_kv_request_latency_seconds"

    def sums():
        pages = [page for kind, _, page in cluster.pages() if kind == "kv"]
        kinds = ("get", "set", "delete", "arithmetic", "touch")
        return {kind: sum(timed(page, name, kind) for page in pages) for kind in kinds}

    before = sums()
    # Three keys of one request, in several groups, and what is answered at once or later.
    cluster.converse(
        b"set a 0 0 1\r\n1\r\nset b 0 0 1\r\n2\r\nms c 1\r\n3\r\nget a b c\r\nmg a v\r\n"
        b"incr a 1\r\ntouch a 100\r\ndelete b\r\nmd c\r\nget none\r\nversion\r\n", b"VERSION")
    expected = {"get": 5, "set": 3, "delete": 2, "arithmetic": 1, "touch": 1}
    after = sums()
    assert {kind: after[kind] - before[kind] for kind in before} == expected, (before, after)
    name = "cenote_store_call_latency_seconds"
    page = next(page for kind, _, page in cluster.pages() if kind == "store")
    puts = sum(timed(page, name, kind) for kind in ("space", "put", "put_durable"))
    assert puts >= 1, page
    assert timed(page, name, "delete") == 0, page


def test_probes_tell_what_answers_and_what_does_its_work():
    cluster = Shared.get()
    for kind, addresses in cluster.targets.items():
        for address in addresses:
            assert get(f"http://{address}/healthz") == (200, "ok\n"), (kind, address)
            ready = f"http://{address}/readyz"
            wait_for(lambda: get(ready)[0] == 200, lambda: (kind, get(ready)))
    address = cluster.targets["host"][3]
    drain = [CENOTE, "host", "drain", "h03", "--cluster", cluster.file]
    run(*drain, "--timeout", "1m")
    status, why = get(f"http://{address}/readyz")
    assert (status, why) == (503, "it is being drained\n"), (status, why)
    assert get(f"http://{address}/healthz")[0] == 200
    run(*drain, "--cancel")
    ready = lambda: get(f"http://{address}/readyz")[0] == 200  # noqa: E731
    wait_for(ready, "h03 lends again")


def test_logs_are_an_object_a_line_where_that_is_asked_for():
    with folder() as place:
        key = place / "key"
        run(CENOTE, "key", "new", "--out", key)
        host = ["host", "--name", "h", "--listen", f"shm:{place}/socket", "--memory", "4M",
                "--slab", "1M", "--lock", "never", "--key", key, "--metrics", "127.0.0.1:0"]
        flag = (["--log-format", "json"], {})
        variable = ([], {"CENOTE_LOG_FORMAT": "json"})
        for arguments, variables in (flag, variable):
            log = place / f"{len(arguments)}.log"
            process = Process(log, *host, *arguments, CENOTE_LOG="debug", **variables)
            try:
                one, port = process.metrics().split(":")
                with socket.create_connection((one, int(port)), harness.LIMIT_S) as link:
                    link.sendall(b"no HTTP\r\n\r\n")
                    link.makefile("rb").read()
                text = wait_for(lambda: process.said(r'^\{.*"metrics request dropped".*$'),
                                process.text)
                line = json.loads(text)
                assert line["level"] == "DEBUG", line
                assert line["fields"]["message"] == "metrics request dropped", line
                assert line["target"].startswith("cenote"), line
                assert re.match(r"\d{4}-\d\d-\d\dT.*Z$", line["timestamp"]), line
            finally:
                process.end()


def test_a_process_that_does_not_become_ready_is_ended():
    with folder() as place:
        unready = {"program": "sleep", "limit_s": 0.2}
        mark = "3600.0625"
        try:
            Process(place / "log", mark, **unready)
        except AssertionError:
            pass
        else:
            raise AssertionError("it said that it was ready")
        commands = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline")
                    if file.exists()]
        assert f"sleep\0{mark}\0".encode() not in commands


def test_every_alert_fires_when_it_should_and_not_before():
    need("promtool")
    run("promtool", "check", "rules", RULES)
    run("promtool", "check", "config", DIST / "prometheus" / "scrape.yml")
    tests = ROOT / "tests" / "ops" / "alerts-test.yml"
    run("promtool", "test", "rules", tests)
    alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    fired = set(re.findall(r'alertname="(\w+)"}', tests.read_text()))
    fired |= set(re.findall(r'alertname="(\w+)", \w+="[^"]*"}\'', tests.read_text()))
    assert alerts - fired == set(), f"no test has these fire: {alerts - fired}"


def test_rules_and_documents_name_metrics_that_there_are():
    there = set()
    for _, _, page in Shared.get().pages():
        # A histogram's own name is in its type alone.
        there |= set(re.findall(r"^(?:# TYPE )?([a-z0-9_]+)", page, re.M))
    guides = sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "docs" / "guides").glob("*.md"))
    named = 0
    for file in [RULES, *DASHBOARDS, *guides]:
        for name in re.findall(METRIC, file.read_text()):
            # A crate, or the start of several names.
            if file.suffix == ".md" and not re.search(r"_(total|bytes|seconds|bucket)$", name):
                continue
            named += 1
            assert name in there, f"{file.name}: {name}"
    assert named > 100, named


def queries(board):
    """Title, query and whether it is of one moment, of each panel."""
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"], target.get("instant", False)


def test_prometheus_answers_the_query_of_every_panel():
    need("prometheus")
    cluster = Shared.get()
    cluster.wait_whole()
    with folder() as place:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            at = f"127.0.0.1:{found.getsockname()[1]}"
        jobs = "".join(
            f"  - job_name: cenote-{kind}\n    static_configs:\n"
            f"      - {{ targets: {json.dumps(addresses)}, labels: {{ cluster: a }} }}\n"
            for kind, addresses in cluster.targets.items()
        )
        (place / "prometheus.yml").write_text(
            "global: { scrape_interval: 1s, evaluation_interval: 1s }\n"
            f"rule_files: [{RULES}]\nscrape_configs:\n{jobs}"
        )
        with open(place / "log", "wb") as log:
            prometheus = subprocess.Popen(
                ["prometheus", f"--config.file={place}/prometheus.yml",
                 f"--storage.tsdb.path={place}/data", f"--web.listen-address={at}"],
                stdout=log, stderr=log, cwd=place,
            )
        try:
            ask_every_panel(f"http://{at}/api/v1", sum(map(len, cluster.targets.values())))
        except Exception:
            print((place / "log").read_text()[-3000:])
            raise
        finally:
            prometheus.terminate()
            prometheus.wait()


def ask_every_panel(api, targets):
    """Has Prometheus answer, and looks at what it answers."""

    def ask(page, **parameters):
        try:
            status, text = get(f"{api}/{page}?{urllib.parse.urlencode(parameters)}")
        except OSError:
            return None
        assert status in (200, 503), (page, parameters, text)
        return json.loads(text)["data"] if status == 200 else None

    def is_scraped():
        found = ask("query", query="count(count_over_time(up[1m]) >= 4 and up == 1)")
        return found and found["result"] and float(found["result"][0]["value"][1]) == targets

    wait_for(is_scraped, lambda: f"{targets} targets scraped four times: {ask('targets')}")
    now = float(ask("query", query="time()")["result"][1])
    count = 0
    for file in DASHBOARDS:
        board = json.loads(file.read_text())
        assert board["uid"] == f"cenote-{file.stem}", file.name
        for title, query, is_instant in queries(board):
            for variable, value in VARIABLES.items():
                query = query.replace(variable, value)
            assert "$" not in query, (file.name, title, query)
            span = {} if is_instant else {"start": now - 1, "end": now, "step": 1}
            data = ask("query" if is_instant else "query_range", query=query, **span)
            assert data and data["result"], f"{file.name}: {title}: no series: {query}"
            count += 1
        for variable in board["templating"]["list"]:
            if found := re.match(r"label_values\((.*), (\w+)\)$", variable.get("definition", "")):
                values = ask(f"label/{found[2]}/values", **{"match[]": found[1]})
                assert values, (file.name, variable["name"])
    assert count > 100, count
    print(f"{count} queries")
    # Nothing is wrong with this cluster, and the rules are of this opinion.
    groups = wait_for(lambda: ask("rules"), "rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(re.findall(r"- alert:", RULES.read_text()))
    for rule in rules:
        assert rule["health"] in ("ok", "unknown"), rule
        assert rule["state"] == "inactive", rule


if __name__ == "__main__":
    try:
        harness.main(globals())
    finally:
        Shared.end()
