"""Objects that survive crashes."""

from __future__ import annotations

import builtins
import os
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from . import _cenote
from ._ranges import Closing, Path, plain, writable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Key = str | bytes
T = TypeVar("T")

#: Longest value.
VALUE_BYTES_MAX = 1 << 20


class Version(NamedTuple):
    """A version of an object."""

    #: Larger than those of the object's earlier versions.
    version: int
    value: bytes


def _key(key: Key) -> bytes:
    return key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape")


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


class Store(Closing):
    """Objects that `cenote store serve` serves: keys of 1 to 250 bytes, values of up to 1 MiB.

    Any thread may use it, and many requests are under way over its one connection; one that breaks
    is made again by the next request. With several addresses they are stores with copies of the same
    objects, in the order that all clients agree on.

    >>> with cenote.Store("tcp:127.0.0.1:7100", key="cluster.key") as store:  # doctest: +SKIP
    ...     store.put_durable("greeting", b"hello")
    ...     store.get("greeting")
    1
    b'hello'
    """

    _inner: _cenote.Store

    def __init__(
        self, addresses: str | Sequence[str], *, key: Path, timeout: float = 10.0
    ) -> None:
        """Connects.

        :param addresses: "tcp:HOST:PORT" or "shm:PATH", or several of them.
        :param key: the file with the cluster's key.
        :param timeout: seconds after which a store that is silent counts as gone.
        """
        many = [addresses] if isinstance(addresses, str) else list(addresses)
        self._inner = _cenote.Store(many, os.path.expanduser(os.fspath(key)), timeout)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._inner.closed

    def put(
        self, key: Key, value: Any, *, if_absent: bool = False, if_version: int | None = None
    ) -> int:
        """Puts an object; its version. A crash of the store may lose it, until `sync` has returned.

        :param if_absent: only if there is none.
        :param if_version: only if its version is this one; else `ConditionError`.
        """
        return self._inner.put(_key(key), plain(value), False, if_absent, if_version)

    def put_durable(
        self, key: Key, value: Any, *, if_absent: bool = False, if_version: int | None = None
    ) -> int:
        """Puts an object, and returns once no crash can take it; its version."""
        return self._inner.put(_key(key), plain(value), True, if_absent, if_version)

    def put_many(
        self, items: Mapping[str, Any] | Iterable[tuple[Key, Any]], *, durable: bool = False
    ) -> builtins.list[int]:
        """Puts many objects, all under way at a time; their versions.

        The first error is raised, once all have ended.
        """
        pairs: Iterable[tuple[Key, Any]] = items.items() if hasattr(items, "items") else items
        return self._inner.put_many([(_key(key), plain(value)) for key, value in pairs], durable)

    @overload
    def get(self, key: Key) -> bytes | None: ...
    @overload
    def get(self, key: Key, default: T) -> bytes | T: ...

    def get(self, key: Key, default: T | None = None) -> bytes | T | None:
        """The newest value of an object; `default` if there is none."""
        found = self._inner.get(_key(key))
        return default if found is None else found[1]

    def get_version(self, key: Key) -> Version | None:
        """The newest version of an object, for `if_version`; None if there is none."""
        found = self._inner.get(_key(key))
        return None if found is None else Version(*found)

    def get_many(self, keys: Iterable[Key]) -> builtins.list[bytes | None]:
        """The newest values of many objects, all under way at a time; None where there is none."""
        found = self._inner.get_many([_key(key) for key in keys])
        return [None if one is None else one[1] for one in found]

    def get_many_into(self, items: Iterable[tuple[Key, Any]]) -> builtins.list[int | None]:
        """Has the newest values of many objects be in writable buffers, all under way at a time.

        What it returns is how long each value is, None where there is none. A buffer of another
        length than its value is left as it is.
        """
        return self._inner.get_many_into([(_key(key), writable(buffer)) for key, buffer in items])

    def delete(self, key: Key, *, if_version: int | None = None) -> int:
        """Has there be no such object, durably; the version that says so, also if there was none.

        :param if_version: only if its version is this one; else `ConditionError`.
        """
        return self._inner.delete(_key(key), if_version)

    def delete_many(self, keys: Iterable[Key]) -> builtins.list[int]:
        """Deletes many objects, all under way at a time."""
        return self._inner.delete_many([_key(key) for key in keys])

    def list(self, prefix: Key = "") -> builtins.list[str]:
        """All keys that begin with `prefix`, in order of their bytes.

        An object that `put` put is listed once it is durable, a moment later.
        Keys that are no UTF-8 have surrogates, as names of files do (`os.fsdecode`).
        """
        return [_text(key) for key in self._inner.list(_key(prefix))]

    def sync(self) -> int:
        """Returns once all that was put is durable.

        What it returns is how many puts were given up, since their values did not come in time.
        After the connection was lost it raises `ConnectionLostError`: nobody knows any more.
        """
        return self._inner.sync()

    def clean(self) -> None:
        """Has the store clean its log, in the background: room comes of what was deleted.

        It does so by itself too, once its log has grown or many keys were deleted: a few large values
        are not many.
        """
        self._inner.clean()

    def close(self) -> None:
        """Ends the connection, once what is under way has ended. Again is no error."""
        self._inner.close()

    def __repr__(self) -> str:
        return f"<cenote.Store: {'closed' if self.closed else 'open'}>"
