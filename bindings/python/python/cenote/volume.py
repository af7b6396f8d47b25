"""Memory of a cluster's hosts."""

from __future__ import annotations

import os
from typing import NamedTuple

from . import _cenote
from ._ranges import Path, Ranges, folder_of, size_of


class VolumeStatus(NamedTuple):
    """How a volume is."""

    #: As `cenote`'s flag `--scheme` has it.
    scheme: str
    #: Every split of every page is where it should be.
    whole: bool
    #: Every page can be read.
    readable: bool
    #: Pages that hold data, in bytes.
    stored: int
    #: Memory that hosts lend to it, in bytes.
    lent: int
    #: Hosts of the cluster.
    hosts: int
    #: Those of them that are connected.
    hosts_connected: int


class Volume(Ranges):
    """Bytes that a cluster's hosts keep, erasure-coded: zeros until they are written.

    A write that has returned survives the loss of as many hosts as the scheme bears. The volume is
    this process's, and ends with it or with `close()`; what is in it ends as well.

    Any thread may use it; `threads` of them read and write at a time, and more wait for each other.
    Whole pages of 4096 bytes, at multiples of it, are fastest.

    >>> with cenote.Volume("~/.cenote/well", size="64M") as volume:  # doctest: +SKIP
    ...     volume[4096:4101] = b"hello"
    ...     volume[4096:4101]
    b'hello'
    """

    _inner: _cenote.Volume

    def __init__(
        self,
        cluster: Path | None = None,
        *,
        size: int | str = 1 << 30,
        scheme: str | None = None,
        name: str | None = None,
        threads: int = 4,
    ) -> None:
        """Opens a new, empty volume.

        :param cluster: the cluster file, or the folder of `cenote up`; None: what CENOTE_DIR names.
        :param size: bytes, or text such as "64M". Hosts' memory is taken where it is written to.
        :param scheme: "plain", "mirror:N" or "rs:K+R"; None: the widest usual one that fits.
        :param name: what hosts call it in `cenote status`; None: the process's number.
        :param threads: how many read and write at a time.
        """
        where = folder_of(cluster)
        if os.path.isdir(where):
            where = os.path.join(where, "cluster.toml")
        self._inner = _cenote.Volume(where, size_of(size), scheme, name, threads)

    def discard(self, offset: int, length: int) -> None:
        """Has `length` bytes at `offset` read as zeros; whole pages give their memory back."""
        self._inner.discard(offset, length)

    def status(self) -> VolumeStatus:
        """How it is."""
        return VolumeStatus(*self._inner.status())
