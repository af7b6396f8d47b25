"""One process of each kind that has metrics, with work done at each, to test monitoring on."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request

from harness import CENOTE, LIMIT_S, need, run, wait_for

# What stands for /proc/meminfo of a machine with room, whatever this one has.
MEMINFO = "MemTotal: 8388608 kB\nMemFree: 6291456 kB\nMemAvailable: 6291456 kB\n"


def get(url):
    """Status and text of a page."""
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Process:
    """A process of ours in the foreground, whose metrics are somewhere on loopback."""

    def __init__(self, log, *arguments, program=CENOTE, limit_s=LIMIT_S, **variables):
        self.log = log
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                [str(word) for word in (program, *arguments)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                env=dict(os.environ, **variables),
            )
        try:
            self.line = wait_for(lambda: self.said(r"^ready .*$"), self.text, limit_s)
        except BaseException:
            # Nobody has it yet who could end it.
            self.end()
            raise

    def said(self, pattern):
        if self.process.poll() is not None:
            raise AssertionError(f"ended with {self.process.returncode}: {self.text()}")
        found = re.search(pattern, self.text(), re.M)
        return found and found[0]

    def text(self):
        return self.log.read_text(errors="replace")

    def metrics(self):
        """HOST:PORT of its pages."""
        return at(self.text())

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def at(log):
    """HOST:PORT where the process that wrote this log serves its metrics."""
    return re.search(r"^metrics at http://(\S+)/metrics$", log, re.M)[1]


class Cluster:
    """Four hosts, one of which yields; two volumes, one with a disk; a cache, a store, nodes."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = []
        # Job, as dist/prometheus/scrape.yml names it, and addresses.
        self.targets = {}
        self.is_kv_up = False

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # The last first, each whatever becomes of those before it.
        with contextlib.ExitStack() as ends:
            if self.is_kv_up:
                ends.callback(run, CENOTE, "kv", "down", "--dir", self.folder / "kv", code=None)
            for process in self.processes:
                ends.callback(process.end)

    def begin(self, name, *arguments):
        process = Process(self.folder / f"{name}.log", *arguments)
        self.processes.append(process)
        return process

    def start(self):
        need("etcd", "nbdcopy")
        self.key = self.folder / "cluster.key"
        run(CENOTE, "key", "new", "--out", self.key)
        self.file = self.folder / "cluster.toml"
        self.start_hosts()
        self.start_volumes()
        self.start_cache()
        self.start_store()
        self.start_kv()

    def start_hosts(self):
        meminfo = self.folder / "meminfo"
        meminfo.write_text(MEMINFO)
        lines = ['key = "cluster.key"']
        for name in ("h00", "h01", "h02", "h03"):
            more = ["--headroom", "25%", "--meminfo", meminfo] if name == "h00" else []
            host = self.begin(
                name, "host", "--name", name, "--listen", "tcp:127.0.0.1:0", "--memory", "64M",
                "--slab", "1M", "--lock", "never", "--key", self.key,
                "--metrics", "127.0.0.1:0", *more,
            )
            address = host.line.split(" at ")[1]
            lines += ["[[host]]", f'name = "{name}"', f'address = "{address}"']
            self.note("host", host)
        self.file.write_text("\n".join(lines) + "\n")

    def start_volumes(self):
        content = self.folder / "content"
        content.write_bytes(os.urandom(4 << 20))
        backed = ["--backing", self.folder / "disk", "--hot-slab", "0"]
        named = ["--volume", "v0", "--scheme", "rs:2+1"]
        for name, more in (("v0", named), ("v1", backed)):
            volume = self.begin(
                name, "nbd", "--cluster", self.file, "--size", "8M",
                "--socket", self.folder / f"{name}.socket", "--metrics", "127.0.0.1:0", *more,
            )
            uri = volume.line.split(" at ")[1]
            # A page each: longer requests are not timed.
            run("nbdcopy", "--request-size=4096", content, uri)
            run("nbdcopy", "--request-size=4096", uri, self.folder / "read")
            self.note("volume", volume)

    def start_cache(self):
        where = ["--cluster", self.file]
        run(CENOTE, "cache", "create", "c0", "--size", "4M", "--region", "1M", "--copies", "2", *where)
        run(CENOTE, "cache", "stop", "c0", *where)
        manager = self.begin(
            "cache", "cache", "manage", "c0", "--metrics", "127.0.0.1:0", *where)
        self.note("cache", manager)

    def wait_whole(self):
        """Until nothing is rebuilt or on the move."""
        where = ["--cluster", self.file]
        run(CENOTE, "cache", "status", "c0", "--timeout", f"{LIMIT_S}s", *where)
        said = lambda: run(CENOTE, "status", *where, code=None)  # noqa: E731
        wait_for(lambda: said().returncode == 0, lambda: said().stdout)

    def start_store(self):
        objects = self.folder / "objects"
        run(CENOTE, "store", "create", objects, "--size", "16M")
        store = self.begin(
            "store", "store", "serve", objects, "--listen", "tcp:127.0.0.1:0",
            "--key", self.key, "--metrics", "127.0.0.1:0",
        )
        address = re.search(r" at (tcp:[0-9.:]+)", store.line)[1].rstrip(":")
        value = self.folder / "value"
        value.write_bytes(os.urandom(1000))
        run(CENOTE, "store", "put", address, "one", value, "--key", self.key)
        self.note("store", store)

    def start_kv(self):
        folder = self.folder / "kv"
        # What it started is there even if it ends with an error.
        self.is_kv_up = True
        run(CENOTE, "kv", "up", "--nodes", "3", "--groups", "3", "--code", "2+1",
            "--memory", "64M", "--metrics", "127.0.0.1:0", "--dir", folder)
        logs = sorted(folder.glob("nodes/*/log"))
        assert len(logs) == 3, logs
        for log in logs:
            self.targets.setdefault("kv", []).append(at(log.read_text()))
        status = run(CENOTE, "kv", "status", "--dir", folder, "--json").stdout
        self.clients = re.findall(r'"(127\.0\.0\.1:\d+)"', status)
        self.converse(b"set key 0 0 5\r\nvalue\r\nget key\r\nget none\r\nversion\r\n", b"VERSION")

    def converse(self, requests, last):
        """Sends requests at the first port for clients, and reads until a line begins with `last`."""
        for address in self.clients:
            host, port = address.split(":")
            with socket.create_connection((host, int(port)), LIMIT_S) as link:
                link.sendall(requests)
                answers = link.makefile("rb")
                line = first = answers.readline()
                # The ports for nodes are among the addresses, and close.
                if first.startswith(b"STORED"):
                    while line and not line.startswith(last):
                        line = answers.readline()
                    assert line, f"{address} closed before it answered {last}"
                    return
        raise AssertionError(f"no node stores: {self.clients}")

    def note(self, kind, process):
        self.targets.setdefault(kind, []).append(process.metrics())

    def pages(self):
        """Kind, address and page of each process that has metrics."""
        for kind, addresses in self.targets.items():
            for address in addresses:
                status, page = get(f"http://{address}/metrics")
                assert status == 200, (kind, address, status)
                yield kind, address, page
