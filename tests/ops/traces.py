#!/usr/bin/env python3
"""Spans of our servers as OpenTelemetry's collector receives them, and collectors that are no good.

The collector is built from its modules once (tests/ops/collector); what it passes on is looked at.
"""

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import harness
from cluster import MEMINFO, Process
from harness import CENOTE, LIMIT_S, ROOT, TARGET, folder, need, run, skip, wait_for

# Sent soon, so that a test does not wait for what is to come anyway.
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
# Of the machine that runs the tests: none of it is meant.
for name in [name for name in os.environ if name.startswith("OTEL_")]:
    del os.environ[name]
os.environ["NO_PROXY"] = "127.0.0.1"


class Sink:
    """Takes requests over HTTP, and keeps them. `answer` is written in place of a proper answer."""

    def __init__(self, answer=b"", status=200, tls=None):
        self.requests = requests = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                requests.append((self.path, dict(self.headers), body))
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.at = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class Spans:
    """What a collector passes on as JSON."""

    def __init__(self, sink):
        self.sink = sink

    def all(self):
        """Each span: its resource's attributes are `resource`, its own `attributes`."""
        found = []
        for _, _, body in list(self.sink.requests):
            for group in json.loads(body)["resourceSpans"]:
                resource = plain(group["resource"]["attributes"])
                for scope in group["scopeSpans"]:
                    for span in scope["spans"]:
                        span["resource"] = resource
                        span["attributes"] = plain(span.get("attributes", []))
                        found.append(span)
        return found

    def named(self, name, **resource):
        wanted = {key.replace("_", "."): value for key, value in resource.items()}
        return [span for span in self.all() if span["name"] == name
                and wanted.items() <= span["resource"].items()]

    def wait(self, name, **resource):
        def shown():
            names = [(span["resource"]["service.name"], span["name"]) for span in self.all()]
            return f"no span {name} {resource}; there are {names}"

        return wait_for(lambda: self.named(name, **resource), shown)


def plain(attributes):
    """Attributes as OTLP's JSON has them, as a dictionary. Integers are text there."""
    def value(kind, one):
        return int(one) if kind == "intValue" else one

    return {one["key"]: value(*next(iter(one["value"].items()))) for one in attributes}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def built_collector():
    """The program of tests/ops/collector."""
    need("go")
    program = TARGET / "ops" / "collector"
    kept = TARGET / "go"
    program.parent.mkdir(parents=True, exist_ok=True)
    environment = dict(
        os.environ, GOMODCACHE=str(kept / "modules"), GOCACHE=str(kept / "build"),
        CGO_ENABLED="0", GOTOOLCHAIN="local",
    )
    source = ROOT / "tests" / "ops" / "collector"
    for words in (["mod", "download", "-modcacherw"],
                  ["build", "-mod=readonly", "-modcacherw", "-trimpath", "-o", program]):
        # Two busy cores compile it in a few minutes, once.
        ended = run("go", *words, code=None, timeout=1200, cwd=source, env=environment)
        if ended.returncode != 0:
            if words[0] == "mod" or "requires go" in ended.stderr:
                skip(f"the collector cannot be had: {ended.stderr.strip().splitlines()[-1]}")
            raise AssertionError(ended.stderr)
    return program


@contextlib.contextmanager
def collector(place):
    """A collector that runs, and what it receives: its endpoint, and spans."""
    program = built_collector()
    with Sink(answer=b"{}") as sink:
        port = free_port()
        config = place / "collector.yaml"
        config.write_text(f"""
receivers: {{ otlp: {{ protocols: {{ http: {{ endpoint: "127.0.0.1:{port}" }} }} }} }}
exporters:
  otlp_http:
    endpoint: "http://{sink.at}"
    encoding: json
    compression: none
    sending_queue: {{ enabled: false }}
service:
  telemetry: {{ metrics: {{ level: none }} }}
  pipelines: {{ traces: {{ receivers: [otlp], exporters: [otlp_http] }} }}
""")
        log = place / "collector.log"
        with open(log, "wb") as out:
            process = subprocess.Popen([str(program), f"--config=file:{config}"],
                                       stdout=out, stderr=out)
        try:
            def answers():
                assert process.poll() is None, log.read_text()
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    return True
                return False

            wait_for(answers, log.read_text)
            yield f"http://127.0.0.1:{port}", Spans(sink)
        finally:
            process.terminate()
            process.wait()


