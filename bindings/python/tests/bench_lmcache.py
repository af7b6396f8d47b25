#!/usr/bin/env python3
"""How fast LMCache's back ends put and get chunks: Cenote's beside its Redis, RESP and disk ones.

    bench_lmcache.py [--rounds N] [--sizes 1,4,16,64] [--landing SIZE] [--disk FOLDER]
                     [--programs FOLDER]

It takes the environment that run_lmcache.py makes, and makes it first where it is not yet; the
library is target/release/lib_cenote.so (cargo build --release -p cenote-python). All back ends take
turns with chunks of the same bytes; a figure is the median of the rounds, in MiB/s. Redis keeps
nothing on disk. What was got is compared with what was put.
"""

import argparse
import asyncio
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

MIB = 1 << 20
# Layers and width of a layer's keys for 256 tokens of 2 bytes.
SHAPES = {1: (8, 128), 4: (32, 128), 16: (32, 512), 64: (32, 2048)}
LIMIT_S = 120


def again_in_the_environment():
    """Runs this program where LMCache is, with the package put together as a wheel would be."""
    import run
    import run_lmcache
    from harness import TARGET

    library = TARGET / "release" / "lib_cenote.so"
    if not library.exists():
        sys.exit(f"{library} is not built: cargo build --release -p cenote-python")
    run.LIBRARY = library
    python, place = run_lmcache.environment() / "bin" / "python", run.assembled()
    paths = [place, Path(__file__).parent, run.ROOT / "tests" / "ops"]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, paths)))
    try:
        command = [str(python), __file__, "--here", *sys.argv[1:]]
        return os.spawnve(os.P_WAIT, python, command, environment)
    finally:
        shutil.rmtree(place, ignore_errors=True)


