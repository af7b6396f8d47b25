"""A remote cache, whose manager keeps it whole while hosts come and go."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _cenote
from ._ranges import Path, Ranges, folder_of, plain
from .errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class CacheStatus(NamedTuple):
    """How a cache is, as its manager says."""

    #: Bytes that it holds.
    size: int
    #: Copies of each region.
    copies: int
    #: Every region has all its copies, on hosts that stay, and can be written.
    whole: bool
    #: Its hosts.
    hosts: int
    #: Regions that lost their bytes at some time.
    regions_lost: int


class FellBack(NamedTuple):
    """A region that came back from a checkpoint after its bytes were lost."""

    #: Its number.
    region: int
    #: When its bytes were as they are now.
    taken: datetime


class Cache(Ranges):
    """Bytes in the memory of several machines, as `cenote cache create` made them.

    Any thread may use it. A region with one copy that goes with its host comes back empty: a cache
    may lose bytes, and `take_lost` and `take_fallen_back` say which regions. Requests that overlap and are under way at
    the same time take effect in any order.

    >>> with cenote.Cache("c0", "~/.cenote/well") as cache:  # doctest: +SKIP
    ...     cache[4096:4101] = b"hello"
    ...     cache.read_many([(4096, 5), (0, 2)])
    [b'hello', b'\\x00\\x00']
    """

    _inner: _cenote.Cache

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
    ) -> None:
        """Opens a cache: by its name and the cluster's folder, or by addresses of its manager.

        :param name: the cache's name, on the machine of its manager.
        :param folder: the cluster's folder; None: what CENOTE_DIR names.
        :param addresses: where its manager listens, "tcp:HOST:PORT", in place of name and folder.
        :param key: the file with the cluster's key, for addresses.
        :param client: what `cenote cache status` calls this client; None: the process's number.
        :param patience: seconds that a request waits for a region that is out of reach.
        :param timeout: seconds for opening it, and for `status`.
        """
        if addresses is not None:
            if key is None:
                raise ConfigurationError("addresses need the file with the cluster's key: key=...")
            many = [addresses] if isinstance(addresses, str) else list(addresses)
            file = os.path.expanduser(os.fspath(key))
            self._inner = _cenote.Cache.open_at(many, file, client, patience, timeout)
        elif name is not None:
            where = folder_of(folder)
            self._inner = _cenote.Cache.open_in(where, name, client, patience, timeout)
        else:
            raise ConfigurationError("which cache? Its name, or addresses of its manager")

    @property
    def region_size(self) -> int:
        """Bytes of a region: losses are told by region."""
        return self._inner.region_size

    def read_many(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """The bytes of many ranges, each an offset and a length of up to 1 MiB, all at a time."""
        return self._inner.read_many(list(ranges))

    def write_many(self, items: Iterable[tuple[int, Any]]) -> None:
        """Writes many buffers of up to 1 MiB, each at an offset, all under way at a time.

        The first error is raised, once all have ended.
        """
        self._inner.write_many([(offset, plain(data)) for offset, data in items])

    def take_lost(self) -> list[int]:
        """Regions whose bytes were lost since this was asked last.

        They hold zeros, or what a checkpoint has, and what was written from then on.
        """
        return self._inner.take_lost()

    def take_fallen_back(self) -> list[FellBack]:
        """Regions that came back from a checkpoint since this was asked last."""
        since = datetime(1970, 1, 1, tzinfo=timezone.utc)
        fallen = self._inner.take_fallen_back()
        return [FellBack(region, since + timedelta(milliseconds=ms)) for region, ms in fallen]

    def status(self) -> CacheStatus:
        """Asks the manager how the cache is."""
        return CacheStatus(*self._inner.status())