class Well:
    """Hosts, and a file that names them."""

    def __init__(self, place, **variables):
        self.place, self.variables = place, dict(SOON, **variables)
        self.key, self.file = place / "cluster.key", place / "cluster.toml"
        self.processes = {}
        run(CENOTE, "key", "new", "--out", self.key)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.ExitStack() as ends:
            for process in self.processes.values():
                ends.callback(process.end)

    def begin(self, name, *arguments, **variables):
        log = self.place / f"{name}.log"
        process = Process(log, *arguments, **{**self.variables, **variables})
        self.processes[name] = process
        return process

    def lend(self, name, *more, **variables):
        host = self.begin(
            name, "host", "--name", name, "--listen", "tcp:127.0.0.1:0", "--memory", "32M",
            "--slab", "1M", "--lock", "never", "--key", self.key, *more, **variables)
        address = host.line.split(" at ")[1]
        before = self.file.read_text() if self.file.exists() else 'key = "cluster.key"\n'
        self.file.write_text(f'{before}[[host]]\nname = "{name}"\naddress = "{address}"\n')
        return host


def ended(process):
    """Ends a process as a service manager does; its exit code."""
    process.process.send_signal(signal.SIGTERM)
    return process.process.wait(LIMIT_S)


def test_a_collector_gets_the_spans_of_hosts_and_volumes():
    need("nbdcopy")
    with folder() as place, collector(place) as (endpoint, spans):
        at = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        with Well(place, **at, OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test") as well:
            for host in ("h00", "h01", "h02", "h03", "h05"):
                well.lend(host)
            meminfo = place / "meminfo"
            meminfo.write_text(MEMINFO)
            well.lend("h04", "--headroom", "25%", "--meminfo", meminfo)
            volume = well.begin(
                "v0", "nbd", "--cluster", well.file, "--volume", "v0", "--size", "8M", "--scheme",
                "rs:2+1", "--placement", "least-loaded", "--socket", place / "socket")
            content = place / "content"
            content.write_bytes(os.urandom(4 << 20))
            run("nbdcopy", content, volume.line.split(" at ")[1])

            opened = spans.wait("open volume", service_name="cenote-nbd")[0]
            assert opened["attributes"]["cenote.volume"] == "v0", opened
            assert opened["attributes"]["cenote.hosts"] == 6, opened
            resource = opened["resource"]
            assert resource["deployment.environment.name"] == "test", resource
            assert resource["process.pid"] == volume.process.pid, resource
            version = run(CENOTE, "--version").stdout.split()[1]
            assert resource["service.version"] == version, resource
            started = [span["attributes"] for span in spans.wait("start host")]
            wait_for(lambda: len(spans.named("start host", service_name="cenote-host")) == 6,
                     lambda: started)

            # Its machine is short of memory: its slabs go elsewhere.
            meminfo.write_text(MEMINFO.replace("Available: 6291456", "Available: 1024"))
            evicted = spans.wait("evict slabs", service_name="cenote-host")[0]
            assert evicted["attributes"]["cenote.host"] == "h04", evicted
            assert evicted["attributes"]["cenote.slabs"] > 0, evicted
            meminfo.write_text(MEMINFO)

            lost, drained = "h00", "h01"
            well.processes.pop(lost).process.kill()
            whole = lambda: "degraded" not in run(  # noqa: E731
                CENOTE, "volume", "status", "v0", "--cluster", well.file, code=None).stdout
            rebuilt = spans.wait("rebuild slab", service_name="cenote-nbd")
            for span in rebuilt:
                attributes = span["attributes"]
                assert attributes["cenote.volume"] == "v0", span
                assert attributes["cenote.host"] != lost, span
                assert isinstance(attributes["cenote.extent"], int), span
                assert 0 <= attributes["cenote.split"] < 3, span
                assert int(span["startTimeUnixNano"]) < int(span["endTimeUnixNano"]), span
            wait_for(whole, "the volume is whole")

            run(CENOTE, "host", "drain", drained, "--cluster", well.file, "--timeout", "1m",
                env={**os.environ, **at})
            drain = spans.wait("drain host", service_name="cenote-host")[0]
            assert drain["attributes"]["cenote.host"] == drained, drain
            assert drain["attributes"]["cenote.slab_bytes"] == 1 << 20, drain
            assert drain["attributes"]["cenote.slabs"] > 0, drain

            def moves():
                began = int(drain["startTimeUnixNano"])
                return [span for span in spans.named("move slab", service_name="cenote-nbd")
                        if int(span["startTimeUnixNano"]) >= began]

            wait_for(lambda: len(moves()) >= drain["attributes"]["cenote.slabs"], moves)
            holders = {span["attributes"]["cenote.host"] for span in moves()}
            assert not holders & {lost, drained}, holders

            # A client that stands still gives nothing back.
            holder = min(holders)
            order = [CENOTE, "host", "drain", holder, "--cluster", well.file]
            volume.process.send_signal(signal.SIGSTOP)
            try:
                run(*order, "--timeout", "1s", code=1)
                run(*order, "--cancel")
            finally:
                volume.process.send_signal(signal.SIGCONT)
            off = wait_for(lambda: [span for span in spans.named("drain host")
                                    if span["attributes"]["cenote.host"] == holder], spans.all)
            assert off[0]["status"] == {"code": 2, "message": "called off"}, off
            assert drain.get("status", {}) == {}, drain

            # What the end of a process leaves is sent before it is gone.
            assert spans.named("close volume") == []
            assert ended(well.processes["v0"]) == 0
            closed = spans.wait("close volume", service_name="cenote-nbd")[0]
            assert closed["attributes"]["cenote.volume"] == "v0", closed
        # An order is no server: it sends nothing, whatever the environment says.
        services = {span["resource"]["service.name"] for span in spans.all()}
        assert services == {"cenote-host", "cenote-nbd"}, services


def test_a_span_within_another_has_it_as_parent():
    with folder() as place, collector(place) as (endpoint, spans):
        with Well(place, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{endpoint}/v1/traces") as well:
            store = place / "store"
            run(CENOTE, "store", "create", store, "--size", "8M", "--shards", "2")
            well.begin("s0", "store", "serve", store, "--listen", f"shm:{place}/s",
                       "--key", well.key, OTEL_SERVICE_NAME="objects")
            whole = spans.wait("recover store", service_name="objects")[0]
            assert whole.get("parentSpanId", "") == "", whole
            assert whole["attributes"]["cenote.store.shards"] == 2, whole
            pools = wait_for(lambda: len(found := spans.named("recover pool")) == 2 and found,
                             spans.all)
            for pool in pools:
                assert pool["parentSpanId"] == whole["spanId"], (pool, whole)
                assert pool["traceId"] == whole["traceId"], (pool, whole)
                assert pool["attributes"]["cenote.store.objects"] == 0, pool


def test_nodes_of_a_key_value_store_say_what_they_join_and_recover():
    need("etcd")
    with folder() as place, collector(place) as (endpoint, spans):
        environment = {**os.environ, **SOON, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        where = ["--dir", place / "kv"]
        run(CENOTE, "kv", "up", "--nodes", "4", "--groups", "2", "--code", "2+1", "--memory", "64M",
            *where, env=environment)
        try:
            wait_for(lambda: len(spans.named("join cluster", service_name="cenote-kv")) == 4,
                     spans.all)
            spans.wait("agree on view")
            dead = next((place / "kv" / "nodes").glob("*/pid")).read_text().split()[0]
            os.kill(int(dead), signal.SIGKILL)
            found = wait_for(
                lambda: spans.named("recover partition") + spans.named("join parity"), spans.all)
            for span in found:
                attributes = span["attributes"]
                assert attributes["cenote.kv.group"] in (0, 1), span
                place = "slot" if span["name"] == "join parity" else "partition"
                assert attributes[f"cenote.kv.{place}"] in (0, 1), span
        finally:
            run(CENOTE, "kv", "down", *where, code=None)
        spans.wait("drain node", service_name="cenote-kv")


@contextlib.contextmanager
def lending(place, **variables):
    with Well(place) as well:
        yield well.lend("h", **variables)


def exporters(process):
    """Threads of a process that send spans. A new one has its name once it runs."""
    tasks = Path(f"/proc/{process.process.pid}/task").glob("*/comm")
    return [task for task in tasks if task.read_text().startswith("OpenTelemetry")]


def test_a_collector_that_is_away_costs_spans_and_a_warning():
    with folder() as place:
        endpoint = f"http://127.0.0.1:{free_port()}"
        with lending(place, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint) as host:
            [exporter] = wait_for(lambda: exporters(host), "a thread that sends spans")
            status = (exporter.parent / "status").read_text()
            blocked = re.search(r"^SigBlk:\s*(\w+)$", status, re.M)
            # A thread that takes one ends the host before that has put anything in order.
            for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                assert int(blocked[1], 16) >> (one - 1) & 1, (one, blocked[1])
            warning = wait_for(lambda: host.said(r"^.*does not accept spans.*$"), host.text)
            assert "dropped=1" in warning and "refused" in warning, warning
            assert ended(host) == 0, host.text()


def test_a_collector_that_never_answers_holds_nobody_up():
    with folder() as place, socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        # Longer than this test waits for the end of the host.
        patience = {"OTEL_EXPORTER_OTLP_TIMEOUT": "3600000"}
        with lending(place, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **patience) as host:
            silent.settimeout(LIMIT_S)
            link, _ = silent.accept()
            with link:
                link.settimeout(LIMIT_S)
                assert link.recv(4) == b"POST"
                run(CENOTE, "host", "drain", "h", "--cluster", place / "cluster.toml")
                assert ended(host) == 0, host.text()
        said = host.log.read_text()
        assert "does not accept spans" in said and "at the end" in said, said


def test_what_is_no_collector_does_no_harm():
    def garbage(link):
        link.recv(1 << 16)
        link.sendall(b"\x00\xff" * 1000)

    def endless(link):
        link.recv(1 << 16)
        with contextlib.suppress(OSError):
            link.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                link.sendall(b"x" * (1 << 16))

    for answer in (garbage, endless):
        with folder() as place, socket.create_server(("127.0.0.1", 0)) as strange:
            def serve(strange=strange, answer=answer):
                with contextlib.suppress(OSError):
                    while True:
                        link, _ = strange.accept()
                        with link:
                            answer(link)

            threading.Thread(target=serve, daemon=True).start()
            endpoint = f"http://127.0.0.1:{strange.getsockname()[1]}"
            with lending(place, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint) as host:
                wait_for(lambda: host.said("does not accept spans"), host.text)
                assert ended(host) == 0, host.text()
    with folder() as place, Sink(status=500, answer=b"no") as sink:
        with lending(place, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{sink.at}") as host:
            warning = wait_for(lambda: host.said(r"^.*does not accept spans.*$"), host.text)
            assert "500" in warning, warning
            assert ended(host) == 0, host.text()


def test_nothing_is_sent_that_is_switched_off():
    for variables in (
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_TRACES_SAMPLER": "always_off"},
    ):
        with folder() as place, Sink() as sink:
            at = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{sink.at}"}
            with lending(place, **{**at, **variables}) as host:
                if "OTEL_TRACES_SAMPLER" in variables:
                    wait_for(lambda: exporters(host), "a thread that sends spans")
                else:
                    assert exporters(host) == [], variables
                assert ended(host) == 0, host.text()
            assert sink.requests == [], (variables, sink.requests)


def test_headers_are_sent_and_a_certificate_is_checked():
    need("openssl")
    with folder() as place:
        chain, key = place / "chain.pem", place / "key.pem"
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
            "/CN=collector", "-addext", "subjectAltName=IP:127.0.0.1", "-addext",
            "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", chain)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(chain, key)
        for known in (True, False):
            with Sink(tls=tls) as sink:
                variables = {
                    "OTEL_EXPORTER_OTLP_ENDPOINT": f"https://{sink.at}/in/",
                    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abc,x-tenant=well",
                }
                if known:
                    variables["OTEL_EXPORTER_OTLP_CERTIFICATE"] = str(chain)
                (place / str(known)).mkdir()
                with lending(place / str(known), **SOON, **variables) as host:
                    if known:
                        path, headers, _ = wait_for(lambda: sink.requests, host.text)[0]
                        assert path == "/in/v1/traces", path
                        assert headers["authorization"] == "Bearer abc", headers
                        assert headers["x-tenant"] == "well", headers
                        assert headers["content-type"] == "application/x-protobuf", headers
                    else:
                        wait_for(lambda: host.said("does not accept spans"), host.text)
                        assert sink.requests == []
                    assert ended(host) == 0, host.text()


def test_an_endpoint_that_is_none_is_said_at_the_start():
    with folder() as place:
        run(CENOTE, "key", "new", "--out", place / "key")
        host = [CENOTE, "host", "--name", "h", "--listen", f"shm:{place}/s", "--memory", "4M",
                "--slab", "1M", "--lock", "never", "--key", place / "key"]
        wrong = {"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318"}
        refused = run(*host, code=1, env={**os.environ, **wrong})
        assert re.search(r"^error: OTEL_EXPORTER_OTLP_ENDPOINT is `localhost:4318`",
                         refused.stderr, re.M), refused.stderr
        assert "try: set OTEL_EXPORTER_OTLP_ENDPOINT=http://" in refused.stderr, refused.stderr
        # What sends no spans does not mind.
        run(CENOTE, "plan", "--help", env={**os.environ, **wrong})
        grpc = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
        refused = run(*host, code=1, env={**os.environ, **grpc})
        assert "http/protobuf" in refused.stderr, refused.stderr


if __name__ == "__main__":
    harness.main(globals())