class Servers:
    """A Redis, and stores on disk and in memory; all end with their block."""

    def __init__(self, place, disk, programs, landing):
        self.place, self.disk, self.cenote = place, disk, programs / "cenote"
        self.landing = landing
        self.started = []

    def __enter__(self):
        self.start("redis-server", "--port", "6390", "--bind", "127.0.0.1", "--save", "",
                   "--appendonly", "no", "--dir", self.place, "--loglevel", "warning")
        self.run("key", "new", "--out", self.place / "key")
        self.tcp = self.serve(self.disk / "store", "tcp:127.0.0.1:7390", "file")
        memory = Path(tempfile.mkdtemp(prefix="cenote-bench-", dir="/dev/shm"))
        self.memory = memory
        self.shm = self.serve(memory / "store", f"shm:{self.place / 'sock'}", "pm")
        return self

    def serve(self, folder, address, medium):
        self.run("store", "create", folder, "--size", "1G")
        self.start(self.cenote, "store", "serve", folder, "--listen", address, "--medium", medium,
                   "--landing", self.landing, "--key", self.place / "key")
        return address

    def run(self, *command):
        subprocess.run([self.cenote, *map(str, command)], check=True, stdout=subprocess.DEVNULL)

    def start(self, *command):
        log = open(self.place / f"log-{len(self.started)}", "wb")
        self.started.append(subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def __exit__(self, *error):
        for process in self.started:
            process.terminate()
        for process in self.started:
            process.wait()
        shutil.rmtree(self.memory, ignore_errors=True)


def back_ends(size, servers, loop):
    """Makes the back ends for chunks of a size; a name for each, and LMCache's own memory."""
    import torch
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata
    from lmcache.v1.storage_backend import LocalCPUBackend, LocalDiskBackend, RemoteBackend

    from cenote.lmcache import CenoteBackend

    layers, width = SHAPES[size]
    metadata = LMCacheMetadata(
        model_name="bench", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0,
        kv_dtype=torch.bfloat16, kv_shape=(layers, 2, 256, width // 64, 64), role="worker",
    )

    def config(**more):
        return LMCacheEngineConfig.from_defaults(
            chunk_size=256, local_cpu=False, max_local_cpu_size=1.0, **more)

    cpu = LocalCPUBackend(config(), metadata, "cpu")
    made = {}
    for name, address in (("cenote tcp", servers.tcp), ("cenote shm", servers.shm)):
        extra = {"cenote.address": address, "cenote.key": str(servers.place / "key")}
        made[name] = CenoteBackend(
            config=config(extra_config=extra), metadata=metadata, local_cpu_backend=cpu, loop=loop)
    for name, url in (("redis", "redis://127.0.0.1:6390"), ("resp", "resp://127.0.0.1:6390")):
        try:
            made[name] = RemoteBackend(config(remote_url=url), metadata, loop, cpu, "cpu")
            if made[name].connection is None:
                raise RuntimeError("no connection")
        except Exception as error:  # noqa: BLE001 -- the native client may not load
            print(f"left out: {name}: {error}", file=sys.stderr)
            made.pop(name, None)
    disk = config(local_disk=str(servers.disk / "lmcache"), max_local_disk_size=2.0)
    made["disk"] = LocalDiskBackend(disk, loop, cpu, "cpu", None, metadata)
    return made, cpu, metadata


def measure(backend, key, obj):
    """Seconds for a put and for a get of a chunk."""
    done = threading.Event()
    began = time.perf_counter()
    backend.batched_submit_put_task([key], [obj], on_complete_callback=lambda _: done.set())
    if not done.wait(LIMIT_S):
        raise RuntimeError(f"{backend}: a put has not ended")
    put = time.perf_counter()
    again = backend.get_blocking(key)
    got = time.perf_counter()
    if again is None or bytes(again.byte_array) != bytes(obj.byte_array):
        raise RuntimeError(f"{backend}: not what was put")
    again.ref_count_down()
    return put - began, got - put


def main():
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--rounds", type=int, default=7)
    words.add_argument("--sizes", default="1,4,16,64")
    words.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()))
    words.add_argument("--programs", type=Path)
    words.add_argument("--landing", default="4M", help="as of `cenote store serve`")
    words.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = words.parse_args()
    if not given.here:
        return again_in_the_environment()

    import torch
    from harness import TARGET
    from lmcache.utils import CacheEngineKey, start_loop_in_thread_with_exceptions
    from lmcache.v1.memory_management import MemoryFormat

    logging.disable(logging.WARNING)
    loop = asyncio.new_event_loop()
    threading.Thread(target=start_loop_in_thread_with_exceptions, args=(loop,), daemon=True).start()
    programs = given.programs or TARGET / "release"
    place = Path(tempfile.mkdtemp(prefix="cenote-bench-", dir=given.disk))
    rows = []
    try:
        with Servers(place, place, programs, given.landing) as servers:
            time.sleep(1)
            for size in map(int, given.sizes.split(",")):
                made, cpu, metadata = back_ends(size, servers, loop)
                shapes, dtypes = metadata.get_shapes(), metadata.get_dtypes()
                obj = cpu.allocate(shapes, dtypes, MemoryFormat.KV_2LTD)
                assert obj.get_size() == size * MIB
                times = {name: ([], []) for name in made}
                for round_ in range(given.rounds + 1):
                    obj.raw_data[:] = torch.randint(0, 256, (size * MIB,), dtype=torch.uint8)
                    key = CacheEngineKey("bench", 1, 0, size * 1000 + round_, torch.bfloat16)
                    for name, backend in made.items():
                        put, got = measure(backend, key, obj)
                        if name.startswith("cenote") or name == "disk":
                            backend.remove(key)
                        # The first round opens connections.
                        if round_:
                            times[name][0].append(put)
                            times[name][1].append(got)
                for name, (puts, gets) in times.items():
                    rows.append({
                        "back_end": name, "chunk_mib": size, "rounds": given.rounds,
                        "put_mib_s": round(size / statistics.median(puts)),
                        "get_mib_s": round(size / statistics.median(gets)),
                    })
                    print(json.dumps(rows[-1]), flush=True)
                obj.ref_count_down()
                for name, backend in made.items():
                    # The close of LMCache's remote back ends waits for ever.
                    if name not in ("redis", "resp"):
                        backend.close()
                subprocess.run(["redis-cli", "-p", "6390", "flushall"], check=False,
                               stdout=subprocess.DEVNULL)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    sizes = sorted({row["chunk_mib"] for row in rows})
    print("\n| back end | " + " | ".join(f"put, get {size} MiB" for size in sizes) + " |")
    print("|---" * (len(sizes) + 1) + "|")
    for name in dict.fromkeys(row["back_end"] for row in rows):
        own = [row for row in rows if row["back_end"] == name]
        cells = [f"{row['put_mib_s']}, {row['get_mib_s']}" for row in own]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    # Threads of the back ends that were not closed.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
