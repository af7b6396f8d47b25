"""KV caches of LMCache in a store: a back end for its `storage_plugins`.

LMCache makes a `CenoteBackend` when its configuration says so; docs/guides/lmcache.md has one. Each
KV chunk is a chunk of `cenote.chunks`, known by LMCache's own key, so all engines that compute the
same keys share a store. A store that cannot be reached is one in which nothing is found: the engine
computes what it lacks, and the store is asked again a while later.

Pieces go from LMCache's memory into the library and come back into memory that LMCache allocates,
without another buffer between them. Puts are made by two threads, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter, OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from lmcache.logging import init_logger
from lmcache.utils import CacheEngineKey, get_size_bytes
from lmcache.v1.memory_management import MemoryFormat, MemoryObj
from lmcache.v1.storage_backend.abstract_backend import StoragePluginInterface

from ._ranges import size_of
from .chunks import Chunks, Head, name_of
from .errors import ConfigurationError, ConnectionLostError, Error, NoSpaceError, UnreachableError
from .store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata
    from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

logger = init_logger(__name__)
T = TypeVar("T")

_OPTIONS = "cenote."
#: Puts that are made at a time; each has several requests under way.
_PUTS = 2
#: Chunks whose last use is remembered, some 200 bytes each.
_SEEN_MAX = 100_000
#: Chunks that are removed for a put of a process that knows of none.
_STRANGERS = 8
#: How often room is made for one put.
_TRIES = 3
#: Between tries of a put for which room is being made.
_PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
#: How long a get waits for memory of LMCache that puts still have.
_ALLOCATE_S = 1.0


class Settings(NamedTuple):
    """What `extra_config` says, in items whose names begin with ``cenote.``."""

    #: Where the store is, "tcp:HOST:PORT" or "shm:PATH", or a list of stores with copies.
    address: str | list[str]
    #: The file with the cluster's key.
    key: str
    #: Of all keys in the store.
    prefix: str = "lmcache/"
    #: Whether a put ends once no crash of the store can take the chunk.
    durable: bool = False
    #: Seconds after which a store that is silent counts as gone.
    timeout: float = 5.0
    #: Seconds in which a store that could not be reached is not asked again.
    retry: float = 5.0
    #: Bytes of chunks that wait to be put. Those beyond are not put.
    queue: int | str = "512M"

    @classmethod
    def of(cls, extra: dict[str, Any] | None) -> Settings:
        """Takes them out of `extra_config`.

        Raises `ConfigurationError` for what there is not, or makes no sense.
        """
        given = {
            name.removeprefix(_OPTIONS): value
            for name, value in (extra or {}).items() if name.startswith(_OPTIONS)
        }
        if unknown := sorted(given.keys() - set(cls._fields)):
            raise ConfigurationError(
                f"extra_config has {_OPTIONS}{unknown[0]}; there are {', '.join(cls._fields)}"
            )
        for name in ("address", "key"):
            if not given.get(name):
                raise ConfigurationError(f"extra_config needs {_OPTIONS}{name}")
        settings = cls(**given)
        for name in ("timeout", "retry"):
            value = getattr(settings, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise ConfigurationError(f"{_OPTIONS}{name}: {value!r} is no number of seconds")
        if not isinstance(settings.durable, bool):
            raise ConfigurationError(f"{_OPTIONS}durable: true or false")
        return settings._replace(queue=size_of(settings.queue))


class Reach:
    """Whether the store is worth asking: one that was out of reach is left alone for a while."""

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self._again = 0.0

    def is_worth_asking(self) -> bool:
        return time.monotonic() >= self._again

    def note(self, error: Error) -> None:
        if isinstance(error, UnreachableError | ConnectionLostError):
            self._again = time.monotonic() + self._retry_s


class Uses:
    """Which chunks were used last, and which are pinned. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Bytes by name; used longest ago first.
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._pins: Counter[str] = Counter()

    def use(self, head: Head) -> None:
        with self._lock:
            self._seen[head.name] = head.size
            self._seen.move_to_end(head.name)
            if len(self._seen) > _SEEN_MAX:
                self._seen.popitem(last=False)

    def forget(self, name: str) -> None:
        with self._lock:
            self._seen.pop(name, None)
            self._pins.pop(name, None)

    def pin(self, name: str) -> None:
        with self._lock:
            self._pins[name] += 1

    def unpin(self, name: str) -> bool:
        with self._lock:
            if name not in self._pins:
                return False
            self._pins[name] -= 1
            if self._pins[name] == 0:
                del self._pins[name]
            return True

    def is_pinned(self, name: str) -> bool:
        with self._lock:
            return name in self._pins

    def oldest(self, size: int) -> list[str]:
        """Chunks without pins that have so many bytes together, those used longest ago."""
        found: list[str] = []
        with self._lock:
            for name, each in self._seen.items():
                if size <= 0:
                    break
                if name not in self._pins:
                    found.append(name)
                    size -= each
        return found


