"""The back end for LMCache, made by LMCache's own configuration and factory, on real stores.

It needs packages that the other tests do not: run_lmcache.py runs it.
"""

import asyncio
import json
import re
import threading
import time

import pytest
import torch
from harness import ROOT, wait_for
from lmcache.utils import CacheEngineKey, LayerCacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig, load_engine_config_with_overrides
from lmcache.v1.event_manager import EventManager
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.abstract_backend import StoragePluginInterface
from lmcache.v1.storage_backend.storage_manager import StorageManager

import cenote
from cenote.chunks import PIECE_BYTES, Chunks, name_of
from cenote.lmcache import CenoteBackend, Settings

pytestmark = pytest.mark.long

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.uint8, torch.float8_e4m3fn]
MIB = 1 << 20
CONFIG = """\
chunk_size: 256
local_cpu: {local_cpu}
max_local_cpu_size: {cpu_gib}
storage_plugins: ["cenote"]
extra_config:
  storage_plugin.cenote.module_path: cenote.lmcache
  storage_plugin.cenote.class_name: CenoteBackend
  cenote.address: "{address}"
  cenote.key: {key}
  cenote.retry: 0.1
  cenote.timeout: 60
"""


def metadata(role="worker", dtype=torch.bfloat16):
    return LMCacheMetadata(
        model_name="a/model", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0,
        kv_dtype=dtype, kv_shape=(4, 2, 256, 8, 64), role=role,
    )


