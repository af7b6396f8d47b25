"""Writes values by a Python client of memcached, and reads back what was acknowledged.

    load.py pymemcache|pylibmc SECONDS|- ADDRESS...

With "-" it writes until its standard input ends.
Nodes may be killed meanwhile: any address answers for all keys, and the client's own way of leaving
dead servers out is what is tried. A write that failed may have taken effect or not, now or later:
its key is written no more. Prints one line of JSON; ends with 1 when an acknowledged value is gone
or another is in its place.
"""

import json
import sys
import threading
import time

THREADS = 4
# Written again and again, by each thread.
KEYS = 300
# Written once, so that what a store forgets is not made good by the next write.
KEYS_ONCE = 2000
# How long one value is asked for.
READ_BACK_SECONDS = 60


class Pymemcache:
    def __init__(self, addresses):
        from pymemcache.client.hash import HashClient

        nodes = [(host, int(port)) for host, port in (a.rsplit(":", 1) for a in addresses)]
        self.client = HashClient(
            nodes, connect_timeout=2, timeout=5, no_delay=True,
            retry_attempts=0, dead_timeout=3600,
        )

    def set(self, key, value):
        return self.client.set(key, value, noreply=False)

    def get(self, key):
        return self.client.get(key)

    def check_api(self):
        """What memcached's protocol says of each operation, as this client shows it."""
        c = self.client
        expect(c.delete("api", noreply=False) in (True, False), "delete")
        expect(c.get("api") is None, "get of nothing")
        expect(c.add("api", b"2", noreply=False), "add")
        expect(not c.add("api", b"3", noreply=False), "add of what is there")
        expect(c.append("api", b"0", noreply=False), "append")
        expect(c.prepend("api", b"1", noreply=False), "prepend")
        expect(c.get("api") == b"120", "what was joined")
        expect(c.incr("api", 5) == 125, "incr")
        expect(c.decr("api", 200) == 0, "decr stops at 0")
        expect(c.replace("api", b"x" * 5000, noreply=False), "replace")
        value, unique = c.gets("api")
        expect(value == b"x" * 5000, "gets")
        expect(c.cas("api", b"y", unique, noreply=False), "cas")
        expect(c.cas("api", b"z", unique, noreply=False) is False, "cas of another")
        expect(c.touch("api", 100, noreply=False), "touch")
        expect(c.set_many({"api": b"1", "api2": b"2"}, noreply=False) == [], "set_many")
        expect(c.get_many(["api", "api2", "api3"]) == {"api": b"1", "api2": b"2"}, "get_many")
        expect(c.delete("api", noreply=False), "delete")
        expect(c.get("api") is None, "get of what was deleted")


class Pylibmc:
    def __init__(self, addresses):
        import pylibmc

        self.client = pylibmc.Client(addresses, binary=False, behaviors={
            "tcp_nodelay": True, "ketama": True, "cas": True,
            "connect_timeout": 2000, "receive_timeout": 5_000_000, "send_timeout": 5_000_000,
            "remove_failed": 1, "retry_timeout": 1, "dead_timeout": 3600,
        })

    def set(self, key, value):
        return self.client.set(key, value)

    def get(self, key):
        return self.client.get(key)

    def check_api(self):
        """As above."""
        c = self.client
        c.delete("api")
        expect(c.get("api") is None, "get of nothing")
        expect(c.add("api", b"2"), "add")
        expect(not c.add("api", b"3"), "add of what is there")
        expect(c.append("api", b"0"), "append")
        expect(c.prepend("api", b"1"), "prepend")
        expect(c.get("api") == b"120", "what was joined")
        expect(c.incr("api", 5) == 125, "incr")
        expect(c.decr("api", 200) == 0, "decr stops at 0")
        expect(c.replace("api", b"x" * 5000), "replace")
        value, unique = c.gets("api")
        expect(value == b"x" * 5000, "gets")
        expect(c.cas("api", b"y", unique), "cas")
        expect(not c.cas("api", b"z", unique), "cas of another")
        expect(c.touch("api", 100), "touch")
        expect(c.set_multi({"api": b"1", "api2": b"2"}) == [], "set_multi")
        expect(c.get_multi(["api", "api2", "api3"]) == {"api": b"1", "api2": b"2"}, "get_multi")
        expect(c.delete("api"), "delete")
        expect(c.get("api") is None, "get of what was deleted")


CLIENTS = {"pymemcache": Pymemcache, "pylibmc": Pylibmc}


def expect(holds, what):
    if not holds:
        sys.exit(f"wrong answer: {what}")


def value_of(key, version):
    """10 bytes to some KiB; no two alike."""
    head = f"{key}.{version}.".encode()
    return head + b"v" * ((version * 37 + len(key)) % 4000)


class Worker(threading.Thread):
    def __init__(self, make, addresses, number, stop):
        super().__init__()
        self.make, self.addresses, self.number, self.stop = make, addresses, number, stop
        self.acknowledged = self.failed = self.wrong = 0
        self.latest = {}
        self.retired = {}
        self.complaint = None

    def run(self):
        try:
            store = self.make(self.addresses)
            step = 0
            while not self.stop.is_set():
                self.write(store, f"{self.number}-{step % KEYS}", step)
                if step < KEYS_ONCE:
                    self.write(store, f"{self.number}-once-{step}", step)
                step += 1
        except BaseException as error:  # A thread's end must not look like success.
            self.complaint = f"{type(error).__name__}: {error}"

    def write(self, store, key, version):
        if key in self.retired:
            return
        value = value_of(key, version)
        try:
            done = store.set(key, value)
        except Exception:
            done = False
        if not done:
            self.failed += 1
            self.retired[key] = value
            return
        self.latest[key] = value
        self.acknowledged += 1
        try:
            found = store.get(key)
        except Exception:
            self.failed += 1
            return
        if found != value:
            self.wrong += 1
            self.complaint = f"{key}: {found!r:.60} for {value!r:.60}"


def read_back(make, addresses, workers):
    """Values that are gone, and others in their place."""
    store = make(addresses)
    lost, wrong = [], []
    for worker in workers:
        for key, value in worker.latest.items():
            end = time.monotonic() + READ_BACK_SECONDS
            while True:
                try:
                    found = store.get(key)
                    break
                except Exception as error:
                    if time.monotonic() > end:
                        sys.exit(f"cannot read {key} back: {error}")
            if found is None:
                # Nor can a write of unknown fate have removed it.
                lost.append(key)
            elif found not in (value, worker.retired.get(key)):
                wrong.append(key)
    return lost, wrong


def main():
    name, seconds, addresses = sys.argv[1], sys.argv[2], sys.argv[3:]
    make = CLIENTS[name]
    make(addresses).check_api()
    stop = threading.Event()
    workers = [Worker(make, addresses, number, stop) for number in range(THREADS)]
    for worker in workers:
        worker.start()
    if seconds == "-":
        sys.stdin.read()
    else:
        time.sleep(float(seconds))
    stop.set()
    for worker in workers:
        worker.join()
    lost, wrong = read_back(make, addresses, workers)
    wrong_at_once = sum(worker.wrong for worker in workers)
    acknowledged = sum(worker.acknowledged for worker in workers)
    complaints = [worker.complaint for worker in workers if worker.complaint]
    print(json.dumps({
        "client": name,
        "acknowledged": acknowledged,
        "failed": sum(worker.failed for worker in workers),
        "lost": len(lost),
        "wrong": len(wrong) + wrong_at_once,
        "complaints": complaints + (lost + wrong)[:5],
    }))
    sys.exit(1 if lost or wrong or wrong_at_once or complaints or not acknowledged else 0)


main()