class CenoteBackend(StoragePluginInterface):  # type: ignore[misc]
    """Keeps LMCache's KV chunks in a store.

    :raises ConfigurationError: `extra_config` makes no sense, or the key cannot be read.
    """

    def __init__(
        self,
        config: LMCacheEngineConfig | None = None,
        metadata: LMCacheMetadata | None = None,
        local_cpu_backend: LocalCPUBackend | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        dst_device: str = "cpu",
    ) -> None:
        super().__init__(
            dst_device=dst_device, config=config, metadata=metadata,
            local_cpu_backend=local_cpu_backend, loop=loop,
        )
        self._settings = Settings.of(config.extra_config if config is not None else None)
        self._reach = Reach(self._settings.retry)
        self._uses = Uses()
        self._lock = threading.Lock()
        #: Of what is put, or waits for it; by key.
        self._putting: set[CacheEngineKey] = set()
        self._queued_bytes = 0
        self._is_closed = False
        self._opening = threading.Lock()
        self._store: Store | None = None
        self._chunks: Chunks | None = None
        self._pool = ThreadPoolExecutor(_PUTS, "cenote-lmcache-put")
        try:
            self._opened()
        except UnreachableError as error:
            # It may come up later. What is wrong is said at once.
            self._reach.note(error)
            logger.warning("the store cannot be reached yet: %s", error)
        except BaseException:
            self.close()
            raise
        if local_cpu_backend is not None:
            self._close_before(local_cpu_backend)

    def _close_before(self, memory: LocalCPUBackend) -> None:
        """LMCache closes its memory before the others, who still read it: unmapped, it crashes them."""
        close = memory.close

        def close_both() -> None:
            self.close()
            close()

        memory.close = close_both

    def __str__(self) -> str:
        return "CenoteBackend"

    # The store.

    def _opened(self) -> Chunks:
        with self._opening:
            if self._chunks is None:
                chosen = self._settings
                self._store = Store(chosen.address, key=chosen.key, timeout=chosen.timeout)
                self._chunks = Chunks(self._store, chosen.prefix, durable=chosen.durable)
            return self._chunks

    def _ask(self, call: Callable[[], T], otherwise: T) -> T:
        """What a call to the store gives; `otherwise` where it fails, which the log says."""
        if self._is_closed or not self._reach.is_worth_asking():
            return otherwise
        try:
            return call()
        except Error as error:
            self._reach.note(error)
            logger.warning("the store was asked in vain: %s", error)
            return otherwise

    # What is there.

    def contains(self, key: CacheEngineKey, pin: bool = False) -> bool:
        """Whether the store has a chunk."""
        return self.batched_contains([key], pin) == 1

    def batched_contains(self, keys: list[CacheEngineKey], pin: bool = False) -> int:
        """How many of these are there before the first that is not; 64 in a round trip."""
        names = [_name(key) for key in keys]
        count = self._ask(lambda: self._opened().count_first(names), 0)
        if pin:
            for name in names[:count]:
                self._uses.pin(name)
        return count

    async def batched_async_contains(
        self, lookup_id: str, keys: list[CacheEngineKey], pin: bool = False
    ) -> int:
        """As `batched_contains`; the loop goes on meanwhile."""
        return await asyncio.to_thread(self.batched_contains, keys, pin)

    def exists_in_put_tasks(self, key: CacheEngineKey) -> bool:
        """Whether a put of this chunk is under way, or waits."""
        with self._lock:
            return key in self._putting

    # Putting.

    def batched_submit_put_task(
        self,
        keys: Sequence[CacheEngineKey],
        objs: list[MemoryObj],
        transfer_spec: Any = None,
        on_complete_callback: Callable[[CacheEngineKey], None] | None = None,
    ) -> list[Future[None]] | None:
        """Has chunks be put; one future for each that will be, or None if none will.

        A chunk that is being put, or is beyond `cenote.queue`, will not be. A future ends with the
        error that kept its chunk from being put; one that was there already is no error. The
        callback is made for chunks that are in the store.
        """
        futures = []
        for key, obj in zip(keys, objs, strict=True):
            future = self._submit(key, obj, on_complete_callback)
            if future is not None:
                futures.append(future)
        return futures or None

    def _submit(
        self, key: CacheEngineKey, obj: MemoryObj,
        on_complete: Callable[[CacheEngineKey], None] | None,
    ) -> Future[None] | None:
        size = obj.get_size()
        if not self._reach.is_worth_asking():
            return None
        with self._lock:
            if self._is_closed or key in self._putting:
                return None
            # One alone may be larger.
            if self._queued_bytes and self._queued_bytes + size > int(self._settings.queue):
                logger.warning("a chunk is not put: %d bytes wait already", self._queued_bytes)
                return None
            self._putting.add(key)
            self._queued_bytes += size
            obj.ref_count_up()
            future = self._pool.submit(self._put, key, obj, size, on_complete)
        # One that is cancelled before it began would keep LMCache's memory.
        future.add_done_callback(
            lambda ended: self._release(key, obj, size) if ended.cancelled() else None
        )
        return future

    def _release(self, key: CacheEngineKey, obj: MemoryObj, size: int) -> None:
        obj.ref_count_down()
        with self._lock:
            self._putting.discard(key)
            self._queued_bytes -= size

    def _put(
        self, key: CacheEngineKey, obj: MemoryObj, size: int,
        on_complete: Callable[[CacheEngineKey], None] | None,
    ) -> None:
        try:
            if not self._reach.is_worth_asking():
                raise UnreachableError("the store was out of reach a moment ago")
            head = self._put_with_room(_name(key), _about(key, obj), _bytes_of(obj))
            if head is not None:
                self._uses.use(head)
        except Error as error:
            self._reach.note(error)
            logger.warning("a chunk was not put: %s: %s", key.to_string(), error)
            raise
        finally:
            self._release(key, obj, size)
        if on_complete is not None:
            try:
                on_complete(key)
            except Exception as error:  # noqa: BLE001 -- a callback may raise any
                logger.warning("on_complete_callback of %s: %s", key.to_string(), error)

    def _put_with_room(self, name: str, about: dict[str, Any], data: memoryview) -> Head | None:
        chunks = self._opened()
        for _ in range(_TRIES):
            try:
                return chunks.put(name, about, data)
            except NoSpaceError:
                victims = self._uses.oldest(2 * len(data)) or self._strangers()
                if not victims:
                    raise
            for victim in victims:
                self._uses.forget(victim)
            chunks.make_room(victims)
            for pause_s in _PAUSES_S:
                # The store says that it is full until it has begun to clean its log.
                time.sleep(pause_s)
                with contextlib.suppress(NoSpaceError):
                    return chunks.put(name, about, data)
        return chunks.put(name, about, data)

    def _strangers(self) -> list[str]:
        """Chunks of which this process knows nothing: those of others, and of its own past."""
        names = [name for name in self._opened().names() if not self._uses.is_pinned(name)]
        return names[:_STRANGERS]

    # Getting.

    def get_blocking(self, key: CacheEngineKey) -> MemoryObj | None:
        """A chunk, in memory that LMCache allocates; None if the store has not all of it."""
        return self.batched_get_blocking([key])[0]

    def batched_get_blocking(self, keys: list[CacheEngineKey]) -> list[MemoryObj | None]:
        """Many chunks, all on their way at a time; None in the place of each that is not there."""
        if self.local_cpu_backend is None:
            return [None] * len(keys)
        objs: list[MemoryObj | None] = [None] * len(keys)
        try:
            is_whole = self._ask(lambda: self._get(keys, objs), [False] * len(keys))
        except BaseException:
            _give_back(objs, [False] * len(keys))
            raise
        return _give_back(objs, is_whole)

    def _get(self, keys: Sequence[CacheEngineKey], objs: list[MemoryObj | None]) -> list[bool]:
        """Puts chunks into `objs`; whether each is whole."""
        chunks = self._opened()
        heads = chunks.heads([_name(key) for key in keys])
        wanted, places = [], []
        for at, (key, head) in enumerate(zip(keys, heads, strict=True)):
            layout = None if head is None else _Layout.of(key, head)
            if head is None or layout is None:
                continue
            obj = objs[at] = self._allocate(layout)
            if obj is None:
                # Chunks beyond one that is not there are of no use.
                break
            wanted.append((head, _bytes_of(obj)))
            places.append(at)
        is_whole = [False] * len(keys)
        for at, (head, _), whole in zip(places, wanted, chunks.read_into(wanted), strict=True):
            is_whole[at] = whole
            if whole:
                self._uses.use(head)
            else:
                self._uses.forget(head.name)
        return is_whole

    def _allocate(self, layout: _Layout) -> MemoryObj | None:
        assert self.local_cpu_backend is not None
        deadline = time.monotonic() + _ALLOCATE_S
        while True:
            # It waits for ever with `busy_loop`, also for memory that this very batch has.
            obj: MemoryObj | None = self.local_cpu_backend.allocate(
                layout.shapes, layout.dtypes, layout.format, busy_loop=False
            )
            if obj is not None:
                obj.metadata.cached_positions = layout.positions
                return obj
            if time.monotonic() > deadline:
                logger.warning("a chunk was not got: LMCache has no memory left")
                return None
            time.sleep(0.01)

    async def batched_get_non_blocking(
        self, lookup_id: str, keys: list[CacheEngineKey], transfer_spec: Any = None
    ) -> list[MemoryObj]:
        """The chunks before the first that is not there; the loop goes on meanwhile."""
        getting = asyncio.ensure_future(asyncio.to_thread(self.batched_get_blocking, keys))
        try:
            found = await asyncio.shield(getting)
        except asyncio.CancelledError:
            # The thread goes on, and nobody would free what it gets.
            getting.add_done_callback(_give_all_back)
            raise
        first = found.index(None) if None in found else len(found)
        for obj in found[first:]:
            if obj is not None:
                obj.ref_count_down()
        return [obj for obj in found[:first] if obj is not None]

    # Keeping and removing.

    def pin(self, key: CacheEngineKey) -> bool:
        """Keeps this process from removing a chunk for the sake of others; whether it is there."""
        return self.contains(key, pin=True)

    def unpin(self, key: CacheEngineKey) -> bool:
        """Takes back one pin; whether there was one."""
        return self._uses.unpin(_name(key))

    def remove(self, key: CacheEngineKey, force: bool = True) -> bool:
        """Removes a chunk from the store, so for all engines; whether it was there.

        :param force: also one that is pinned.
        """
        name = _name(key)
        if not force and self._uses.is_pinned(name):
            return False
        self._uses.forget(name)
        return self._ask(lambda: self._opened().remove(name), None) is not None

    def touch_cache(self) -> None:
        """Nothing: a chunk is used when it is put and when it is got."""

    def get_allocator_backend(self) -> LocalCPUBackend:
        """LMCache's memory, which `get` reads into."""
        if self.local_cpu_backend is None:
            raise RuntimeError("no chunks are got here: there is no LocalCPUBackend")
        return self.local_cpu_backend

    def close(self) -> None:
        """Ends the connection, once what was to be put has been, or could not be."""
        with self._lock:
            was_closed = self._is_closed
            self._is_closed = True
        self._pool.shutdown()
        if not was_closed and self._chunks is not None:
            self._chunks.close()
        if not was_closed and self._store is not None:
            self._store.close()


