"""Real clusters, caches and stores for the tests; all of them end with their tests."""

import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from harness import CENOTE, run, wait_for

import cenote


def pytest_configure(config):
    config.addinivalue_line("markers", "long: belongs to the long part")


class Well:
    """A cluster of hosts, each a process."""

    def __init__(self, place, hosts):
        self.place = Path(place)
        self.folder = self.place / "well"
        run(CENOTE, "up", "--hosts", hosts, "--memory", "64M", "--dir", self.folder)

    @property
    def key(self):
        return self.folder / "cluster.key"

    def kill(self, host):
        """The end of a host, as a crash is; returns once it is gone."""
        process = int((self.folder / "hosts" / host / "pid").read_text())
        os.kill(process, signal.SIGKILL)
        stat = Path(f"/proc/{process}/stat")

        def is_gone():
            try:
                return stat.read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                return True

        wait_for(is_gone, f"the end of {host}")

    def cache(self, name, size="8M", copies=2):
        run(CENOTE, "cache", "create", name, "--size", size, "--region", "1M",
            "--copies", copies, "--dir", self.folder)
        return cenote.Cache(name, self.folder)

    def down(self):
        run(CENOTE, "down", "--dir", self.folder, code=None)


class Served:
    """A store, served by a process."""

    def __init__(self, place, size="64M"):
        self.place = Path(place)
        self.folder, self.key = self.place / "objects", self.place / "key"
        run(CENOTE, "key", "new", "--out", self.key)
        run(CENOTE, "store", "create", self.folder, "--size", size)
        self.address = "tcp:127.0.0.1:0"
        self.process = None
        self.start()

    def start(self):
        log = self.place / "log"
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                [CENOTE, "store", "serve", self.folder, "--listen", self.address,
                 "--key", self.key],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )

        def announced():
            text = log.read_text()
            assert self.process.poll() is None, text
            return re.search(r"^ready .* at (tcp:[0-9.]+:\d+)", text, re.M)

        self.address = wait_for(announced, log.read_text)[1]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def open(self):
        return cenote.Store(self.address, key=self.key)


@pytest.fixture(scope="session")
def well():
    """Six hosts that all tests may use; none of them is killed."""
    with tempfile.TemporaryDirectory(prefix="cenote-py-") as place:
        made = Well(place, 6)
        yield made
        made.down()


@pytest.fixture
def own_well():
    """Four hosts of one test."""
    with tempfile.TemporaryDirectory(prefix="cenote-py-") as place:
        made = Well(place, 4)
        yield made
        made.down()


@pytest.fixture(scope="session")
def served():
    with tempfile.TemporaryDirectory(prefix="cenote-py-") as place:
        made = Served(place)
        yield made
        made.kill()


@pytest.fixture
def own_served():
    with tempfile.TemporaryDirectory(prefix="cenote-py-") as place:
        made = Served(place)
        yield made
        made.kill()


@pytest.fixture
def large():
    """A store for values that are large together."""
    with tempfile.TemporaryDirectory(prefix="cenote-py-") as place:
        made = Served(place, "256M")
        yield made
        made.kill()


@pytest.fixture
def store(served):
    """The shared store, empty."""
    with served.open() as opened:
        opened.delete_many(opened.list())
        yield opened


@pytest.fixture
def volume(well):
    with cenote.Volume(well.folder, size="8M") as opened:
        yield opened
