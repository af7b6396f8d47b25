"""Remote caches: one request or many, from many threads, and a host that is killed."""

import random
import threading
from datetime import datetime, timezone

import pytest
from harness import CENOTE, run, wait_for

import cenote

MIB = 1 << 20


def test_a_cache_is_opened_by_folder_and_by_address_and_holds_the_same(well):
    with well.cache("c0") as cache:
        assert cache.size == len(cache) == 8 * MIB and cache.region_size == MIB
        data = random.Random(1).randbytes(3 * MIB + 5)
        cache.write(MIB - 3, data)
        cache[0:5] = b"first"
        address = f"shm:{well.folder}/caches/c0/socket"
        with cenote.Cache(addresses=address, key=well.key, client="second") as other:
            assert other[MIB - 3 : MIB - 3 + len(data)] == data
            landing = bytearray(len(data))
            other.read_into(MIB - 3, landing)
            assert landing == data
            assert other[:5] == b"first"
        status = cache.status()
        assert (status.size, status.copies, status.regions_lost) == (8 * MIB, 2, 0)
        assert cache.take_lost() == [] and cache.take_fallen_back() == []


def test_many_at_a_time(well):
    with well.cache("many") as cache:
        chance = random.Random(2)
        items = [(4000 * at, chance.randbytes(chance.choice([1, 100, 4000]))) for at in range(2000)]
        cache.write_many((offset, bytearray(data)) for offset, data in items)
        found = cache.read_many([(offset, len(data)) for offset, data in items])
        assert found == [data for _, data in items]
        big = [(at * MIB, chance.randbytes(MIB)) for at in range(8)]
        cache.write_many(big)
        assert cache.read_many([(offset, MIB) for offset, _ in big]) == [data for _, data in big]
        with pytest.raises(cenote.ConfigurationError, match="longer than"):
            cache.read_many([(0, MIB + 1)])
        with pytest.raises(cenote.OutOfRangeError):
            cache.write_many([(0, b"x"), (8 * MIB - 1, b"ab")])
        with pytest.raises(cenote.OutOfRangeError):
            cache.read(0, 8 * MIB + 1)
        assert cache.read_many([]) == [] and cache.read(5, 0) == b""


def test_errors_say_what_to_do(well, tmp_path):
    with pytest.raises(cenote.UnreachableError, match="cenote cache start"):
        cenote.Cache("none", well.folder)
    with pytest.raises(cenote.ConfigurationError):
        cenote.Cache("../c0", well.folder)
    with pytest.raises(cenote.ConfigurationError, match="key="):
        cenote.Cache(addresses="tcp:127.0.0.1:1")
    with pytest.raises(cenote.UnreachableError):
        cenote.Cache(addresses="tcp:127.0.0.1:1", key=well.key, timeout=0.3)
    with pytest.raises(cenote.ConfigurationError):
        cenote.Cache(addresses="nonsense", key=well.key)
    with pytest.raises(cenote.ConfigurationError):
        cenote.Cache("c0", well.folder, patience=float("nan"))
    cache = well.cache("short", "1M", 1)
    cache.close()
    with pytest.raises(cenote.ClosedError):
        cache.read(0, 1)
    assert "closed" in repr(cache)


def test_a_host_is_killed_while_threads_write_and_every_byte_is_there(own_well):
    with own_well.cache("c0") as cache:
        halfway = threading.Event()
        written, failures = [[], [], []], []

        def work(part):
            chance = random.Random(part)
            try:
                for at in range(part, 512, 3):
                    data = chance.randbytes(16_384)
                    if at % 2:
                        cache.write(at * 16_384, data)
                    else:
                        half = at * 16_384 + 8192
                        cache.write_many([(at * 16_384, data[:8192]), (half, data[8192:])])
                    written[part].append((at * 16_384, data))
                    if at > 150:
                        halfway.set()
            except cenote.Error as error:
                failures.append(error)
                halfway.set()

        threads = [threading.Thread(target=work, args=(part,)) for part in range(3)]
        for thread in threads:
            thread.start()
        halfway.wait()
        own_well.kill("h00")
        for thread in threads:
            thread.join()
        assert failures == []
        for offset, data in sum(written, []):
            assert cache.read(offset, len(data)) == data, offset
        assert sum(map(len, written)) == 512
        assert cache.take_lost() == []


def test_regions_that_come_back_from_a_checkpoint_are_told_with_its_time(own_well):
    with own_well.cache("c0", copies=1) as cache:
        old, new = random.Random(1).randbytes(8 * MIB), random.Random(2).randbytes(8 * MIB)
        cache.write(0, old)
        before = datetime.now(timezone.utc)
        run(CENOTE, "cache", "checkpoint", "c0", "--dir", own_well.folder)
        after = datetime.now(timezone.utc)
        cache.write(0, new)
        own_well.kill("h00")
        lost, back = [], []

        def all_are_back():
            lost.extend(cache.take_lost())
            back.extend(cache.take_fallen_back())
            return lost and len(back) == len(lost) and cache.status().whole

        wait_for(all_are_back, lambda: f"{lost}, {back}")
        assert sorted(lost) == sorted(one.region for one in back)
        for one in back:
            # The time has milliseconds.
            assert before.timestamp() - 0.001 <= one.taken.timestamp() <= after.timestamp(), one
        for region in range(8):
            held = slice(region * MIB, (region + 1) * MIB)
            assert cache[held] == (old if region in lost else new)[held], region
        assert cache.status().regions_lost == len(lost)
