"""Objects: what is put, conditions, many at a time, and a store that is killed."""

import random
import threading

import pytest
from harness import wait_for

import cenote


def test_what_is_put_is_what_is_got(store):
    assert store.get("a") is None and store.get("a", b"none") == b"none"
    first = store.put_durable("a", b"one")
    assert store.get("a") == b"one" and store.get(b"a") == b"one"
    second = store.put("a", bytearray(b"two"))
    assert second > first
    assert store.get_version("a") == (second, b"two")
    assert store.sync() == 0
    big = random.Random(1).randbytes(1 << 20)
    store.put_durable("big", big)
    store.put_durable("empty", b"")
    assert store.get("big") == big and store.get("empty") == b""
    assert store.delete("a") > second
    assert store.get("a") is None
    store.delete("a")


def test_values_are_read_into_buffers(store):
    store.put_many({"a": b"one", "b": bytes(1 << 20), "c": b""}, durable=True)
    landing = bytearray(b"x" * (1 << 20))
    short, long = bytearray(b"xx"), bytearray(b"xxxx")
    part = memoryview(bytearray(b"------"))
    items = [("a", part[2:5]), ("b", landing), (b"c", bytearray()), ("none", short), ("a", short),
             ("a", long)]
    assert store.get_many_into(items) == [3, 1 << 20, 0, None, 3, 3]
    assert bytes(part) == b"--one-" and landing == bytes(1 << 20)
    # What does not fit is not there in part.
    assert (short, long) == (b"xx", b"xxxx")
    assert store.get_many_into(("b", bytearray(1 << 20)) for _ in range(70)) == [1 << 20] * 70
    for refused in (b"fixed", memoryview(landing)[::2]):
        with pytest.raises(BufferError):
            store.get_many_into([("a", refused)])


def test_a_full_store_is_cleaned_where_it_is_asked_to(own_served):
    with own_served.open() as store:
        put = 0
        with pytest.raises(cenote.NoSpaceError):
            for put in range(64):
                store.put(str(put), bytes(1 << 20))
        store.delete_many(str(at) for at in range(put // 2))
        store.clean()

        def has_room():
            try:
                return store.put("more", bytes(1 << 20))
            except cenote.NoSpaceError:
                return None

        assert wait_for(has_room, "room of what was deleted")
        assert store.get(str(put - 1)) == bytes(1 << 20)


def test_keys_are_listed_by_prefix(store):
    keys = ["x/1", "x/2", "y", "z\udcff", "\u00e4"]
    store.put_many({key: key.encode("utf-8", "surrogateescape") for key in keys}, durable=True)
    assert store.list() == sorted(keys, key=lambda key: key.encode("utf-8", "surrogateescape"))
    assert store.list("x/") == ["x/1", "x/2"]
    assert store.get_many([*keys, "none"]) == [
        *(key.encode("utf-8", "surrogateescape") for key in keys), None
    ]
    assert len(store.delete_many(["y", "none", "x/1"])) == 3
    assert store.list("x") == ["x/2"]


def test_a_change_is_made_on_a_condition(store):
    version = store.put_durable("a", b"one", if_absent=True)
    with pytest.raises(cenote.ConditionError, match="decide again") as raised:
        store.put("a", b"two", if_absent=True)
    assert raised.value.found == version
    newer = store.put("a", b"two", if_version=version)
    with pytest.raises(cenote.ConditionError):
        store.put_durable("a", b"three", if_version=version)
    with pytest.raises(cenote.ConditionError):
        store.delete("a", if_version=version)
    assert store.get_version("a") == (newer, b"two")
    assert store.delete("a", if_version=newer)
    with pytest.raises(cenote.ConditionError) as raised:
        store.put("a", b"four", if_version=newer)
    assert raised.value.found is None
    with pytest.raises(ValueError):
        store.put("a", b"", if_absent=True, if_version=1)


def test_threads_count_by_conditions_and_none_is_lost(store):
    store.put_durable("count", b"0")

    def work():
        for _ in range(25):
            while True:
                version, value = store.get_version("count")
                try:
                    store.put("count", str(int(value) + 1).encode(), if_version=version)
                    break
                except cenote.ConditionError:
                    pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get("count") == b"100"


def test_errors_say_what_to_do(served, tmp_path):
    with served.open() as store:
        for key, value in (("", b""), ("k" * 251, b""), ("k", bytes((1 << 20) + 1))):
            with pytest.raises(cenote.ConfigurationError):
                store.put(key, value)
    with pytest.raises(cenote.ClosedError, match="open it again"):
        store.get("a")
    with pytest.raises(cenote.UnreachableError, match="store serve"):
        cenote.Store("tcp:127.0.0.1:1", key=served.key, timeout=1)
    with pytest.raises(cenote.ConfigurationError):
        cenote.Store(served.address, key=tmp_path / "none")
    with pytest.raises(cenote.ConfigurationError):
        cenote.Store("nonsense", key=served.key)


def test_a_store_is_killed_and_what_was_durable_is_there(own_served):
    with own_served.open() as store:
        acknowledged, doubtful = {}, []
        halfway = threading.Event()

        def work(part):
            chance = random.Random(part)
            for at in range(400):
                key, value = f"{part}/{at}", chance.randbytes(chance.choice([10, 5000, 60_000]))
                try:
                    store.put_durable(key, value)
                    acknowledged[key] = value
                except (cenote.ConnectionLostError, cenote.UnreachableError) as error:
                    doubtful.append((key, value, error))
                    halfway.set()
                    return
                if at == 20:
                    halfway.set()

        threads = [threading.Thread(target=work, args=(part,)) for part in range(3)]
        for thread in threads:
            thread.start()
        halfway.wait()
        own_served.kill()
        for thread in threads:
            thread.join()
        assert doubtful, "it was killed too late"
        own_served.start()
        # The same connection is made again.
        for key, value in acknowledged.items():
            assert store.get(key) == value, key
        for key, value, _ in doubtful:
            assert store.get(key) in (None, value), key
        assert set(acknowledged) <= set(store.list())


def test_what_was_put_before_a_crash_is_not_said_to_be_durable_after_it(own_served):
    with own_served.open() as store:
        store.put("a", b"value")
        own_served.kill()
        with pytest.raises(cenote.ConnectionLostError):
            store.get("a")
        own_served.start()
        with pytest.raises(cenote.ConnectionLostError, match="may have taken it"):
            store.sync()
        assert store.sync() == 0


def test_copies_are_in_every_store(tmp_path):
    from conftest import Served

    places = [tmp_path / name for name in "ab"]
    for place in places:
        place.mkdir()
    stores = [Served(place) for place in places]
    try:
        stores[1].key.unlink()
        stores[1].kill()
        stores[1].key.write_bytes(stores[0].key.read_bytes())
        stores[1].key.chmod(0o600)
        stores[1].start()
        addresses = [one.address for one in stores]
        with cenote.Store(addresses, key=stores[0].key) as row:
            version = row.put("a", b"both")
            assert row.get_version("a") == (version, b"both")
            with pytest.raises(cenote.ConditionError):
                row.put("a", b"", if_absent=True)
            assert row.list() == ["a"]
            stores[0].kill()
            # Reads go to the last.
            assert row.get("a") == b"both"
            with pytest.raises((cenote.ConnectionLostError, cenote.UnreachableError)):
                row.put("a", b"one")
    finally:
        for one in stores:
            one.kill()