class _Layout(NamedTuple):
    """How a chunk's bytes are tensors."""

    shapes: list[torch.Size]
    dtypes: list[torch.dtype]
    format: MemoryFormat
    positions: torch.Tensor | None

    @classmethod
    def of(cls, key: CacheEngineKey, head: Head) -> _Layout | None:
        """None: another program's chunk, or one that makes no sense here."""
        try:
            said = head.about
            shapes = [torch.Size(shape) for shape in said["shapes"]]
            dtypes = [getattr(torch, name) for name in said["dtypes"]]
            positions = said["positions"]
            layout = cls(
                shapes, dtypes, MemoryFormat[said["format"]],
                None if positions is None else torch.tensor(positions, dtype=torch.int64),
            )
            is_ours = said["key"] == key.to_string() and all(
                isinstance(dtype, torch.dtype) for dtype in dtypes
            )
            return layout if is_ours and get_size_bytes(shapes, dtypes) == head.size else None
        except (KeyError, TypeError, ValueError, AttributeError, AssertionError, RuntimeError):
            return None


def _about(key: CacheEngineKey, obj: MemoryObj) -> dict[str, Any]:
    meta = obj.metadata
    shapes, dtypes = meta.shapes, meta.dtypes
    if not shapes or not dtypes:
        shapes, dtypes = [meta.shape], [meta.dtype]
    if None in dtypes or get_size_bytes(shapes, dtypes) != obj.get_size():
        raise ConfigurationError(f"a chunk of {obj.get_size()} bytes is not of {shapes}, {dtypes}")
    positions = meta.cached_positions
    return {
        "key": key.to_string(),
        "shapes": [list(shape) for shape in shapes],
        "dtypes": [str(dtype).removeprefix("torch.") for dtype in dtypes],
        "format": meta.fmt.name,
        "positions": None if positions is None else positions.tolist(),
    }


def _bytes_of(obj: MemoryObj) -> memoryview:
    return memoryview(obj.byte_array).cast("B")


def _name(key: CacheEngineKey) -> str:
    return name_of(key.to_string())


def _give_back(
    objs: list[MemoryObj | None], is_whole: list[bool]
) -> list[MemoryObj | None]:
    """Frees the memory of chunks that are not whole; the rest."""
    for at, (obj, whole) in enumerate(zip(objs, is_whole, strict=True)):
        if obj is not None and not whole:
            objs[at] = None
            obj.ref_count_down()
    return objs


def _give_all_back(ended: asyncio.Future[list[MemoryObj | None]]) -> None:
    if not ended.cancelled() and ended.exception() is None:
        _give_back(ended.result(), [False] * len(ended.result()))