class Engine:
    """LMCache's storage manager, with what its configuration file says."""

    def __init__(self, place, served, role="worker", **more):
        file = place / "lmcache.yaml"
        words = {"local_cpu": False, "cpu_gib": 0.5, "address": served.address, "key": served.key}
        file.write_text(CONFIG.format(**{**words, **more}))
        self.config = load_engine_config_with_overrides(str(file))
        self.metadata = metadata(role)
        self.manager = StorageManager(self.config, self.metadata, EventManager())

    @property
    def backend(self):
        return self.manager.storage_backends["cenote"]

    def chunk(self, size, dtype=torch.bfloat16, seed=0, fmt=MemoryFormat.KV_2LTD):
        """A chunk of so many bytes, in memory of LMCache."""
        shape = torch.Size([2, 4, 16, size // dtype.itemsize // 128])
        obj = self.manager.allocate(shape, dtype, fmt, busy_loop=False)
        assert obj is not None and obj.get_size() == size
        made = torch.Generator().manual_seed(seed)
        obj.raw_data[:size] = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=made)
        return obj

    def put(self, key, obj):
        """Puts one by the manager, which gives the object's memory back; its bytes."""
        data = bytes(obj.byte_array)
        self.manager.batched_put([key], [obj])
        wait_for(lambda: not self.backend.exists_in_put_tasks(key), "the put")
        return data

    def get(self, key):
        # The manager's own `get` keeps what it got in LMCache's memory, also without `local_cpu`.
        obj = self.backend.get_blocking(key)
        if obj is None:
            return None
        data = bytes(obj.byte_array)
        obj.ref_count_down()
        return data

    def memory_used(self):
        allocator = self.manager.allocator_backend.get_memory_allocator()
        return allocator.pin_allocator.num_active_allocations

    def close(self):
        self.manager.close()


@pytest.fixture
def engine(served, store, tmp_path):
    made = Engine(tmp_path, served)
    yield made
    made.close()


def key_of(number, dtype=torch.bfloat16, tag=None):
    configs = None if tag is None else {"lmcache.tag.user": tag}
    return CacheEngineKey("a/model", 1, 0, number, dtype, configs)


def test_lmcache_makes_it_by_its_own_configuration(engine):
    assert isinstance(engine.backend, CenoteBackend)
    assert isinstance(engine.backend, StoragePluginInterface)
    assert engine.manager.list_backends()["cenote"] == "CenoteBackend"
    assert engine.backend.get_allocator_backend() is engine.manager.allocator_backend
    # As the environment says it.
    extra = json.dumps(engine.config.extra_config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMCACHE_STORAGE_PLUGINS", "cenote")
        patch.setenv("LMCACHE_EXTRA_CONFIG", extra)
        config = LMCacheEngineConfig.from_env()
    assert list(config.storage_plugins) == ["cenote"]
    assert Settings.of(config.extra_config) == engine.backend._settings


@pytest.mark.parametrize("size", [1, 4, 16, 24])
@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_come_back_to_the_byte(engine, store, size, dtype):
    key = key_of(size, dtype)
    assert engine.manager.contains(key) is None and engine.get(key) is None
    obj = engine.chunk(size * MIB, dtype, seed=size)
    obj.ref_count_up()
    data = engine.put(key, obj)
    assert engine.manager.contains(key) == "cenote"
    again = engine.backend.get_blocking(key)
    assert again.data_ptr != obj.data_ptr
    assert bytes(again.byte_array) == data
    assert again.get_shape() == obj.get_shape() and again.get_dtype() == dtype
    assert again.get_memory_format() == MemoryFormat.KV_2LTD
    assert torch.equal(again.tensor.view(torch.uint8), obj.tensor.view(torch.uint8))
    obj.ref_count_down()
    again.ref_count_down()
    assert engine.manager.remove(key) == 1
    assert engine.manager.remove(key) == 0
    assert engine.manager.contains(key) is None and store.list() == []
    assert engine.memory_used() == 0


def test_a_chunk_of_64_mib_comes_back_to_the_byte(tmp_path, large):
    engine = Engine(tmp_path, large)
    try:
        key = key_of(64)
        data = engine.put(key, engine.chunk(64 * MIB))
        assert engine.get(key) == data
        assert engine.memory_used() == 0
    finally:
        engine.close()


def test_the_format_several_tensors_and_positions_come_back(engine):
    allocator = engine.manager.allocator_backend
    shapes = [torch.Size([2, 2, 16, 64]), torch.Size([1, 3, 16, 32])]
    dtypes = [torch.bfloat16, torch.uint8]
    obj = allocator.allocate(shapes, dtypes, MemoryFormat.KV_MLA_FMT)
    obj.raw_data[:] = torch.arange(obj.get_size()) % 251
    obj.metadata.cached_positions = torch.arange(16)
    data = engine.put(key_of(1), obj)
    again = engine.backend.get_blocking(key_of(1))
    assert bytes(again.byte_array) == data
    assert again.get_shapes() == shapes and again.get_dtypes() == dtypes
    assert again.get_memory_format() == MemoryFormat.KV_MLA_FMT
    assert torch.equal(again.metadata.cached_positions, torch.arange(16))
    again.ref_count_down()


def test_keys_that_differ_are_different_chunks(engine):
    keys = [
        key_of(1), key_of(2), key_of(1, torch.float16), key_of(1, tag="a"), key_of(1, tag="b"),
        CacheEngineKey("a/model", 2, 0, 1, torch.bfloat16),
        CacheEngineKey("a/model", 2, 1, 1, torch.bfloat16),
        CacheEngineKey("m" * 500, 1, 0, 1, torch.bfloat16),
        LayerCacheEngineKey("a/model", 1, 0, 1, torch.bfloat16, layer_id=0),
        LayerCacheEngineKey("a/model", 1, 0, 1, torch.bfloat16, layer_id=1),
    ]
    datas = [engine.put(key, engine.chunk(64 << 10, seed=at)) for at, key in enumerate(keys)]
    assert len(set(datas)) == len(keys)
    assert [engine.get(key) for key in keys] == datas
    # As LMCache sends keys to other processes.
    assert engine.get(CacheEngineKey.from_string(keys[3].to_string())) == datas[3]


def test_many_are_put_looked_up_and_got_at_a_time(engine):
    keys = [key_of(at) for at in range(12)]
    objs = [engine.chunk(MIB, seed=at) for at in range(12)]
    datas = [bytes(obj.byte_array) for obj in objs]
    put = []
    futures = engine.backend.batched_submit_put_task(keys, objs, on_complete_callback=put.append)
    assert len(futures) == 12
    for future in futures:
        assert future.result(60) is None
    assert sorted(put, key=lambda key: key.chunk_hash) == keys
    # What is there already is not put again; it is there all the same.
    again = engine.backend.batched_submit_put_task(keys[:1], objs[:1], None, put.append)
    assert [future.result(60) for future in again] == [None] and put[-1] == keys[0]
    for obj in objs:
        assert obj.get_ref_count() == 1
        obj.ref_count_down()
    assert engine.memory_used() == 0
    engine.backend.remove(keys[9])
    assert engine.manager.batched_contains(keys) == (9, {"cenote": keys[:9]})
    assert engine.manager.batched_contains(keys[10:]) == (2, {"cenote": keys[10:]})
    found = engine.manager.batched_get(keys, location="cenote")
    assert [None if obj is None else bytes(obj.byte_array) for obj in found] == [
        None if at == 9 else data for at, data in enumerate(datas)
    ]
    for obj in found:
        if obj is not None:
            obj.ref_count_down()

    def ask(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, engine.manager.loop).result(60)

    assert ask(engine.backend.batched_async_contains("id", keys)) == 9
    first = ask(engine.backend.batched_get_non_blocking("id", keys))
    assert [bytes(obj.byte_array) for obj in first] == datas[:9]
    for obj in first:
        obj.ref_count_down()
    assert engine.memory_used() == 0
    assert engine.manager.batched_remove(keys) == 11


def test_what_the_store_gives_goes_to_lmcaches_own_memory(served, store, tmp_path):
    one = Engine(tmp_path, served)
    data = one.put(key_of(1), one.chunk(MIB))
    one.close()
    # Another engine, later: the chunk is in the store, and is read from there once.
    other = Engine(tmp_path, served, local_cpu=True)
    try:
        assert other.manager.contains(key_of(1)) == "cenote"
        [obj] = other.manager.batched_get([key_of(1)], location="cenote")
        assert bytes(obj.byte_array) == data
        obj.ref_count_down()
        assert other.manager.contains(key_of(1)) == "LocalCPUBackend"
    finally:
        other.close()


def test_pins_keep_a_chunk_from_all_but_a_forced_removal(engine):
    backend, key = engine.backend, key_of(1)
    assert not backend.pin(key) and not backend.unpin(key)
    engine.put(key, engine.chunk(MIB))
    assert engine.manager.contains(key, pin=True) == "cenote"
    assert backend.pin(key)
    assert not backend.remove(key, force=False)
    engine.manager.batched_unpin([key], ["cenote"])
    assert not backend.remove(key, force=False)
    assert backend.unpin(key) and not backend.unpin(key)
    assert backend.remove(key, force=False)
    engine.put(key, engine.chunk(MIB))
    assert backend.batched_contains([key], pin=True) == 1
    assert backend.remove(key)
    assert not backend.unpin(key)
    backend.touch_cache()


def test_a_scheduler_looks_chunks_up_and_gets_none(engine, served, tmp_path):
    engine.put(key_of(1), engine.chunk(MIB))
    scheduler = Engine(tmp_path, served, role="scheduler")
    try:
        assert scheduler.manager.contains(key_of(1)) == "cenote"
        assert scheduler.backend.get_blocking(key_of(1)) is None
        with pytest.raises(RuntimeError):
            scheduler.backend.get_allocator_backend()
    finally:
        scheduler.close()


def test_two_engines_that_put_a_chunk_at_a_time_leave_one_of_them_whole(engine, served, tmp_path):
    other = Engine(tmp_path, served)
    try:
        for at in range(8):
            key = key_of(at)
            # Two models' bytes under one key are nothing that LMCache does: the worst case.
            objs = [one.chunk(3 * MIB, seed=at * 2 + n) for n, one in enumerate((engine, other))]
            datas = [bytes(obj.byte_array) for obj in objs]
            futures = [
                *engine.backend.batched_submit_put_task([key], objs[:1]),
                *other.backend.batched_submit_put_task([key], objs[1:]),
            ]
            for future in futures:
                future.result(60)
            for obj in objs:
                obj.ref_count_down()
            assert engine.get(key) == other.get(key)
            assert engine.get(key) in datas
            engine.backend.remove(key)
    finally:
        other.close()


def test_a_chunk_that_lacks_a_piece_is_a_miss_and_is_put_again(engine, store):
    key = key_of(1)
    data = engine.put(key, engine.chunk(3 * MIB))
    # What is listed is durable.
    engine.backend._store.sync()
    pieces = [name for name in store.list("lmcache/") if name.count("/") == 3]
    assert len(pieces) == 3 * MIB // PIECE_BYTES
    store.delete(pieces[4])
    assert engine.get(key) is None
    assert engine.manager.contains(key) is None
    assert engine.memory_used() == 0
    assert engine.put(key, engine.chunk(3 * MIB)) == data
    assert engine.get(key) == data


def test_what_others_wrote_under_its_names_is_a_miss(engine, store):
    engine.put(key_of(1), engine.chunk(MIB))
    name = f"lmcache/{name_of(key_of(1).to_string())}"
    good = store.get(name)
    for old, new in (
        (b"bfloat16", b"float32"), (b"bfloat16", b"randn"), (b"KV_2LTD", b"KV_NONE"),
        (b"a/model", b"a/mobel"), (b'"shapes": [[2', b'"shapes": [[3'), (good, b"nonsense"),
    ):
        assert old in good
        store.put(name, good.replace(old, new))
        assert engine.get(key_of(1)) is None, new
        assert engine.memory_used() == 0
    store.put(name, good)
    assert engine.get(key_of(1)) is not None


def test_a_store_that_is_killed_is_a_miss_and_no_wrong_bytes(own_served, tmp_path):
    engine = Engine(tmp_path, own_served)
    try:
        put, datas = [], {}
        halfway = threading.Event()

        def done(key):
            put.append(key)
            if len(put) == 4:
                halfway.set()

        keys = [key_of(at) for at in range(12)]
        objs = [engine.chunk(2 * MIB, seed=at) for at in range(12)]
        datas = {key: bytes(obj.byte_array) for key, obj in zip(keys, objs, strict=True)}
        futures = engine.backend.batched_submit_put_task(keys, objs, on_complete_callback=done)
        for obj in objs:
            obj.ref_count_down()
        assert halfway.wait(60)
        own_served.kill()
        for future in futures:
            assert isinstance(future.exception(60), cenote.Error | None)
        assert len(put) < 12, "it was killed too late"
        assert engine.memory_used() == 0
        assert [engine.get(key) for key in keys] == [None] * 12
        assert engine.manager.batched_contains(keys)[0] == 0
        assert not engine.backend.remove(keys[0])
        own_served.start()
        wait_for(engine.backend._reach.is_worth_asking, "another try")
        for key in keys:
            # Puts that were not durable may be gone, in part as well.
            assert engine.get(key) in (None, datas[key])
        # All of it goes on.
        for key in keys:
            engine.backend.remove(key)
            again = engine.chunk(2 * MIB, seed=key.chunk_hash)
            assert engine.put(key, again) == datas[key]
            assert engine.get(key) == datas[key]
            engine.backend.remove(key)
    finally:
        engine.close()


def test_a_store_that_comes_up_later_is_used_from_then_on(own_served, tmp_path):
    own_served.kill()
    engine = Engine(tmp_path, own_served)
    try:
        assert engine.get(key_of(1)) is None
        obj = engine.chunk(MIB)
        assert engine.put(key_of(1), obj)
        own_served.start()
        wait_for(engine.backend._reach.is_worth_asking, "another try")
        data = engine.put(key_of(1), engine.chunk(MIB))
        assert engine.get(key_of(1)) == data
        assert engine.memory_used() == 0
    finally:
        engine.close()


def test_a_full_store_loses_what_was_used_longest_ago_and_nothing_pinned(own_served, tmp_path):
    engine = Engine(tmp_path, own_served)
    try:
        # 64 MiB, of which objects may take less than half.
        keys = [key_of(at) for at in range(40)]
        datas = []
        for at, key in enumerate(keys):
            datas.append(engine.put(key, engine.chunk(2 * MIB, seed=at)))
            if at == 0:
                assert engine.backend.pin(key)
            if at:
                # One that is read is used.
                assert engine.get(keys[1]) == datas[1]
        there = [at for at, key in enumerate(keys) if engine.backend.contains(key)]
        assert {0, 1, 39} <= set(there) and 5 < len(there) < 20, there
        assert there[2:] == list(range(40 - len(there) + 2, 40)), there
        for at in there:
            assert engine.get(keys[at]) == datas[at]
        # A process that knows of no chunk makes room as well.
        other = Engine(tmp_path, own_served)
        data = [other.put(key_of(100 + at), other.chunk(2 * MIB, seed=at)) for at in range(8)]
        assert other.get(key_of(107)) == data[-1]
        other.close()
    finally:
        engine.close()


def test_puts_beyond_the_queue_are_left_out_and_closing_ends_the_rest(served, store, tmp_path):
    engine = Engine(tmp_path, served)
    backend = engine.backend
    backend._settings = backend._settings._replace(queue=3 * MIB)
    keys = [key_of(at) for at in range(6)]
    objs = [engine.chunk(MIB, seed=at) for at in range(6)]
    go = threading.Event()
    put = backend._put_with_room
    backend._put_with_room = lambda *what: go.wait(60) and put(*what)
    futures = backend.batched_submit_put_task(keys, objs)
    assert len(futures) == 3
    assert [backend.exists_in_put_tasks(key) for key in keys] == [True] * 3 + [False] * 3
    # One that is under way is not put twice.
    assert backend.batched_submit_put_task(keys[:1], objs[:1]) is None
    # The third has not begun.
    assert futures[2].cancel()
    assert not backend.exists_in_put_tasks(keys[2])
    # The manager closes LMCache's memory first, which puts under way read.
    ended = threading.Thread(target=engine.close)
    ended.start()
    wait_for(lambda: backend._is_closed, "closing")
    assert backend.batched_submit_put_task(keys[3:], objs[3:]) is None
    go.set()
    ended.join(60)
    assert not ended.is_alive()
    assert [future.exception(0) for future in futures[:2]] == [None, None]
    assert [obj.get_ref_count() for obj in objs] == [1] * 6
    assert backend.get_blocking(keys[0]) is None and not backend.contains(keys[0])
    with pytest.raises(cenote.ClosedError):
        backend._store.get("a")
    reader = Chunks(store, "lmcache/")
    names = [name_of(key.to_string()) for key in keys]
    assert [head is not None for head in reader.heads(names)] == [True] * 2 + [False] * 4
    reader.close()
    backend.close()


def test_a_get_without_memory_is_a_miss_and_gives_back_what_it_had(served, store, tmp_path):
    engine = Engine(tmp_path, served, cpu_gib=0.01)
    try:
        keys = [key_of(at) for at in range(4)]
        datas = [engine.put(key, engine.chunk(3 * MIB, seed=at)) for at, key in enumerate(keys)]
        began = time.monotonic()
        found = engine.backend.batched_get_blocking(keys)
        assert time.monotonic() - began < 30
        assert [obj is not None for obj in found] == [True] * 3 + [False]
        assert [bytes(obj.byte_array) for obj in found[:3]] == datas[:3]
        for obj in found[:3]:
            obj.ref_count_down()
        assert engine.memory_used() == 0
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cenote.address": None}, "needs cenote.address"),
        ({"cenote.key": ""}, "needs cenote.key"),
        ({"cenote.adress": "x"}, "cenote.adress; there are address"),
        ({"cenote.timeout": "soon"}, "no number of seconds"),
        ({"cenote.retry": 0}, "no number of seconds"),
        ({"cenote.durable": "yes"}, "true or false"),
        ({"cenote.queue": "much"}, "is no size"),
        ({"cenote.prefix": "p" * 200}, "a prefix of up to"),
        ({"cenote.key": "/none"}, "/none"),
        ({"cenote.address": "nonsense"}, "nonsense"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused_with_what_is_wrong(engine, changed, said):
    extra = {**engine.config.extra_config, **changed}
    config = LMCacheEngineConfig.from_defaults(extra_config=extra)
    with pytest.raises(cenote.ConfigurationError, match=said):
        CenoteBackend(config=config, metadata=metadata())
    with pytest.raises(cenote.ConfigurationError):
        CenoteBackend()


def test_the_guide_says_what_there_is(served, store, tmp_path):
    guide = (ROOT / "docs" / "guides" / "lmcache.md").read_text()
    assert set(re.findall(r"^\| `cenote\.(\w+)` \|", guide, re.M)) == set(Settings._fields)
    [configured] = re.findall(r"^```yaml\n(.*?)^```$", guide, re.M | re.S)
    file = tmp_path / "guide.yaml"
    for said, here in (("tcp:10.0.0.7:7100", served.address), ("~/cluster.key", str(served.key))):
        assert said in configured
        configured = configured.replace(said, here)
    file.write_text(configured + "max_local_cpu_size: 0.1\n")
    config = load_engine_config_with_overrides(str(file))
    manager = StorageManager(config, metadata(), EventManager())
    try:
        assert manager.list_backends()["cenote"] == "CenoteBackend"
    finally:
        manager.close()
    [program] = re.findall(r"^```python\n(.*?)^```$", guide, re.M | re.S)
    program = program.replace("tcp:10.0.0.7:7100", served.address)
    exec(program.replace("~/cluster.key", str(served.key)), {})  # noqa: S102
