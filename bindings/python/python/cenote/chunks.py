"""Chunks of many MiB in a store, whose values have at most one.

A chunk is an object that says where its pieces are, and the pieces, other objects:

    PREFIX NAME               the head: MAGIC and JSON: size, tag, and what the chunk's owner says
    PREFIX NAME/TAG/INDEX     a piece each, in order; all but the last have `piece_bytes`

A chunk is written once, as what a cache of computed results has: a second put of the same name
changes nothing. Each put has a tag of its own, and puts the head last, if there is none yet. So
pieces of two puts never mix, and a head's pieces are whole or gone: a piece that is missing, or has
another length, makes the chunk one that is not there. The store has checksums of its values.

`cenote.lmcache` keeps KV caches by this. It knows nothing of torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import uuid
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import ClosedError, ConditionError, ConfigurationError, Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .store import Store

MAGIC = b"\0cenote-chunk\0"
#: Of a chunk's pieces. Several fit into what a store has for a client's values.
PIECE_BYTES = 512 << 10
#: Pieces in one request, and requests under way: 8 MiB of reads, and as many of writes.
_AT_ONCE = 4
_LANES = 4
#: Most bytes of a piece that others wrote.
_PIECE_BYTES_MAX = 1 << 20
#: Pieces of a chunk at most: a head that others wrote says how many keys are made of it.
_PIECES_MAX = 1 << 14
#: Names and tags take the rest of a key's 250 bytes.
_PREFIX_BYTES_MAX = 150
#: Heads in one request.
_HEADS = 64
_NAME = re.compile("[0-9a-f]{40}")
_PIECE = re.compile("[0-9a-f]{40}/[0-9a-f]{32}/[0-9a-f]{8}")
#: Others that put and remove the same chunk come first so often.
_TRIES = 100


def name_of(key: str) -> str:
    """The name of a chunk that is known by a text of any length: 40 hexadecimal digits."""
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()


class Head(NamedTuple):
    """What the object at a chunk's name says."""

    name: str
    #: Of its put.
    tag: str
    size: int
    piece_bytes: int
    #: What the chunk's owner says of it: what JSON can say.
    about: dict[str, Any]

    def piece_count(self) -> int:
        return -(-self.size // self.piece_bytes)

    def place(self, index: int) -> slice:
        return slice(index * self.piece_bytes, min((index + 1) * self.piece_bytes, self.size))

    def encode(self) -> bytes:
        said = {
            "about": self.about, "bytes": self.size, "piece_bytes": self.piece_bytes,
            "tag": self.tag, "version": 1,
        }
        return MAGIC + json.dumps(said).encode()


def decode(name: str, value: bytes) -> Head | None:
    """None: it is no head of a chunk, or one of a newer version."""
    if not value.startswith(MAGIC):
        return None
    try:
        said = json.loads(value[len(MAGIC) :])
        head = Head(name, said["tag"], said["bytes"], said["piece_bytes"], said["about"])
        numbers = isinstance(head.size, int) and isinstance(head.piece_bytes, int)
        if not numbers or head.size < 0 or not 0 < head.piece_bytes <= _PIECE_BYTES_MAX:
            return None
        if head.piece_count() > _PIECES_MAX:
            return None
        if said["version"] != 1 or not isinstance(head.about, dict):
            return None
        return head if re.fullmatch("[0-9a-f]{32}", head.tag) else None
    except (ValueError, KeyError, TypeError):
        return None


class Chunks:
    """Chunks in a store. Any thread may use it; `close` ends its threads, and not the store.

    :param prefix: of all their keys.
    :param durable: whether a put returns once no crash of the store can take the chunk.
    """

    def __init__(self, store: Store, prefix: str, *, durable: bool = False) -> None:
        if len(prefix.encode()) > _PREFIX_BYTES_MAX or "\0" in prefix:
            raise ConfigurationError(f"a prefix of up to {_PREFIX_BYTES_MAX} bytes, without NUL")
        self._store = store
        self._prefix = prefix
        self._durable = durable
        # Of their own, so that a long put does not keep a get waiting.
        self._readers = ThreadPoolExecutor(_LANES, "cenote-chunks-get")
        self._writers = ThreadPoolExecutor(_LANES, "cenote-chunks-put")

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _piece(self, head: Head, index: int) -> str:
        return f"{self._prefix}{head.name}/{head.tag}/{index:08x}"

    def _pieces(self, head: Head) -> list[str]:
        return [self._piece(head, index) for index in range(head.piece_count())]

    # Reading.

    def heads(self, names: Sequence[str]) -> list[Head | None]:
        """The heads of chunks, all asked for at a time; None where there is no chunk."""
        found = self._store.get_many([self._key(name) for name in names])
        return [
            None if value is None else decode(name, value)
            for name, value in zip(names, found, strict=True)
        ]

    def count_first(self, names: Sequence[str]) -> int:
        """How many of these are there before the first that is not."""
        for at in range(0, len(names), _HEADS):
            for index, head in enumerate(self.heads(names[at : at + _HEADS])):
                if head is None:
                    return at + index
        return len(names)

    def read_into(self, wanted: Sequence[tuple[Head, memoryview]]) -> list[bool]:
        """Fills a buffer with each of some chunks, many pieces under way; whether each is whole.

        One that is not is removed, so that it can be put again. Its buffer has anything in it.
        """
        whole = [len(view) == head.size for head, view in wanted]

        def read(at: int, head: Head, view: memoryview, indices: range) -> None:
            if not whole[at]:
                return
            places = [view[head.place(index)] for index in indices]
            keys = [self._piece(head, index) for index in indices]
            lengths = self._store.get_many_into(zip(keys, places, strict=True))
            if lengths != [len(place) for place in places]:
                whole[at] = False

        _all(self._readers, [
            partial(read, at, head, view, some)
            for at, (head, view) in enumerate(wanted)
            for some in _batches(head)
        ])
        for (head, view), is_whole in zip(wanted, whole, strict=True):
            if not is_whole and len(view) == head.size:
                self._remove_broken(head)
        return whole

    # Writing.

    def put(self, name: str, about: dict[str, Any], data: memoryview) -> Head | None:
        """Puts a chunk, many pieces under way; its head. None: there was one already.

        `data` must not change meanwhile. What a put that fails has written is deleted, if the store
        can be asked to; `remove_orphans` finds the rest.
        """
        if self.heads([name]) != [None]:
            return None
        head = Head(name, uuid.uuid4().hex, len(data), PIECE_BYTES, about)
        if head.piece_count() > _PIECES_MAX:
            raise ConfigurationError(f"a chunk has up to {_PIECES_MAX * PIECE_BYTES} bytes")

        def write(indices: range) -> None:
            items = [(self._piece(head, index), data[head.place(index)]) for index in indices]
            self._store.put_many(items, durable=self._durable)

        put = self._store.put_durable if self._durable else self._store.put
        try:
            _all(self._writers, [partial(write, some) for some in _batches(head)])
            put(self._key(name), head.encode(), if_absent=True)
        except ConditionError:
            # Another put was first.
            self._store.delete_many(self._pieces(head))
            return None
        except Error:
            with contextlib.suppress(Error):
                # It may be the answer alone that was lost.
                if self.heads([name]) == [head]:
                    return head
                self._store.delete_many(self._pieces(head))
            raise
        return head

    # Ending.

    def remove(self, name: str) -> Head | None:
        """Removes a chunk; its head, or None: there was none."""
        key = self._key(name)
        for _ in range(_TRIES):
            found = self._store.get_version(key)
            if found is None:
                return None
            try:
                self._store.delete(key, if_version=found.version)
            except ConditionError:
                continue
            head = decode(name, found.value)
            if head is not None:
                self._store.delete_many(self._pieces(head))
            return head
        raise BlockingIOError(f"{key}: others put and remove it all the time")

    def make_room(self, names: Iterable[str]) -> None:
        """Removes chunks, and has the store make room of them, in the background."""
        for name in names:
            self.remove(name)
        self._store.clean()

    def _remove_broken(self, head: Head) -> None:
        key = self._key(head.name)
        found = self._store.get_version(key)
        if found is None or decode(head.name, found.value) != head:
            return
        with contextlib.suppress(ConditionError):
            self._store.delete(key, if_version=found.version)
            self._store.delete_many(self._pieces(head))

    def names(self) -> list[str]:
        """The names of all chunks, those of other programs as well; of durable ones alone."""
        return [key for key in self._listed() if _NAME.fullmatch(key)]

    def _listed(self) -> list[str]:
        return [key.removeprefix(self._prefix) for key in self._store.list(self._prefix)]

    def remove_orphans(self) -> int:
        """Deletes pieces that no chunk has, of programs that died while they put; how many.

        Only while nobody puts: pieces are there before their chunk is.
        """
        pieces = [key for key in self._listed() if _PIECE.fullmatch(key)]
        names = sorted({key.partition("/")[0] for key in pieces})
        owned: set[str] = set()
        for at in range(0, len(names), _HEADS):
            for head in self.heads(names[at : at + _HEADS]):
                if head is not None:
                    owned.update(self._pieces(head))
        orphans = [key for key in map(self._key, pieces) if key not in owned]
        return len(self._store.delete_many(orphans))

    def close(self) -> None:
        """Ends its threads, once what is under way has ended."""
        self._readers.shutdown()
        self._writers.shutdown()


def _batches(head: Head) -> Iterable[range]:
    count = head.piece_count()
    return (range(at, min(at + _AT_ONCE, count)) for at in range(0, count, _AT_ONCE))


def _all(pool: ThreadPoolExecutor, calls: Iterable[Callable[[], None]]) -> None:
    """Makes all these calls, after an error no more; at its end none is under way."""
    futures: list[Future[None]] = []
    try:
        for call in calls:
            futures.append(pool.submit(call))
        wait(futures, return_when=FIRST_EXCEPTION)
    except RuntimeError:
        raise ClosedError("its threads have ended") from None
    finally:
        # What they read into is given back next.
        wait([future for future in futures if not future.cancel()])
    for future in futures:
        if not future.cancelled():
            future.result()
