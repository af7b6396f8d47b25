"""The same for asyncio: volumes, caches and stores whose calls are awaited.

Each has a few threads of its own, which wait in its place, so the loop goes on. A call whose task
is cancelled before a thread began it is not made. One that has begun goes on to its end, whatever
becomes of the task: a write may then have been made, and a buffer that is read into has to be left
alone until the volume is closed, which waits for all of them.

>>> async with cenote.aio.Volume("~/.cenote/well", size="64M") as volume:  # doctest: +SKIP
...     await asyncio.gather(*(volume.write(4096 * i, bytes(4096)) for i in range(100)))
"""

from __future__ import annotations

import asyncio
import builtins
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from . import cache as _cache
from . import store as _store
from . import volume as _volume
from .errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from ._ranges import Path

__all__ = ["Cache", "Store", "Volume"]

P = ParamSpec("P")
R = TypeVar("R")
Kind = TypeVar("Kind", _volume.Volume, _cache.Cache, _store.Store)
Own = TypeVar("Own", bound="_Awaited[Any]")


class _Awaited(Generic[Kind]):
    """Opened by ``async with`` or ``await open()``; closed with the block or by ``close()``."""

    def __init__(self, make: Callable[[], Kind], threads: int) -> None:
        self._make: Callable[[], Kind] = make
        self._sync: Kind | None = None
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="cenote")

    async def open(self: Own) -> Own:
        """Opens it. Cancelled, it closes what it was about to open."""
        future = self._threads.submit(self._make)
        try:
            self._sync = await asyncio.wrap_future(future)
        except BaseException:
            future.add_done_callback(_close_late)
            raise
        return self

    async def close(self) -> None:
        """Waits for what is under way, and closes it."""
        sync, self._sync = self._sync, None

        def end() -> None:
            self._threads.shutdown()
            if sync is not None:
                sync.close()

        # Not by its own threads, which it waits for.
        await asyncio.shield(asyncio.to_thread(end))

    async def __aenter__(self: Own) -> Own:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def blocking(self) -> Kind:
        """The one whose calls wait, for threads."""
        if self._sync is None:
            raise ClosedError("it is not open")
        return self._sync

    async def _call(self, call: Callable[P, R], *args: P.args, **more: P.kwargs) -> R:
        return await asyncio.wrap_future(self._threads.submit(call, *args, **more))


def _close_late(opened: Future[Any]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


class _Ranges(_Awaited[Kind]):
    @property
    def size(self) -> int:
        """Bytes."""
        sync: Any = self.blocking
        return int(sync.size)

    async def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """As `cenote.Volume.read`."""
        sync: Any = self.blocking
        found: bytes = await self._call(sync.read, offset, length)
        return found

    async def read_into(self, offset: int, buffer: Any) -> None:
        """As `cenote.Volume.read_into`. After a cancellation the buffer may still be written to."""
        sync: Any = self.blocking
        await self._call(sync.read_into, offset, buffer)

    async def write(self, offset: int, data: Any) -> None:
        """As `cenote.Volume.write`. After a cancellation it may still be made."""
        sync: Any = self.blocking
        await self._call(sync.write, offset, data)


class Volume(_Ranges[_volume.Volume]):
    """As `cenote.Volume`; as many calls are under way as it has threads."""

    def __init__(
        self,
        cluster: Path | None = None,
        *,
        size: int | str = 1 << 30,
        scheme: str | None = None,
        name: str | None = None,
        threads: int = 4,
    ) -> None:
        def make() -> _volume.Volume:
            return _volume.Volume(cluster, size=size, scheme=scheme, name=name, threads=threads)

        super().__init__(make, max(threads, 1))

    async def discard(self, offset: int, length: int) -> None:
        """As `cenote.Volume.discard`."""
        await self._call(self.blocking.discard, offset, length)

    async def status(self) -> _volume.VolumeStatus:
        """As `cenote.Volume.status`."""
        return await self._call(self.blocking.status)


class Cache(_Ranges[_cache.Cache]):
    """As `cenote.Cache`, with so many calls under way at a time."""

    def __init__(
        self,
        name: str | None = None,
        folder: Path | None = None,
        *,
        addresses: str | Sequence[str] | None = None,
        key: Path | None = None,
        client: str | None = None,
        patience: float = 30.0,
        timeout: float = 10.0,
        threads: int = 16,
    ) -> None:
        def make() -> _cache.Cache:
            return _cache.Cache(
                name, folder, addresses=addresses, key=key, client=client,
                patience=patience, timeout=timeout,
            )

        super().__init__(make, threads)

    async def read_many(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """As `cenote.Cache.read_many`."""
        return await self._call(self.blocking.read_many, ranges)

    async def write_many(self, items: Iterable[tuple[int, Any]]) -> None:
        """As `cenote.Cache.write_many`."""
        await self._call(self.blocking.write_many, items)

    async def status(self) -> _cache.CacheStatus:
        """As `cenote.Cache.status`."""
        return await self._call(self.blocking.status)


class Store(_Awaited[_store.Store]):
    """As `cenote.Store`, with so many calls under way at a time."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        key: Path,
        timeout: float = 10.0,
        threads: int = 16,
    ) -> None:
        def make() -> _store.Store:
            return _store.Store(addresses, key=key, timeout=timeout)

        super().__init__(make, threads)

    async def put(
        self,
        key: _store.Key,
        value: Any,
        *,
        if_absent: bool = False,
        if_version: int | None = None,
    ) -> int:
        """As `cenote.Store.put`. After a cancellation it may still be made."""
        return await self._call(
            self.blocking.put, key, value, if_absent=if_absent, if_version=if_version
        )

    async def put_durable(
        self,
        key: _store.Key,
        value: Any,
        *,
        if_absent: bool = False,
        if_version: int | None = None,
    ) -> int:
        """As `cenote.Store.put_durable`. After a cancellation it may still be made."""
        return await self._call(
            self.blocking.put_durable, key, value, if_absent=if_absent, if_version=if_version
        )

    async def put_many(
        self,
        items: Mapping[str, Any] | Iterable[tuple[_store.Key, Any]],
        *,
        durable: bool = False,
    ) -> builtins.list[int]:
        """As `cenote.Store.put_many`."""
        return await self._call(self.blocking.put_many, items, durable=durable)

    async def get(self, key: _store.Key) -> bytes | None:
        """As `cenote.Store.get`."""
        return await self._call(self.blocking.get, key)

    async def get_version(self, key: _store.Key) -> _store.Version | None:
        """As `cenote.Store.get_version`."""
        return await self._call(self.blocking.get_version, key)

    async def get_many(self, keys: Iterable[_store.Key]) -> builtins.list[bytes | None]:
        """As `cenote.Store.get_many`."""
        return await self._call(self.blocking.get_many, keys)

    async def delete(self, key: _store.Key, *, if_version: int | None = None) -> int:
        """As `cenote.Store.delete`. After a cancellation it may still be made."""
        return await self._call(self.blocking.delete, key, if_version=if_version)

    async def list(self, prefix: _store.Key = "") -> builtins.list[str]:
        """As `cenote.Store.list`."""
        return await self._call(self.blocking.list, prefix)

    async def sync(self) -> int:
        """As `cenote.Store.sync`."""
        return await self._call(self.blocking.sync)
