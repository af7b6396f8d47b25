"""asyncio: calls that are awaited, many at a time, and cancelled."""

import asyncio
import random
import threading

import pytest

import cenote
from cenote import aio


def test_many_are_awaited_at_a_time(well, served):
    async def main():
        async with aio.Volume(well.folder, size="4M") as volume:
            pages = [random.Random(at).randbytes(4096) for at in range(200)]
            await asyncio.gather(*(volume.write(4096 * at, page) for at, page in enumerate(pages)))
            found = await asyncio.gather(*(volume.read(4096 * at, 4096) for at in range(200)))
            assert found == pages
            await volume.discard(0, 4096)
            landing = bytearray(8192)
            await volume.read_into(0, landing)
            assert landing == bytes(4096) + pages[1]
            assert (await volume.status()).readable and volume.size == 4 << 20
        with pytest.raises(cenote.ClosedError):
            await volume.read(0, 1)

        well.cache("awaited", "1M", 1).close()
        async with aio.Cache("awaited", well.folder) as cache:
            await cache.write_many([(0, b"one"), (100, b"two")])
            assert await cache.read_many([(100, 3), (0, 3)]) == [b"two", b"one"]
            await cache.write(5, b"three")
            assert await cache.read(5, 5) == b"three"
            assert (await cache.status()).copies == 1

        async with aio.Store(served.address, key=served.key) as store:
            keys = [f"aio/{at}" for at in range(50)]
            await asyncio.gather(*(store.put_durable(key, key.encode()) for key in keys))
            assert await store.list("aio/") == sorted(keys)
            assert await store.get_many(keys[:2]) == [b"aio/0", b"aio/1"]
            version = await store.get_version("aio/7")
            with pytest.raises(cenote.ConditionError):
                await store.put("aio/7", b"", if_version=version.version + 1)
            await store.put_many([("aio/8", b"8")])
            assert await store.sync() == 0
            assert await store.delete("aio/8") and await store.get("aio/8") is None

    asyncio.run(main())


def test_the_loop_goes_on_while_a_call_waits(well):
    # The one thread of the pool is kept busy until the loop has run something else.
    async def main():
        async with aio.Volume(well.folder, size="1M", threads=1) as remote:
            gate = threading.Event()
            blocked = asyncio.create_task(remote._call(gate.wait))
            read = asyncio.create_task(remote.read(0, 4096))
            turns = 0
            for _ in range(10):
                await asyncio.sleep(0)
                turns += 1
            assert not read.done() and turns == 10
            gate.set()
            await blocked
            assert await read == bytes(4096)

    asyncio.run(main())


def test_a_cancelled_call_is_made_whole_or_not_at_all(well):
    async def main():
        async with aio.Volume(well.folder, size="1M", threads=1) as remote:
            has_begun, gate = threading.Event(), threading.Event()
            sync = remote.blocking

            def work():
                has_begun.set()
                gate.wait()
                sync.write(0, b"a")

            begun = asyncio.create_task(remote._call(work))
            waiting = asyncio.create_task(remote.write(1, b"b"))
            await asyncio.to_thread(has_begun.wait)
            begun.cancel()
            waiting.cancel()
            for task in (begun, waiting):
                with pytest.raises(asyncio.CancelledError):
                    await task
            gate.set()
            # What had begun ends; what had not is not made.
            assert await remote.read(0, 2) == b"a\0"

    asyncio.run(main())


def test_closing_waits_for_what_is_under_way(well):
    async def main():
        remote = await aio.Volume(well.folder, size="1M", threads=1).open()
        gate, ended = threading.Event(), []
        sync = remote.blocking

        def work():
            gate.wait()
            sync.write(0, b"last")
            ended.append(sync.read(0, 4))

        task = asyncio.create_task(remote._call(work))
        await asyncio.sleep(0)
        closing = asyncio.create_task(remote.close())
        await asyncio.sleep(0)
        assert not sync.closed
        gate.set()
        await closing
        await task
        assert ended == [b"last"] and sync.closed

    asyncio.run(main())


def test_an_opening_that_fails_or_is_cancelled_leaves_nothing_open(well, monkeypatch):
    gate, made = threading.Event(), []
    real = cenote.volume.Volume

    def slow(*words, **more):
        gate.wait()
        made.append(real(*words, **more))
        return made[0]

    async def main():
        with pytest.raises(cenote.ConfigurationError):
            await aio.Volume(well.folder, size=5).open()
        monkeypatch.setattr(cenote.volume, "Volume", slow)
        remote = aio.Volume(well.folder, size="1M")
        task = asyncio.create_task(remote.open())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        await remote.close()

    asyncio.run(main())
    # It had begun, or had not.
    assert all(volume.closed for volume in made)
